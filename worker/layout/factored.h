// Where of a matrix of the gradient one of two factors of low rank is exchanged in place of its
// numbers (exchange.compression = powersgd): how the numbers of a bucket are laid out then. What
// they are: worker/memory/low_rank.h.
//
// Of a matrix of m rows and n columns, and rank r, the rounds by turns have the factor with m rows
// and that with n, of r columns each, as there is a place for both in what the optimizer keeps of
// the matrix.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace lockstep::worker {

// Of the flat parameter vector, row after row from `first` on.
struct Matrix {
  std::uint64_t first = 0;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t end() const { return first + rows * columns; }
};

// A tensor as a matrix: its first extent, and the product of the others. One of a single extent is
// none (no rows).
Matrix MatrixOf(std::uint64_t first, const std::vector<std::uint64_t>& shape);

// Of which factor the numbers are that a round exchanges: kRows, that with a row for each of the
// matrix's rows, kColumns, with one for each column. The other one is known to all.
enum class Side : std::uint8_t { kRows, kColumns };

// Consecutive parameters of a bucket, as they are exchanged.
struct Stretch {
  std::uint64_t first = 0;  // parameter
  std::uint64_t count = 0;
  // Rows of a matrix, all of each; none: the numbers as they are.
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  bool turned = false;  // sends that factor first which others send second
  // In even and in odd rounds: where its numbers begin among those of its bucket, and where the
  // factor that is known does among all that are.
  std::array<std::uint64_t, 2> at = {};
  std::array<std::uint64_t, 2> known_at = {};

  bool dense() const { return rows == 0; }
  // Which factor the round sends.
  Side SideOf(RoundId round) const {
    return (round.value % 2 == 1) != turned ? Side::kColumns : Side::kRows;
  }
  std::uint64_t AtOf(RoundId round) const { return at[round.value % 2]; }
  std::uint64_t KnownAtOf(RoundId round) const { return known_at[round.value % 2]; }
  std::uint64_t LengthOf(Side side) const { return side == Side::kRows ? rows : columns; }
};

constexpr Side OtherThan(Side side) { return side == Side::kRows ? Side::kColumns : Side::kRows; }

// A matrix of so many rows and columns is exchanged as factors of this rank: they take half of its
// numbers at most.
constexpr bool IsFactored(std::uint64_t rows, std::uint64_t columns, std::uint32_t rank) {
  const std::uint64_t twice = 2 * std::uint64_t{rank};
  return twice <= rows && twice <= columns;
}

// How many rows of the matrix a bucket has that is cut out of it, where `most` numbers are what a
// bucket has usually: equally many, if that are not too few, and more where that makes the factors
// of all of them shorter, up to 16 MiB.
std::uint64_t RowsOfBucket(const Matrix& matrix, std::uint64_t most, std::uint32_t rank);

// The bucket [first, first + count) by offset, without gaps. `matrices`: by offset. What of a
// matrix lies in it are whole rows, or it is not factored. Which matrices are turned is so that
// even and odd rounds exchange about equally much.
std::vector<Stretch> CutIntoStretches(std::uint64_t first, std::uint64_t count,
                                      const std::vector<Matrix>& matrices, std::uint32_t rank);

// How many numbers of the bucket are exchanged, in the rounds that exchange the most.
std::uint64_t NumbersOf(const std::vector<Stretch>& stretches, std::uint32_t rank);

}  // namespace lockstep::worker
