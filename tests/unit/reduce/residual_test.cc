// What is kept of gradients, over parts that count and parts that do not. The gradients are whole
// numbers, so the account is exact.
#include "worker/memory/residual.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "worker/memory/sparse.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kCount = 3000;  // two whole blocks and one that is not
constexpr std::uint32_t kKept = 100;

class ResidualTest : public ::testing::Test {
 protected:
  // A gradient whose places of large numbers depend on `which`.
  static std::vector<float> Gradient(std::uint64_t which) {
    std::vector<float> gradient(kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      gradient[i] = static_cast<float>((i * 37 + which * 1009) % 251) - 125.0f;
    }
    return gradient;
  }
  static void Add(const std::vector<float>& of, std::vector<float>* to) {
    for (std::size_t i = 0; i < to->size(); ++i) (*to)[i] += of[i];
  }

  // The bytes that are sent.
  std::vector<std::byte> Compute(std::uint32_t work, std::uint8_t part,
                                 const std::vector<float>& gradient) {
    const PartIndex index(part);
    residual_.Begin(index);
    std::ranges::copy(gradient, residual_.Gradient(index));
    const std::uint64_t block = SparseBlockNumbers(kKept, 4) * 4;
    std::vector<std::byte> bytes(3 * block);
    // In two buckets, the second one first.
    EXPECT_TRUE(residual_.Send({work, index}, 1024, kCount - 1024, form_, bytes.data() + block));
    EXPECT_TRUE(residual_.Send({work, index}, 0, 1024, form_, bytes.data()));
    return bytes;
  }
  static std::vector<float> Sent(const std::vector<std::byte>& bytes) {
    std::vector<float> dense(3 * kSparseBlock);
    for (std::size_t b = 0; b < 3; ++b) {
      AddSparse(NumberType::kFp32, kKept, bytes.data() + b * bytes.size() / 3, 1,
                dense.data() + b * kSparseBlock);
    }
    dense.resize(kCount);
    return dense;
  }
  std::vector<float> Kept() const { return {residual_.kept().begin(), residual_.kept().end()}; }
  void Start(std::vector<SealedPart> applied, bool copied = false) {
    residual_.OnStart(applied, copied);
  }

  std::vector<float> kept_ = std::vector<float>(kCount);
  std::vector<float> first_ = std::vector<float>(kCount);
  std::vector<float> second_ = std::vector<float>(kCount);
  LargestOnly form_{NumberType::kFp32, kKept};
  Residual residual_{kept_.data(), {first_.data(), second_.data()}, kCount};
};

TEST_F(ResidualTest, WhatWasSentAndWhatIsKeptAreAllGradients) {
  std::vector<float> gradients(kCount);
  std::vector<float> sent(kCount);
  Start({});
  for (std::uint32_t work = 1; work <= 20; ++work) {
    const std::vector<float> gradient = Gradient(work);
    Add(gradient, &gradients);
    Add(Sent(Compute(work, 0, gradient)), &sent);
    Start({{work, PartIndex(0)}});
    std::vector<float> account = sent;
    Add(Kept(), &account);
    ASSERT_EQ(account, gradients) << work;
  }
}

TEST_F(ResidualTest, OfAPartThatDoesNotCountItKnowsNothing) {
  Start({});
  Compute(1, 0, Gradient(1));
  Start({{1, PartIndex(0)}});
  const std::vector<float> before = Kept();
  EXPECT_NE(before, std::vector<float>(kCount));
  const std::vector<std::byte> bytes = Compute(2, 0, Gradient(2));
  Compute(2, 1, Gradient(3));
  EXPECT_EQ(Kept(), before);
  Start({});
  EXPECT_EQ(Kept(), before);
  // Computed again it is the same.
  EXPECT_EQ(Compute(3, 0, Gradient(2)), bytes);
}

TEST_F(ResidualTest, TwoPartsOfARoundAreAllGradientsAndSoIsEither) {
  for (const bool first : {true, false}) {
    for (const bool second : {true, false}) {
      std::ranges::fill(kept_, 0.0f);
      residual_ = Residual(kept_.data(), {first_.data(), second_.data()}, kCount);
      Start({});
      std::vector<float> account = Gradient(1);
      std::vector<float> sent = Sent(Compute(1, 0, Gradient(1)));
      Start({{1, PartIndex(0)}});
      const std::vector<float> of_first = Sent(Compute(2, 0, Gradient(2)));
      const std::vector<float> of_second = Sent(Compute(2, 1, Gradient(3)));
      std::vector<SealedPart> applied;
      if (first) {
        applied.push_back({2, PartIndex(0)});
        Add(Gradient(2), &account);
        Add(of_first, &sent);
      }
      if (second) {
        applied.push_back({2, PartIndex(1)});
        Add(Gradient(3), &account);
        Add(of_second, &sent);
      }
      Start(applied);
      Add(Kept(), &sent);
      EXPECT_EQ(sent, account) << first << second;
    }
  }
}

