#include "worker/runtime/epoch_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/permutation.h"

namespace lockstep::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EpochCostsTest : public testing::Test {
 protected:
  EpochCosts Of(std::vector<float> by_sample, bool exact = false) {
    return {std::move(by_sample), kSeed, exact,
            [this](event::CostsGiven costs) { told_.push_back(std::move(costs)); }};
  }

  static constexpr std::uint64_t kSeed = 5;
  std::vector<event::CostsGiven> told_;
};

TEST_F(EpochCostsTest, OfSamplesAreToldInTheOrderOfTheEpochAndOfTheNextOne) {
  EpochCosts costs = Of({1, 2, 4, 8});
  const auto order = EpochOrder(kSeed, Epoch(3), 4);
  costs.OnEpoch(Epoch(3), order);
  ASSERT_EQ(told_.size(), 2u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto of_epoch = EpochOrder(kSeed, Epoch(3 + i), 4);
    EXPECT_EQ(told_[i].epoch, Epoch(3 + i));
    for (std::size_t at = 0; at < 4; ++at) {
      EXPECT_NEAR(told_[i].scale * (*told_[i].costs)[at], 1 << of_epoch[at], 1e-3);
    }
  }
  costs.OnEpoch(Epoch(3), order);
  EXPECT_EQ(told_.size(), 2u) << "once is enough";
  costs.OnEpoch(Epoch(4), EpochOrder(kSeed, Epoch(4), 4));
  ASSERT_EQ(told_.size(), 3u);
  EXPECT_EQ(told_[2].epoch, Epoch(5)) << "epoch 4 was told before";
  costs.TellAgain();
  ASSERT_EQ(told_.size(), 5u);
  EXPECT_EQ(told_[3].epoch, Epoch(4));
  EXPECT_EQ(told_[4].epoch, Epoch(5));
}

TEST_F(EpochCostsTest, GoAsTheyAreWhereRunsAreBoundedByThem) {
  Of({1, 2, 4, 8}).Tell(Epoch(0), std::vector<float>{3, 1, 4, 1});
  EXPECT_EQ(told_.back().exact, nullptr);
  EpochCosts costs = Of({1, 2, 4, 8}, /*exact=*/true);
  costs.OnEpoch(Epoch(0), EpochOrder(kSeed, Epoch(0), 4));
  ASSERT_NE(told_.back().exact, nullptr);
  const auto order = EpochOrder(kSeed, Epoch(1), 4);
  for (std::size_t at = 0; at < 4; ++at) {
    EXPECT_EQ((*told_.back().exact)[at], static_cast<float>(1 << order[at]));
  }
}

TEST_F(EpochCostsTest, OfTheProgramsOwnOrderAreToldAsTheyAre) {
  EpochCosts costs = Of({});
  costs.OnEpoch(Epoch(0), EpochOrder(kSeed, Epoch(0), 3));
  EXPECT_TRUE(told_.empty());
  costs.Tell(Epoch(0), std::vector<float>{0, 1, 0.5f});
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(*told_[0].costs, ElementsAre(0, 65535, 32768));
}

TEST(CheckCosts, WhatCannotBeIsOneLine) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(CheckCosts(std::vector<float>{0, 1}, 2).ok());
  EXPECT_THAT(CheckCosts(std::vector<float>{1}, 2).error().message,
              HasSubstr("costs of 1 samples, and there are 2"));
  EXPECT_THAT(CheckCosts(std::vector<float>{1, -1}, 2).error().message,
              HasSubstr("the cost of sample 1 is -1: it is at least 0"));
  EXPECT_THAT(CheckCosts(std::vector<float>{none, 1}, 2).error().message, HasSubstr("sample 0"));
  EXPECT_THAT(CheckCosts(std::vector<float>{0, 0}, 2).error().message, HasSubstr("all 0"));
}

}  // namespace
}  // namespace lockstep::worker
