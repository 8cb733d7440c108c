// What the program says of its samples' costs, and the plan that is made by it.
#include "coordinator/round/sample_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "coordinator/round/cost_plan.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const MemberId kOne{WorkerId(1), Incarnation(1)};
const MemberId kTwo{WorkerId(2), Incarnation(1)};

msg::Costs Piece(Epoch epoch, std::uint64_t from, const std::vector<std::uint16_t>& costs,
                 double scale = 1) {
  msg::Costs piece{epoch, from, scale, {}};
  for (const std::uint16_t cost : costs) {
    piece.costs.push_back(static_cast<std::byte>(cost & 0xff));
    piece.costs.push_back(static_cast<std::byte>(cost >> 8));
  }
  return piece;
}

TEST(SampleCosts, AreInUsualSamples) {
  SampleCosts costs;
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {300, 100, 200}, 0.5), 5, Epoch(0)));
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {0, 1}).value(), 1.5);
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {1, 3}).value(), 1.5);
  EXPECT_FALSE(costs.Of(Epoch(0), {2, 4}).has_value()) << "the rest is not known yet";
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(0), 3, {1000, 40}), 5, Epoch(0)));
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {2, 4}).value(), 11)
      << "another scale, and the same usual one";
  // Of another epoch the usual sample is the same: a worker's time per cost goes on.
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(1), 0, {50}), 5, Epoch(0)));
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(1), {0, 1}).value(), 0.5);
}

TEST(SampleCosts, OfAnEpochThatIsOverAreForgotten) {
  SampleCosts costs;
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {1, 1}), 2, Epoch(0)));
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(2), 0, {1, 1}), 2, Epoch(0)));
  EXPECT_FALSE(costs.Of(Epoch(2), {0, 1}).has_value()) << "too early";
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(1), 0, {1, 1}), 2, Epoch(1)));
  EXPECT_FALSE(costs.Of(Epoch(0), {0, 1}).has_value());
  EXPECT_TRUE(costs.Of(Epoch(1), {0, 2}).has_value());
}

// The one that told them is lost: the next one begins anew.
TEST(SampleCosts, ComeFromOneWorkerAfterTheOther) {
  SampleCosts costs;
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {2, 2}), 4, Epoch(0)));
  ASSERT_TRUE(costs.Take(kTwo, Piece(Epoch(0), 2, {9, 9}), 4, Epoch(0)));
  EXPECT_FALSE(costs.Of(Epoch(0), {2, 3}).has_value());
  ASSERT_TRUE(costs.Take(kTwo, Piece(Epoch(0), 0, {2, 2, 4}), 4, Epoch(0)));
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {2, 3}).value(), 2);
  ASSERT_TRUE(costs.Take(kOne, Piece(Epoch(0), 2, {9, 9}), 4, Epoch(0)));
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {2, 3}).value(), 2) << "what a first one still says is void";
}

TEST(SampleCosts, BeyondTheEpochAreRefused) {
  SampleCosts costs;
  EXPECT_FALSE(costs.Take(kOne, Piece(Epoch(0), 0, {1, 1, 1}), 2, Epoch(0)).ok());
  EXPECT_FALSE(costs.Take(kOne, Piece(Epoch(0), 3, {1}), 2, Epoch(0)).ok());
  EXPECT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {0, 0}), 2, Epoch(0)).ok());
  EXPECT_FALSE(costs.Of(Epoch(0), {0, 1}).has_value()) << "all of the first piece are 0";
}

// A worker may say what it likes.
TEST(SampleCosts, StayNumbers) {
  SampleCosts costs;
  EXPECT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {9, 9}, 1e308), 4, Epoch(0)).ok());
  EXPECT_FALSE(costs.Of(Epoch(0), {0, 1}).has_value());
  EXPECT_TRUE(costs.Take(kOne, Piece(Epoch(0), 0, {1, 1}, 1e-300), 4, Epoch(0)).ok());
  EXPECT_TRUE(costs.Take(kOne, Piece(Epoch(0), 2, {9, 9}, 1e308), 4, Epoch(0)).ok());
  EXPECT_DOUBLE_EQ(costs.Of(Epoch(0), {2, 4}).value(), 2e6);
}

using Units = std::vector<std::vector<std::uint32_t>>;

TEST(CostPlan, TheDearestGoesFirstToWhoIsFree) {
  const std::vector<float> costs = {1, 5, 2, 4, 3, 3};
  EXPECT_EQ(ShareByCost(costs, std::vector<std::uint32_t>{3, 3}, 0, {false, false}),
            (Units{{1, 5, 0}, {3, 4, 2}}));
}

