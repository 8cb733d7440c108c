#include "worker/memory/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "base/vector_clones.h"

namespace lockstep::worker {
namespace {

// A sum of products uses so many sums, which are added up in the end: wide units are fully used,
// and narrow ones get the same bits.
constexpr std::size_t kDotLanes = 16;

LOCKSTEP_VECTOR_CLONES
float Dot(const float* a, const float* b, std::size_t n) {
  std::array<float, kDotLanes> lanes = {};
  std::size_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes) {
    for (std::size_t l = 0; l < kDotLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  for (std::size_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

LOCKSTEP_VECTOR_CLONES
void AddTimes(float factor, const float* from, std::size_t n, float* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// q += p[0] * m[0] + ... of four rows of n numbers each, one after the other.
LOCKSTEP_VECTOR_CLONES
void AddTimesRows(const float* p, std::size_t stride, const float* m, std::size_t n, float* q) {
  const float p0 = p[0];
  const float p1 = p[stride];
  const float p2 = p[2 * stride];
  const float p3 = p[3 * stride];
  for (std::size_t j = 0; j < n; ++j) {
    float sum = q[j] + p0 * m[j];
    sum += p1 * m[n + j];
    sum += p2 * m[2 * n + j];
    q[j] = sum + p3 * m[3 * n + j];
  }
}

LOCKSTEP_VECTOR_CLONES
double DotOf(const double* a, const double* b, std::size_t n) {
  std::array<double, kDotLanes> lanes = {};
  std::size_t i = 0;
  for (; i + kDotLanes <= n; i += kDotLanes) {
    for (std::size_t l = 0; l < kDotLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (std::size_t l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double DotOf(const std::vector<double>& a, const std::vector<double>& b) {
  return DotOf(a.data(), b.data(), a.size());
}

LOCKSTEP_VECTOR_CLONES
void SubtractTimes(double factor, const double* from, std::size_t n, double* of) {
  for (std::size_t i = 0; i < n; ++i) of[i] -= factor * from[i];
}

// False: it has almost no component outside the span of those before it.
bool MakeOrthonormal(const std::vector<std::vector<double>>& before, std::vector<double>* column) {
  // Single precision keeps no more than this of a column.
  constexpr double kNothing = 1e-6;
  const double whole = std::sqrt(DotOf(*column, *column));
  if (!(whole > 0) || !std::isfinite(whole)) return false;
  for (int pass = 0; pass < 2; ++pass) {
    for (const std::vector<double>& other : before) {
      const double along = DotOf(other, *column);
      SubtractTimes(along, other.data(), column->size(), column->data());
    }
  }
  const double left = std::sqrt(DotOf(*column, *column));
  if (!(left > kNothing * whole)) return false;
  for (double& number : *column) number /= left;
  return true;
}

}  // namespace

void TimesColumnFactor(const MatrixShape& shape, const float* matrix, const float* q, float* p) {
  for (std::uint64_t row = 0; row < shape.rows; ++row) {
    for (std::uint32_t k = 0; k < shape.rank; ++k) {
      *p++ = Dot(matrix, q + k * shape.columns, shape.columns);
    }
    matrix += shape.columns;
  }
}

// It takes four rows at a time, so that the factor is read and written a quarter as often.
void AddTimesRowFactor(const MatrixShape& shape, const float* matrix, const float* p, float* q) {
  constexpr std::uint64_t kRows = 4;
  std::uint64_t row = 0;
  for (; row + kRows <= shape.rows; row += kRows) {
    for (std::uint32_t k = 0; k < shape.rank; ++k) {
      AddTimesRows(p + row * shape.rank + k, shape.rank, matrix + row * shape.columns,
                   shape.columns, q + k * shape.columns);
    }
  }
  for (; row < shape.rows; ++row) {
    for (std::uint32_t k = 0; k < shape.rank; ++k) {
      AddTimes(p[row * shape.rank + k], matrix + row * shape.columns, shape.columns,
               q + k * shape.columns);
    }
  }
}

void SubtractProduct(const MatrixShape& shape, const float* p, const float* q, float* matrix) {
  for (std::uint64_t row = 0; row < shape.rows; ++row) {
    for (std::uint32_t k = 0; k < shape.rank; ++k) {
      AddTimes(-*p++, q + k * shape.columns, shape.columns, matrix);
    }
    matrix += shape.columns;
  }
}

void Product(const MatrixShape& shape, const float* p, const float* q, std::uint64_t first,
             std::uint64_t n, float* out) {
  std::fill_n(out, n, 0.0f);
  while (n > 0) {
    const std::uint64_t row = first / shape.columns;
    const std::uint64_t column = first % shape.columns;
    const std::uint64_t some = std::min(n, shape.columns - column);
    for (std::uint32_t k = 0; k < shape.rank; ++k) {
      AddTimes(p[row * shape.rank + k], q + k * shape.columns + column, some, out);
    }
    first += some;
    out += some;
    n -= some;
  }
}

// It works in double precision: a deviation from orthogonality would be sent twice.
void Orthonormalize(std::uint64_t length, std::uint32_t rank, bool by_rows, RandomStream random,
                    float* factor) {
  const auto at = [&](std::uint64_t i, std::uint32_t k) -> float& {
    return by_rows ? factor[i * rank + k] : factor[k * length + i];
  };
  std::vector<std::vector<double>> columns;
  for (std::uint32_t k = 0; k < rank; ++k) {
    std::vector<double> column(length);
    for (std::uint64_t i = 0; i < length; ++i) column[i] = static_cast<double>(at(i, k));
    // There is room for more columns than these, so nearly all random ones succeed.
    for (int tries = 0; !MakeOrthonormal(columns, &column); ++tries) {
      LOCKSTEP_CHECK(tries < 16, "no {} orthogonal columns of {} numbers", rank, length);
      for (double& number : column) number = static_cast<double>(random.NextUniform()) - 0.5;
    }
    for (std::uint64_t i = 0; i < length; ++i) at(i, k) = static_cast<float>(column[i]);
    columns.push_back(std::move(column));
  }
}

}  // namespace lockstep::worker
