#include "worker/layout/factored.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace lockstep::worker {
namespace {

std::uint64_t LengthOf(const Stretch& stretch, bool odd, std::uint32_t rank) {
  if (stretch.dense()) return stretch.count;
  return stretch.LengthOf(stretch.SideOf(RoundId(odd ? 1 : 0))) * rank;
}

std::uint64_t TotalOf(const std::vector<Stretch>& stretches, bool odd, std::uint32_t rank) {
  return std::accumulate(stretches.begin(), stretches.end(), std::uint64_t{0},
                         [&](std::uint64_t total, const Stretch& stretch) {
                           return total + LengthOf(stretch, odd, rank);
                         });
}

// The stretch with the most different factors comes first, and each gives more to the rounds that
// have less.
void Balance(std::vector<Stretch>* stretches) {
  std::vector<Stretch*> matrices;
  for (Stretch& stretch : *stretches) {
    if (!stretch.dense()) matrices.push_back(&stretch);
  }
  const auto difference = [](const Stretch* part) {
    return std::max(part->rows, part->columns) - std::min(part->rows, part->columns);
  };
  std::ranges::stable_sort(matrices, std::ranges::greater{}, difference);
  std::int64_t ahead = 0;  // even rounds compared to odd ones
  for (Stretch* part : matrices) {
    part->turned = (ahead > 0) == (part->rows > part->columns);
    const auto by = static_cast<std::int64_t>(difference(part));
    const bool even_has_more = (part->rows > part->columns) != part->turned;
    ahead += even_has_more ? by : -by;
  }
}

}  // namespace

Matrix MatrixOf(std::uint64_t first, const std::vector<std::uint64_t>& shape) {
  if (shape.size() < 2) return {.first = first};
  const std::uint64_t columns =
      std::accumulate(shape.begin() + 1, shape.end(), std::uint64_t{1},
                      [](std::uint64_t a, std::uint64_t b) { return a * b; });
  return {first, shape[0], columns};
}

// A factor of columns has the same length for few rows. So with fewer rows than columns, the
// factors of all buckets together are longer the more buckets there are.
std::uint64_t RowsOfBucket(const Matrix& matrix, std::uint64_t most, std::uint32_t rank) {
  // A bucket is also the unit of the copy for a member that catches up, within a few rounds.
  constexpr std::uint64_t kMostNumbers = (16u << 20) / sizeof(float);
  const std::uint64_t usual = most / matrix.columns;
  const std::uint64_t large = std::min(matrix.columns, kMostNumbers / matrix.columns);
  const std::uint64_t rows = std::min(matrix.rows, std::max(usual, large));
  if (rows == 0) return 0;
  const std::uint64_t buckets = (matrix.rows + rows - 1) / rows;
  const std::uint64_t even = (matrix.rows + buckets - 1) / buckets;
  // Fewer rows would not be factored.
  return std::max(even, std::min(rows, 2 * std::uint64_t{rank}));
}

std::vector<Stretch> CutIntoStretches(std::uint64_t first, std::uint64_t count,
                                      const std::vector<Matrix>& matrices, std::uint32_t rank) {
  std::vector<Stretch> stretches;
  const std::uint64_t end = first + count;
  std::uint64_t at = first;
  const auto plain_to = [&](std::uint64_t to) {
    if (to > at) stretches.push_back({.first = at, .count = to - at});
    at = to;
  };
  auto matrix = std::ranges::upper_bound(matrices, first, {}, &Matrix::first);
  if (matrix != matrices.begin()) --matrix;
  for (; matrix != matrices.end() && matrix->first < end; ++matrix) {
    if (matrix->end() <= first || matrix->columns == 0) continue;
    const std::uint64_t columns = matrix->columns;
    const std::uint64_t from =
        matrix->first >= first ? 0 : (first - matrix->first + columns - 1) / columns;
    const std::uint64_t to = (std::min(end, matrix->end()) - matrix->first) / columns;
    if (from >= to || !IsFactored(to - from, columns, rank)) continue;
    plain_to(matrix->first + from * columns);
    stretches.push_back(
        {.first = at, .count = (to - from) * columns, .rows = to - from, .columns = columns});
    at += (to - from) * columns;
  }
  plain_to(end);
  Balance(&stretches);
  std::array<std::uint64_t, 2> behind = {};
  std::array<std::uint64_t, 2> known = {};
  for (Stretch& stretch : stretches) {
    stretch.at = behind;
    stretch.known_at = known;
    for (std::size_t odd = 0; odd < behind.size(); ++odd) {
      behind[odd] += LengthOf(stretch, odd == 1, rank);
      // The factor that the other rounds send.
      if (!stretch.dense()) known[odd] += LengthOf(stretch, odd == 0, rank);
    }
  }
  return stretches;
}

std::uint64_t NumbersOf(const std::vector<Stretch>& stretches, std::uint32_t rank) {
  return std::max(TotalOf(stretches, false, rank), TotalOf(stretches, true, rank));
}

}  // namespace lockstep::worker