TEST(CostPlan, FollowsTheSharesOfTheRule) {
  const std::vector<float> costs(12, 1);
  const Units units = ShareByCost(costs, std::vector<std::uint32_t>{8, 4, 0}, 0, {});
  EXPECT_EQ(units[0].size(), 8u);
  EXPECT_EQ(units[1].size(), 4u);
  EXPECT_TRUE(units[2].empty());
}

// Shares that differ by one are equal ones that do not go up.
TEST(CostPlan, SharesOfOneMoreAreEqual) {
  const std::vector<float> costs = {3, 1, 1, 1};
  EXPECT_EQ(ShareByCost(costs, std::vector<std::uint32_t>{2, 1, 1}, 0, {}),
            (Units{{0}, {1, 3}, {2}}));
}

TEST(CostPlan, WhatWasGivenBackGoesToTheTrusted) {
  const std::vector<float> costs = {1, 1, 9, 9};
  const Units units = ShareByCost(costs, std::vector<std::uint32_t>{2, 2}, 2, {false, true});
  EXPECT_THAT(units[1], testing::IsSupersetOf({0u, 1u}));
  // Nobody is trusted that gets something: then it is anybody.
  std::size_t all = 0;
  for (const auto& of : ShareByCost(costs, std::vector<std::uint32_t>{4, 0}, 2, {false, true})) {
    all += of.size();
  }
  EXPECT_EQ(all, 4u);
}

std::vector<std::vector<SampleRange>> PlannedRanges(const Plan& plan) {
  std::vector<std::vector<SampleRange>> ranges;
  for (const Assignment& assignment : plan.assignments) {
    ranges.emplace_back();
    for (const Unit& unit : assignment.units) ranges.back().push_back(unit.range);
  }
  return ranges;
}

// Round 1 has the positions 12 to 23 in six units; those of 14 and 15 cost as much as all others.
Story ToldCosts(const std::string& policy) {
  Story s("costs", {.workers = 2, .policy = policy, .min_workers = 2});
  s.Begin();
  std::vector<std::uint16_t> costs(24, 10);
  costs[14] = costs[15] = 50;
  s.From(0, Piece(Epoch(0), 0, costs));
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  return s;
}

TEST(PlanByCost, SharesOutWhatCostsMuch) {
  const Story s = ToldCosts("balance");
  EXPECT_THAT(s.text(),
              HasSubstr("the program says what its samples cost: units of this round cost "));
  EXPECT_THAT(PlannedRanges(*s.Commit(0).next),
              ElementsAre(ElementsAre(SampleRange{14, 16}),
                          ElementsAre(SampleRange{12, 14}, SampleRange{16, 18}, SampleRange{18, 20},
                                      SampleRange{20, 22}, SampleRange{22, 24})));
}

// Later samples are far from what the first ones were: plans stay in bounds.
TEST(PlanByCost, UnitsOfARoundCostSixteenUsualOnesAtMost) {
  Story s("costs", {.workers = 2, .policy = "balance", .min_workers = 2});
  s.Begin();
  s.From(0, Piece(Epoch(0), 0, std::vector<std::uint16_t>(12, 1)));
  s.From(0, Piece(Epoch(0), 12, std::vector<std::uint16_t>(12, 1), 1e30));
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  EXPECT_THAT(s.text(), HasSubstr("units of this round cost 16.00 to 16.00 of a usual one"));
}

// What comes when is no matter of the job's bits there.
TEST(PlanByCost, IsNotUsedWhereThePlanAloneMakesTheBits) {
  const Story s = ToldCosts("full");
  EXPECT_THAT(s.text(), Not(HasSubstr("the program says what its samples cost")));
  EXPECT_EQ(PlannedRanges(*s.Commit(0).next).front().size(), 3u);
}

// A worker that takes longer for longer samples is as quick as the others.
TEST(PlanByCost, AUnitsTimeIsThatOfAUsualOne) {
  Story s = ToldCosts("balance");
  s.Wait(0.2);
  s.Sealed(0, 50, 1);
  s.Sealed(1, 10, 5);
  s.AllPublishAndApply({0, 1});
  const auto status = s.Status();
  EXPECT_GT(status.members[0].unit_seconds, 0.013);
  EXPECT_NEAR(status.members[0].unit_seconds, status.members[1].unit_seconds,
              0.01 * status.members[1].unit_seconds);
}

}  // namespace
}  // namespace lockstep::coordinator
