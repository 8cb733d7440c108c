// Products with factors of low rank, and what makes a factor's columns orthonormal.
#include "worker/memory/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/digest.h"

namespace lockstep::worker {
namespace {

std::vector<float> Numbers(std::uint64_t count, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = random.NextUniform() - 0.5f;
  return numbers;
}

// Also shapes whose rows do not fill a vector unit, or fill it and a rest.
const std::vector<MatrixShape> kShapes = {
    {1, 1, 1}, {2, 3, 1}, {5, 40, 2}, {70, 33, 8}, {16, 16, 3}};

TEST(LowRank, ProductsAreThoseOfMatrices) {
  for (const MatrixShape& shape : kShapes) {
    const auto [m, n, r] = shape;
    const std::vector<float> matrix = Numbers(m * n, 1);
    const std::vector<float> p = Numbers(m * r, 2);
    const std::vector<float> q = Numbers(r * n, 3);
    std::vector<float> times_q(m * r);
    TimesColumnFactor(shape, matrix.data(), q.data(), times_q.data());
    std::vector<float> times_p(r * n);
    AddTimesRowFactor(shape, matrix.data(), p.data(), times_p.data());
    for (std::uint32_t k = 0; k < r; ++k) {
      for (std::uint64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::uint64_t j = 0; j < n; ++j) sum += double{matrix[i * n + j]} * q[k * n + j];
        EXPECT_NEAR(times_q[i * r + k], sum, 1e-5) << m << " x " << n;
      }
      for (std::uint64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::uint64_t i = 0; i < m; ++i) sum += double{matrix[i * n + j]} * p[i * r + k];
        EXPECT_NEAR(times_p[k * n + j], sum, 1e-5) << m << " x " << n;
      }
    }
    std::vector<float> left = matrix;
    SubtractProduct(shape, p.data(), q.data(), left.data());
    std::vector<float> product(m * n);
    Product(shape, p.data(), q.data(), 0, m * n, product.data());
    for (std::uint64_t i = 0; i < m * n; ++i) {
      double sum = 0;
      for (std::uint32_t k = 0; k < r; ++k) sum += double{p[i / n * r + k]} * q[k * n + i % n];
      EXPECT_NEAR(product[i], sum, 1e-5);
      EXPECT_NEAR(left[i], matrix[i] - sum, 1e-5);
    }
  }
}

TEST(LowRank, APartOfAProductHasTheBitsOfTheWhole) {
  const MatrixShape shape{7, 45, 3};
  const std::vector<float> p = Numbers(7 * 3, 2);
  const std::vector<float> q = Numbers(3 * 45, 3);
  std::vector<float> whole(7 * 45);
  Product(shape, p.data(), q.data(), 0, whole.size(), whole.data());
  for (std::uint64_t first = 0; first < whole.size(); first += 11) {
    for (std::uint64_t n = 1; first + n <= whole.size(); n += 37) {
      std::vector<float> part(n);
      Product(shape, p.data(), q.data(), first, n, part.data());
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.data() + first)) << first << ", " << n;
    }
  }
}

double DotOfColumns(const std::vector<float>& factor, std::uint64_t length, std::uint32_t rank,
                    bool by_rows, std::uint32_t a, std::uint32_t b) {
  double sum = 0;
  for (std::uint64_t i = 0; i < length; ++i) {
    const auto at = [&](std::uint32_t k) {
      return double{by_rows ? factor[i * rank + k] : factor[k * length + i]};
    };
    sum += at(a) * at(b);
  }
  return sum;
}

void ExpectOrthonormal(const std::vector<float>& factor, std::uint64_t length, std::uint32_t rank,
                       bool by_rows) {
  for (std::uint32_t a = 0; a < rank; ++a) {
    for (std::uint32_t b = 0; b <= a; ++b) {
      EXPECT_NEAR(DotOfColumns(factor, length, rank, by_rows, a, b), a == b ? 1 : 0, 1e-5)
          << a << " and " << b;
    }
  }
}

