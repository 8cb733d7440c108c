#include "coordinator/round/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/checkpoint/checkpoint_manifest.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;

std::vector<SampleRange> RangesOf(const PlannedUnits& plan) {
  std::vector<SampleRange> ranges;
  for (const Unit& unit : plan.units) ranges.push_back(unit.range);
  return ranges;
}

TEST(Sampler, CutsARoundIntoUnits) {
  Sampler sampler(100, 10, 4);
  const PlannedUnits plan = sampler.PlanRound();
  EXPECT_THAT(RangesOf(plan), ElementsAre(SampleRange{0, 2}, SampleRange{2, 5}, SampleRange{5, 7},
                                          SampleRange{7, 10}));
  EXPECT_EQ(plan.samples, 10u);
  EXPECT_FALSE(plan.exact);
  EXPECT_EQ(plan.units[3].index, UnitIndex(3));
}

TEST(Sampler, CutsTheNextRoundOtherwiseWhenItIsTold) {
  Sampler sampler(100, 12, 4);
  EXPECT_EQ(sampler.PlanRound().units.size(), 4u);
  sampler.Settle({});
  sampler.SetUnits(12);
  EXPECT_EQ(sampler.PlanRound().units.size(), 12u);
}

TEST(Sampler, TheLastRoundsAreShorterAndTheNextEpochFollows) {
  Sampler sampler(7, 4, 2);
  sampler.Settle(RangesOf(sampler.PlanRound()));
  const PlannedUnits tail = sampler.PlanRound();
  EXPECT_THAT(RangesOf(tail), ElementsAre(SampleRange{4, 5}, SampleRange{5, 7}));
  EXPECT_TRUE(tail.exact);
  sampler.Settle(RangesOf(tail));
  EXPECT_EQ(sampler.epoch(), Epoch(1));
  EXPECT_EQ(sampler.PlanRound().units.front().range.from, 0u);
}

TEST(Sampler, WhatIsGivenBackIsServedFirst) {
  Sampler sampler(40, 8, 4);
  sampler.PlanRound();
  sampler.Settle({{0, 2}, {4, 6}});
  EXPECT_EQ(sampler.given_back(), 4u);
  const PlannedUnits plan = sampler.PlanRound();
  EXPECT_EQ(plan.given_back, 2u);
  EXPECT_THAT(RangesOf(plan), ElementsAre(SampleRange{2, 4}, SampleRange{6, 8}, SampleRange{8, 10},
                                          SampleRange{10, 12}));
}

TEST(Sampler, AnEpochDoesNotEndWithWorkGivenBack) {
  Sampler sampler(8, 8, 4);
  EXPECT_TRUE(sampler.PlanRound().exact);
  sampler.Settle({{0, 2}, {4, 8}});
  EXPECT_EQ(sampler.epoch(), Epoch(0));
  const PlannedUnits rest = sampler.PlanRound();
  EXPECT_THAT(RangesOf(rest), ElementsAre(SampleRange{2, 4}));
  EXPECT_TRUE(rest.exact);
}

TEST(Sampler, ACopyUndoes) {
  Sampler sampler(40, 8, 4);
  sampler.PlanRound();
  const Sampler before = sampler;
  sampler.Settle({{0, 8}});
  sampler = before;
  sampler.Settle({{0, 4}});
  EXPECT_EQ(sampler.given_back(), 4u);
}

TEST(Sampler, ContinuesFromItsState) {
  Sampler sampler(40, 8, 4);
  sampler.PlanRound();
  sampler.Settle({{0, 2}, {4, 6}});
  Sampler again(sampler.State(), 8, 4);
  EXPECT_EQ(again.State(), sampler.State());
  EXPECT_EQ(RangesOf(again.PlanRound()), RangesOf(sampler.PlanRound()));
}

// By what was counted, so that an epoch is as long in many short rounds as in few whole ones.
TEST(Sampler, TellsHowFarTheJobIsInWholeRounds) {
  Sampler whole(20, 8, 4);  // three rounds, the last one of half as many
  for (int round = 0; round < 6; ++round) {
    EXPECT_EQ(whole.WholeRounds(), round);
    whole.Settle(RangesOf(whole.PlanRound()));
  }
  Sampler halves(16, 8, 2);
  for (int round = 0; round < 8; ++round) {
    EXPECT_EQ(halves.WholeRounds(), 0.5 * round);
    const auto ranges = RangesOf(halves.PlanRound());
    halves.Settle({ranges.front()});
  }
  // Of the same job, gone on with by rounds of twice as many.
  const Sampler again(halves.State(), 16, 2);
  EXPECT_EQ(again.WholeRounds(), 2);
}

using SamplerDeathTest = ::testing::Test;

TEST(SamplerDeathTest, CountsNothingTwiceAndNothingForeign) {
  Sampler sampler(40, 8, 4);
  sampler.PlanRound();
  EXPECT_DEATH(sampler.Settle({{0, 2}, {0, 2}}), "count twice");
  EXPECT_DEATH(sampler.Settle({{8, 10}}), "not of this round");
}

TEST(JobState, SurvivesJson) {
  JobState state;
  state.next_round = RoundId(12);
  state.updates = 12;
  state.sampler = {100, Epoch(3), {{4, 9}, {50, 100}}};
  state.totals = {12, 3, 345, 1, 2, 3};
  state.dataset_digest = "abc";
  state.test_samples = 7;
  state.parameter_count = 99;
  state.state_tensors = 2;
  auto read = JobStateFromJson(ToJson(state));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->next_round, state.next_round);
  EXPECT_EQ(read->sampler, state.sampler);
  EXPECT_EQ(read->totals.samples_moved, 3u);
  EXPECT_EQ(read->dataset_digest, "abc");
  EXPECT_EQ(read->state_tensors, 2u);
}

TEST(JobState, NonsenseIsAnError) {
  EXPECT_FALSE(JobStateFromJson("{").ok());
  EXPECT_FALSE(JobStateFromJson("{}").ok());
  JobState state;
  state.parameter_count = 1;
  state.sampler = {100, Epoch(0), {{9, 4}}};
  EXPECT_FALSE(JobStateFromJson(ToJson(state)).ok());
  state.sampler.uncounted = {{4, 101}};
  EXPECT_FALSE(JobStateFromJson(ToJson(state)).ok());
}

}  // namespace
}  // namespace lockstep::coordinator
