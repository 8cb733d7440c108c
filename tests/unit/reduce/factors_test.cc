// Gradients as factors: what is sent and what is left are the gradient, the product of the sum is
// the sum of the products, and in some rounds all of a matrix gets through.
#include "worker/memory/factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kCount = 60 * 40 + 90 + 50 * 100 + 30;
constexpr std::uint32_t kRank = 4;

// Two matrices with plain numbers between and behind them, in two buckets.
Layout LayoutOf(NumberType type) {
  return Layout({{2'490, kCount - 2'490}, {0, 2'490}}, 6'000 * sizeof(float), NumberBytes(type),
                Layout::Copies::kBuckets,
                {.rank = kRank, .matrices = {{0, 60, 40}, {2'490, 50, 100}}});
}

std::vector<float> Gradient(std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<float> gradient(kCount);
  for (float& number : gradient) number = random.NextUniform() - 0.5f;
  return gradient;
}

class FactorsTest : public ::testing::TestWithParam<NumberType> {
 protected:
  // What becomes of the gradient in this round; `numbers` becomes what is left.
  std::vector<float> Pass(RoundId round, std::vector<float>* numbers) {
    std::vector<float> update(kCount);
    for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
      const FloatRange& bucket = layout_.bucket(b);
      const Factors::Known known = factors_.KnownIn(round, b, last_.data());
      const std::uint64_t count = layout_.InContribution(bucket).count;
      std::vector<std::byte> sent(count * layout_.number_bytes());
      EXPECT_TRUE(
          factors_.Send(known, numbers->data() + bucket.first, nullptr, sent.data(), &room_));
      factors_.Settle(known, sent.data(), nullptr, numbers->data() + bucket.first, &room_);
      std::vector<float> sums(count);
      factors_.Read(sent.data(), 0, count, sums.data());
      factors_.Gradient(known, sums.data(), bucket, update.data() + bucket.first);
      factors_.Keep(known, sums.data(), last_.data());
    }
    return update;
  }

  const Layout layout_ = LayoutOf(GetParam());
  const Factors factors_{layout_, GetParam(), 7};
  std::vector<float> last_ = std::vector<float>(kCount);
  Factors::Room room_;
};

TEST_P(FactorsTest, WhatIsSentAndWhatIsLeftAreTheGradient) {
  for (std::uint64_t round = 3; round < 7; ++round) {
    const std::vector<float> gradient = Gradient(round);
    std::vector<float> left = gradient;
    const std::vector<float> update = Pass(RoundId(round), &left);
    double sent = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(update[i] + left[i], gradient[i], 1e-5) << i;
      if (i < 2'400) sent += double{update[i]} * update[i];
    }
    EXPECT_GT(sent, 1) << "nothing of the first matrix was sent";
    if (GetParam() == NumberType::kFp32) {
      EXPECT_EQ(left[2'430], 0) << "a plain number has something left";
    }
  }
}

// Where something was kept before, it is as if that were in the gradient.
TEST_P(FactorsTest, WhatWasKeptIsSentWithIt) {
  const std::vector<float> gradient = Gradient(1);
  const std::vector<float> kept = Gradient(2);
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
    const FloatRange& bucket = layout_.bucket(b);
    for (const RoundId round : {RoundId(4), RoundId(5)}) {
      const Factors::Known known = factors_.KnownIn(round, b, last_.data());
      const std::uint64_t bytes = layout_.InContribution(bucket).count * layout_.number_bytes();
      std::vector<float> apart(gradient.begin() + bucket.first, gradient.begin() + bucket.end());
      const float* with = kept.data() + bucket.first;
      std::vector<std::byte> sent(bytes);
      ASSERT_TRUE(factors_.Send(known, apart.data(), with, sent.data(), &room_));
      EXPECT_TRUE(std::equal(apart.begin(), apart.end(), gradient.data() + bucket.first))
          << "it may still be read";
      factors_.Settle(known, sent.data(), with, apart.data(), &room_);

      std::vector<float> sum(gradient.begin() + bucket.first, gradient.begin() + bucket.end());
      for (std::uint64_t i = 0; i < bucket.count; ++i) sum[i] += with[i];
      std::vector<std::byte> expected(bytes);
      ASSERT_TRUE(factors_.Send(known, sum.data(), nullptr, expected.data(), &room_));
      factors_.Settle(known, expected.data(), nullptr, sum.data(), &room_);
      EXPECT_EQ(sent, expected);
      EXPECT_EQ(apart, sum);
    }
  }
}

// A matrix of no higher rank than the factors is there as a whole with the second round, for which
// the first one has found what its rows span; and so is what the first one has left.
TEST_P(FactorsTest, AMatrixOfTheFactorsRankIsSentInTwoRounds) {
  RandomStream random(3);
  std::vector<float> gradient(kCount);
  for (const auto& [first, rows, columns] : {Matrix{0, 60, 40}, Matrix{2'490, 50, 100}}) {
    for (std::uint32_t k = 0; k < kRank; ++k) {
      std::vector<float> p(rows);
      std::vector<float> q(columns);
      for (float& number : p) number = random.NextUniform() - 0.5f;
      for (float& number : q) number = random.NextUniform() - 0.5f;
      for (std::uint64_t i = 0; i < rows * columns; ++i) {
        gradient[first + i] += p[i / columns] * q[i % columns];
      }
    }
  }
  std::vector<float> left = gradient;
  std::vector<float> all = Pass(RoundId(0), &left);
  double missing = 0;
  for (const float number : left) missing = std::max(missing, std::fabs(double{number}));
  EXPECT_GT(missing, 0.1) << "one round is enough";
  for (std::uint64_t i = 0; i < kCount; ++i) left[i] += gradient[i];
  const std::vector<float> second = Pass(RoundId(1), &left);
  const double exact = GetParam() == NumberType::kFp32 ? 1e-5 : 0.05;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(all[i] + second[i], 2 * gradient[i], exact) << i;
  }
}

// However large it is: error feedback sends all of what stays the same in the end.
TEST_P(FactorsTest, OfAGradientThatStaysAllIsSentInTime) {
  const std::vector<float> gradient = Gradient(11);
  std::vector<float> left(kCount);
  std::vector<double> sent(kCount);
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    for (std::uint64_t i = 0; i < kCount; ++i) left[i] += gradient[i];
    const std::vector<float> update = Pass(RoundId(static_cast<std::uint64_t>(round)), &left);
    for (std::uint64_t i = 0; i < kCount; ++i) sent[i] += double{update[i]};
  }
  double squares = 0;
  double missing = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    squares += double{gradient[i]} * gradient[i];
    missing += std::pow(sent[i] / kRounds - double{gradient[i]}, 2);
  }
  EXPECT_LT(missing, 0.1 * squares);
}

TEST_P(FactorsTest, ARoundOfNothingForgetsNothing) {
  std::vector<float> left = Gradient(2);
  (void)Pass(RoundId(0), &left);
  const std::vector<float> kept = last_;
  EXPECT_NE(kept, std::vector<float>(kCount));
  std::vector<float> nothing(kCount);
  (void)Pass(RoundId(1), &nothing);
  (void)Pass(RoundId(2), &nothing);
  EXPECT_EQ(last_, kept);
}

TEST_P(FactorsTest, WhatIsNoNumberIsNotSent) {
  std::vector<float> numbers(kCount, 1.0f);
  const FloatRange& bucket = layout_.bucket(0);
  const Factors::Known known = factors_.KnownIn(RoundId(0), 0, last_.data());
  std::vector<std::byte> sent(layout_.InContribution(bucket).count * layout_.number_bytes());
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    numbers[bucket.first + 17] = odd;
    std::ranges::fill(sent, std::byte{0});
    EXPECT_FALSE(factors_.Send(known, numbers.data() + bucket.first, nullptr, sent.data(), &room_));
    std::vector<float> read(layout_.InContribution(bucket).count);
    factors_.Read(sent.data(), 0, read.size(), read.data());
    EXPECT_TRUE(std::ranges::all_of(read, [](float number) { return std::isnan(number); }))
        << "owners would not see it";
  }
  // Each is a number, their products are not.
  std::fill(numbers.begin(), numbers.end(), 3e38f);
  EXPECT_FALSE(factors_.Send(known, numbers.data() + bucket.first, nullptr, sent.data(), &room_));
}

INSTANTIATE_TEST_SUITE_P(Types, FactorsTest,
                         ::testing::Values(NumberType::kFp32, NumberType::kBf16,
                                           NumberType::kFp16));

}  // namespace
}  // namespace lockstep::worker