TEST(LowRank, ColumnsBecomeOrthonormalWhateverTheyAre) {
  constexpr std::uint64_t kLength = 50;
  constexpr std::uint32_t kHigh = 6;
  for (const bool by_rows : {false, true}) {
    std::vector<float> numbers = Numbers(kLength * kHigh, 5);
    Orthonormalize(kLength, kHigh, by_rows, RandomStream(1), numbers.data());
    ExpectOrthonormal(numbers, kLength, kHigh, by_rows);

    // Nothing is there; all columns are the same; nearly so; some are no numbers; very large or
    // small.
    std::vector<std::vector<float>> odd(6, std::vector<float>(kLength * kHigh));
    std::fill(odd[1].begin(), odd[1].end(), 3.0f);
    odd[2] = odd[1];
    odd[2][7] += 1e-6f;
    odd[3] = numbers;
    odd[3][11] = std::numeric_limits<float>::quiet_NaN();
    odd[3][200] = std::numeric_limits<float>::infinity();
    odd[4] = numbers;
    for (float& number : odd[4]) number *= 1e37f;
    odd[5] = numbers;
    for (float& number : odd[5]) number *= 1e-37f;
    for (std::vector<float>& factor : odd) {
      std::vector<float> again = factor;
      Orthonormalize(kLength, kHigh, by_rows, RandomStream(1), factor.data());
      ExpectOrthonormal(factor, kLength, kHigh, by_rows);
      Orthonormalize(kLength, kHigh, by_rows, RandomStream(1), again.data());
      EXPECT_EQ(again, factor) << "random numbers are those of the stream";
    }
  }
}

// On every machine, with whatever vector units (I1).
TEST(LowRank, TheBitsAreTheseEverywhere) {
  const MatrixShape shape{70, 133, 5};
  const std::vector<float> matrix = Numbers(70 * 133, 1);
  std::vector<float> q = Numbers(5 * 133, 2);
  Orthonormalize(133, 5, /*by_rows=*/false, RandomStream(3), q.data());
  EXPECT_EQ(DigestOf(q).low, 1481294196317935754u);
  std::vector<float> p(70 * 5);
  TimesColumnFactor(shape, matrix.data(), q.data(), p.data());
  EXPECT_EQ(DigestOf(p).low, 44028005984264590u);
  Orthonormalize(70, 5, /*by_rows=*/true, RandomStream(3), p.data());
  std::ranges::fill(q, 0.0f);
  AddTimesRowFactor(shape, matrix.data(), p.data(), q.data());
  EXPECT_EQ(DigestOf(q).low, 14811215254762551448u);
  std::vector<float> product(70 * 133);
  Product(shape, p.data(), q.data(), 0, product.size(), product.data());
  EXPECT_EQ(DigestOf(product).low, 3423037401789182506u);
  SubtractProduct(shape, p.data(), q.data(), product.data());
  EXPECT_LT(std::ranges::max(product), 1e-5f);
}

TEST(LowRank, WhatAFactorSpansStays) {
  constexpr std::uint64_t kLength = 40;
  const std::vector<float> was = Numbers(kLength * 2, 9);
  std::vector<float> is = was;
  Orthonormalize(kLength, 2, /*by_rows=*/false, RandomStream(1), is.data());
  for (std::uint32_t column = 0; column < 2; ++column) {
    std::vector<double> left(was.begin() + column * kLength, was.begin() + (column + 1) * kLength);
    for (std::uint32_t k = 0; k < 2; ++k) {
      double along = 0;
      for (std::uint64_t i = 0; i < kLength; ++i)
        along += was[column * kLength + i] * is[k * kLength + i];
      for (std::uint64_t i = 0; i < kLength; ++i) left[i] -= along * is[k * kLength + i];
    }
    for (const double number : left) EXPECT_NEAR(number, 0, 1e-5);
  }
}

}  // namespace
}  // namespace lockstep::worker
