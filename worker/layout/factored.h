// The layout of a bucket's numbers with low-rank factors (exchange.compression = powersgd). For a
// matrix of the gradient, one of two factors is exchanged in place of its numbers.
// worker/memory/low_rank.h says how they are computed.
//
// For a matrix of m rows and n columns, and rank r, rounds alternate between the factor with m rows
// and the one with n, of r columns each. The optimizer's state of the matrix has room for both.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace lockstep::worker {

// A matrix in the flat parameter vector, row after row from `first` on.
struct Matrix {
  std::uint64_t first = 0;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t end() const { return first + rows * columns; }
};

// A tensor as a matrix: its first extent, and the product of the others. A tensor of a single
// extent is no matrix (no rows).
Matrix MatrixOf(std::uint64_t first, const std::vector<std::uint64_t>& shape);

// The factor that a round exchanges: kRows has a row for each of the matrix's rows, kColumns one
// for each column. Everybody knows the other one.
enum class Side : std::uint8_t { kRows, kColumns };

// Consecutive parameters of a bucket, in the form of the exchange.
struct Stretch {
  std::uint64_t first = 0;  // parameter
  std::uint64_t count = 0;
  // Whole rows of a matrix; none: the numbers are exchanged unchanged.
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  bool turned = false;  // it sends first the factor that others send second
  // For even and odd rounds: the place of its numbers among those of its bucket, and the place of
  // the known factor among all known ones.
  std::array<std::uint64_t, 2> at = {};
  std::array<std::uint64_t, 2> known_at = {};

  bool dense() const { return rows == 0; }
  // The factor that the round sends.
  Side SideOf(RoundId round) const {
    return (round.value % 2 == 1) != turned ? Side::kColumns : Side::kRows;
  }
  std::uint64_t AtOf(RoundId round) const { return at[round.value % 2]; }
  std::uint64_t KnownAtOf(RoundId round) const { return known_at[round.value % 2]; }
  std::uint64_t LengthOf(Side side) const { return side == Side::kRows ? rows : columns; }
};

constexpr Side OtherThan(Side side) { return side == Side::kRows ? Side::kColumns : Side::kRows; }

// Whether a matrix of so many rows and columns is exchanged as factors of this rank: they must take
// at most half of its numbers.
constexpr bool IsFactored(std::uint64_t rows, std::uint64_t columns, std::uint32_t rank) {
  const std::uint64_t twice = 2 * std::uint64_t{rank};
  return twice <= rows && twice <= columns;
}

// How many rows of a matrix its buckets have, where `most` numbers are usual for a bucket. The rows
// are equally many, unless those are too few. They are more where that makes the factors of all
// buckets together shorter, up to 16 MiB.
std::uint64_t RowsOfBucket(const Matrix& matrix, std::uint64_t most, std::uint32_t rank);

// Cuts the bucket [first, first + count) by offset, without gaps. `matrices`: by offset. The bucket
// has whole rows of a matrix, or the matrix is not factored. It turns so many matrices that even
// and odd rounds exchange about equally much.
std::vector<Stretch> CutIntoStretches(std::uint64_t first, std::uint64_t count,
                                      const std::vector<Matrix>& matrices, std::uint32_t rank);

// How many numbers of the bucket are exchanged, in the rounds that exchange the most.
std::uint64_t NumbersOf(const std::vector<Stretch>& stretches, std::uint32_t rank);

}  // namespace lockstep::worker