TEST_F(ResidualTest, WhatIsSaidAgainCountsOnce) {
  Start({});
  Compute(1, 0, Gradient(1));
  Compute(1, 1, Gradient(2));
  const std::vector<SealedPart> both = {{1, PartIndex(0)}, {1, PartIndex(1)}};
  Start(both);
  const std::vector<float> kept = Kept();
  Start(both);
  EXPECT_EQ(Kept(), kept);
}

// What goes while the gradient is still read: the same, and nobody sees it change.
TEST_F(ResidualTest, EarlyOrLateTheSameIsSentAndKept) {
  for (const NumberType type : {NumberType::kFp32, NumberType::kBf16}) {
    LargestOnly form(type, kKept);
    for (const std::uint8_t part : {0, 1}) {
      const std::uint64_t bytes =
          3 * SparseBlockNumbers(kKept, NumberBytes(type)) * NumberBytes(type);
      std::vector<std::byte> sent[2];
      std::vector<float> kept[2];
      for (const bool early : {false, true}) {
        std::ranges::fill(kept_, 0.0f);
        residual_ = Residual(kept_.data(), {first_.data(), second_.data()}, kCount);
        Start({});
        Compute(1, 0, Gradient(1));
        Start({{1, PartIndex(0)}});
        const SealedPart of{2, PartIndex(part)};
        residual_.Begin(of.part);
        const std::vector<float> gradient = Gradient(2);
        std::ranges::copy(gradient, residual_.Gradient(of.part));
        sent[early].resize(bytes);
        if (early) {
          EXPECT_TRUE(residual_.SendEarly(of, 0, kCount, form, sent[early].data()));
          EXPECT_TRUE(std::ranges::equal(gradient, std::span(residual_.Gradient(of.part), kCount)));
          residual_.Settle(of, 0, kCount, form, sent[early].data());
        } else {
          EXPECT_TRUE(residual_.Send(of, 0, kCount, form, sent[early].data()));
        }
        Start({of});
        kept[early] = Kept();
      }
      EXPECT_EQ(sent[0], sent[1]);
      EXPECT_EQ(kept[0], kept[1]);
    }
  }
}

TEST_F(ResidualTest, WithCopiedParametersItBeginsAtZero) {
  Start({});
  const std::vector<std::byte> bytes = Compute(1, 0, Gradient(1));
  Start({{1, PartIndex(0)}});
  Start({}, /*copied=*/true);
  EXPECT_EQ(Kept(), std::vector<float>(kCount));
  EXPECT_EQ(Compute(2, 0, Gradient(1)), bytes);
}

// The numbers of works begin anew, and say nothing of those before.
TEST_F(ResidualTest, WithTheNextCoordinatorItGoesOn) {
  for (const bool counts : {true, false}) {
    std::ranges::fill(kept_, 0.0f);
    residual_ = Residual(kept_.data(), {first_.data(), second_.data()}, kCount);
    Start({});
    std::vector<float> account = Gradient(1);
    std::vector<float> sent = Sent(Compute(1, 0, Gradient(1)));
    Start({{1, PartIndex(0)}});
    const std::vector<float> of_last = Sent(Compute(2, 0, Gradient(2)));
    std::vector<SealedPart> applied;
    if (counts) {
      applied.push_back({2, PartIndex(0)});
      Add(Gradient(2), &account);
      Add(of_last, &sent);
    }
    residual_.OnNewNumbers(applied, /*copied=*/false);
    Start({});
    for (std::uint32_t work = 1; work <= 2; ++work) {
      Add(Gradient(work + 2), &account);
      Add(Sent(Compute(work, 0, Gradient(work + 2))), &sent);
      Start({{work, PartIndex(0)}});
    }
    Add(Kept(), &sent);
    EXPECT_EQ(sent, account) << counts;
    residual_.OnNewNumbers({}, /*copied=*/true);
    EXPECT_EQ(Kept(), std::vector<float>(kCount));
  }
}

}  // namespace
}  // namespace lockstep::worker
