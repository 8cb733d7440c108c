#include "policies/flexrr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/registry.h"
#include "policies/work_none.h"
#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<WorkRule> Rule(FlexrrOptions options = {}) {
  return MakeFlexrr(options, MakeWorkNone());
}

// As a job has it.
TEST(Flexrr, SharesFollowDifferencesThatLast) {
  PolicySection section;
  section.name = "flexrr";
  auto policy = MakePolicy(section, 4, nullptr);
  ASSERT_TRUE(policy.ok());
  RoundModel round(4, 16, milliseconds(10));
  round.KnowUnitTimes();
  round.worker(3).unit_time_mean = milliseconds(40);
  const auto play = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) policy->work->OnCommitted(round.view());
    return policy->work->Share(round.view().workers, 64);
  };
  EXPECT_THAT(play(7), ElementsAre(16, 16, 16, 16)) << "it may pass";
  EXPECT_THAT(play(1), ElementsAre(20, 20, 20, 4));
  round.KnowUnitTimes();
  EXPECT_THAT(play(1), ElementsAre(16, 16, 16, 16));
}

// Who is given nothing is in no round, and stays as slow as it was.
TEST(Flexrr, WhoIsTooSlowForASingleUnitIsNotForgotten) {
  PolicySection section;
  section.name = "flexrr";
  auto policy = MakePolicy(section, 2, nullptr);
  ASSERT_TRUE(policy.ok());
  RoundModel round(2, 16, milliseconds(10));
  round.KnowUnitTimes();
  round.worker(1).unit_time_mean = milliseconds(1000);
  for (int i = 0; i < 8; ++i) policy->work->OnCommitted(round.view());
  EXPECT_THAT(policy->work->Share(round.view().workers, 32), ElementsAre(32, 0));
  RoundView alone = round.view();
  alone.workers = alone.workers.first(1);
  for (int i = 0; i < 8; ++i) policy->work->OnCommitted(alone);
  EXPECT_THAT(policy->work->Share(round.view().workers, 32), ElementsAre(32, 0));
}

TEST(Flexrr, MovesNothingAmongEqualWorkers) {
  auto rule = Rule();
  RoundModel round(8, 16, milliseconds(5));
  for (std::uint32_t i = 0; i < 8; ++i)
    round.SetUnitTime(i, milliseconds(5) + milliseconds(5) * i / 50);
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(200));
  EXPECT_EQ(round.moved, 0u);
  EXPECT_THAT(round.fenced, IsEmpty());
}

TEST(Flexrr, BeginsWhenAWorkerIsTheTriggerBehindAndNotBefore) {
  auto rule = Rule();
  RoundModel round(4, 20, milliseconds(10));
  round.SetUnitTime(3, milliseconds(40));
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(49));  // 4.9 of 20 against 1.2: 18 %
  EXPECT_THAT(rule->Judge(round.view()).moves, IsEmpty());
  round.AdvanceTo(round.now() + milliseconds(21));  // 7 against 1.75: 26 %
  const WorkVerdict verdict = rule->Judge(round.view());
  ASSERT_EQ(verdict.moves.size(), 1u);
  EXPECT_EQ(verdict.moves[0].from, WorkerId(3));
  EXPECT_EQ(verdict.moves[0].units, 1u);
  EXPECT_THAT(verdict.reason, HasSubstr("worker 3 lags (1 of 20 units done)"));
}

TEST(Flexrr, HandOversDouble) {
  auto rule = Rule();
  RoundModel round(4, 40, milliseconds(10));
  round.SetUnitTime(3, milliseconds(100));
  rule->Judge(round.view());
  std::vector<std::uint32_t> sizes;
  for (int i = 0; i < 12; ++i) {
    round.AdvanceTo(round.now() + milliseconds(20));
    const WorkVerdict verdict = rule->Judge(round.view());
    std::uint32_t size = 0;
    for (const MoveUnits& move : verdict.moves) size += move.units;
    if (size > 0) sizes.push_back(size);
    round.CarryOut(verdict);
  }
  ASSERT_GE(sizes.size(), 4u);
  sizes.resize(4);
  EXPECT_THAT(sizes, ElementsAre(1, 2, 4, 8));
}

TEST(Flexrr, TheFirstHandOverFollowsItsShare) {
  auto rule = Rule({.trigger = 0.2, .first = 0.1, .group_size = 0});
  RoundModel round(4, 40, milliseconds(10));
  round.SetUnitTime(3, milliseconds(1000));
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(100));
  const WorkVerdict verdict = rule->Judge(round.view());
  std::uint32_t size = 0;
  for (const MoveUnits& move : verdict.moves) size += move.units;
  EXPECT_EQ(size, 4u);
}

// Seven at 5 ms and one at 20 ms are 7.25 workers: 128 units take them 88.3 ms.
TEST(Flexrr, ARoundWithOneFourTimesSlowerIsWithinATenthOfIdeal) {
  auto rule = Rule();
  RoundModel round(8, 16, milliseconds(5));
  round.SetUnitTime(5, milliseconds(20));
  RunRound(rule.get(), &round, std::chrono::microseconds(500), milliseconds(400));
  EXPECT_TRUE(round.Done());
  EXPECT_LT(Seconds(round.age()), 0.0883 * 1.1);
}

// Seven with 18 or 19 units of 5 ms, and one that is ten times slower and done with its only one:
// it is idle, but no help, and what the others have is even.
TEST(Flexrr, NothingMovesAmongEqualsBecauseASlowOneIsIdle) {
  auto rule = Rule();
  RoundModel round(8, 18, milliseconds(5));
  round.SetUnitTime(7, milliseconds(50));
  round.KnowUnitTimes();
  round.worker(0).units_given = round.worker(0).units_planned = 19;
  round.worker(7).units_given = round.worker(7).units_planned = 1;
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(200));
  EXPECT_TRUE(round.Done());
  EXPECT_EQ(round.moved, 0u);
}

// Its first part was delivered long ago; the second one is computed just now.
TEST(Flexrr, WhoHasJustComputedItsSecondPartIsNotStuck) {
  auto rule = Rule();
  RoundModel round(4, 8, milliseconds(10));
  round.KnowUnitTimes();
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(200));
  WorkerView& worker = round.worker(2);
  worker.units_given = worker.units_done = worker.units_taken = 9;
  worker.progressed_at = round.now();
  worker.finished_at.reset();
  EXPECT_THAT(rule->Judge(round.view()).fence, IsEmpty());
  round.AdvanceTo(round.now() + milliseconds(100));
  EXPECT_THAT(rule->Judge(round.view()).fence, ElementsAre(WorkerId(2)));
}

TEST(Flexrr, WhoIsStuckLosesAllButTheUnitItIsIn) {
  auto rule = Rule();
  RoundModel round(4, 8, milliseconds(10));
  round.KnowUnitTimes();
  round.SetUnitTime(2, std::chrono::hours(1));
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(110));
  EXPECT_EQ(round.worker(2).units_given, 1u);
}

// Its unit again costs 10 ms; so long it is waited for behind the time that it should have taken.
TEST(Flexrr, WhoIsStuckInItsLastUnitIsFencedWhenComputingItAgainIsAsQuick) {
  auto rule = Rule();
  RoundModel round(4, 8, milliseconds(10));
  round.KnowUnitTimes();
  round.SetUnitTime(2, std::chrono::hours(1));
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(200));
  EXPECT_THAT(round.fenced, ElementsAre(2));
  EXPECT_LT(Seconds(round.age()), 0.14);
}

// All have had units that took fifteen times as long as usual: so may this one.
TEST(Flexrr, WhoIsInALongUnitIsNotStuckWhereAllHaveSuch) {
  for (const bool all : {true, false}) {
    auto rule = Rule();
    RoundModel round(4, 8, milliseconds(10));
    round.KnowUnitTimes();
    round.SetUnitTime(2, milliseconds(150));
    for (std::uint32_t i = 0; i < 4; ++i) {
      round.worker(i).unit_time_longest = milliseconds(all || i == 2 ? 150 : 12);
    }
    RunRound(rule.get(), &round, milliseconds(1), milliseconds(200));
    if (all) {
      EXPECT_THAT(round.fenced, IsEmpty());
    } else {
      EXPECT_THAT(round.fenced, ElementsAre(2));
    }
  }
}

// The others have sealed both of their parts. An exact round needs the units now, any other one has
// them come again.
TEST(Flexrr, WhoIsStuckWhereNobodyHasRoomIsFencedUnlessTheRoundIsExact) {
  for (const bool exact : {true, false}) {
    auto rule = Rule();
    RoundModel round(4, 8, milliseconds(10));
    round.KnowUnitTimes();
    round.SetUnitTime(2, std::chrono::hours(1));
    round.view().exact = exact;
    for (std::uint32_t i = 0; i < 4; ++i) round.worker(i).takes_units = false;
    RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
    EXPECT_EQ(round.moved, 0u);
    if (exact) {
      EXPECT_THAT(round.fenced, IsEmpty());
    } else {
      EXPECT_THAT(round.fenced, ElementsAre(2));
      EXPECT_LT(Seconds(round.age()), 0.24);  // three rounds of 80 ms
    }
  }
}

// One fence that was not deserved must not make the round wait for the worker that stalls.
TEST(Flexrr, WhoIsStuckInARoundThatHasFencedAnotherIsFenced) {
  auto rule = Rule();
  RoundModel round(4, 8, milliseconds(10));
  round.KnowUnitTimes();
  round.SetUnitTime(2, std::chrono::hours(1));
  rule->Judge(round.view());
  round.worker(3).fenced = true;
  round.worker(3).units_given = 0;
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
  EXPECT_THAT(round.fenced, ElementsAre(2));
  EXPECT_LT(Seconds(round.age()), 0.24);
}

// Two workers whose reports are slow, and one unit that both could compute at once.
TEST(Flexrr, AUnitIsNotPassedToAndFro) {
  auto rule = Rule();
  RoundModel round(2, 8, milliseconds(4));
  round.KnowUnitTimes();
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(32));
  for (const std::uint32_t i : {0u, 1u}) round.SetUnitTime(i, std::chrono::hours(1));
  WorkerView& first = round.worker(0);
  ++first.units_given;
  first.finished_at.reset();
  first.progressed_at = round.now();
  for (int i = 0; i < 300; ++i) {
    round.AdvanceTo(round.now() + milliseconds(1));
    for (const std::uint32_t w : {0u, 1u}) round.worker(w).units_taken = round.worker(w).units_done;
    const WorkVerdict verdict = rule->Judge(round.view());
    if (!verdict.fence.empty()) break;
    round.CarryOut(verdict);
  }
  EXPECT_GT(round.moved, 0u);
  EXPECT_LE(round.moved, 14u);
}

TEST(Flexrr, TwoOfFourThatAreStuckAreFencedAndThreeAreNot) {
  for (const std::uint32_t stuck : {2u, 3u}) {
    auto rule = Rule();
    RoundModel round(4, 8, milliseconds(10));
    round.KnowUnitTimes();
    for (std::uint32_t i = 4 - stuck; i < 4; ++i) round.SetUnitTime(i, std::chrono::hours(1));
    RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
    EXPECT_EQ(round.fenced.size(), stuck == 2 ? 2 : 0);
  }
}

TEST(Flexrr, ASecondPartCostsWhatDeliveriesTookInEarlierRounds) {
  auto rule = MakeFlexrr({}, MakeWorkNone());
  RoundModel round(2, 8, milliseconds(10));
  round.AdvanceTo(round.now() + milliseconds(80));
  for (std::uint32_t w : {0u, 1u}) *round.worker(w).parts[0].delivered_at += milliseconds(100);
  rule->OnCommitted(round.view());
  round.Next();
  // Worker 0 is computed and not delivered yet, worker 1 has four units left of 20 ms.
  round.SetUnitTime(1, milliseconds(20));
  round.AdvanceTo(round.now() + milliseconds(81));
  round.worker(0).parts[0].delivered_at.reset();
  round.worker(0).finished_at.reset();
  EXPECT_TRUE(rule->Judge(round.view()).moves.empty());
  EXPECT_FALSE(MakeFlexrr({}, MakeWorkNone())->Judge(round.view()).moves.empty());
}

TEST(Flexrr, HelpersAreOfTheGroup) {
  auto rule = Rule({.trigger = 0.2, .first = 0.025, .group_size = 2});
  RoundModel round(4, 20, milliseconds(10));
  round.SetUnitTime(3, milliseconds(100));
  rule->Judge(round.view());
  for (int i = 0; i < 20; ++i) {
    round.AdvanceTo(round.now() + milliseconds(5));
    const WorkVerdict verdict = rule->Judge(round.view());
    for (const MoveUnits& move : verdict.moves) EXPECT_EQ(move.to, WorkerId(2));
    round.CarryOut(verdict);
  }
  EXPECT_GT(round.moved, 0u);
}

TEST(Flexrr, AWorkerThatHasNotAnsweredIsNotAskedAgain) {
  auto rule = Rule();
  RoundModel round(4, 20, milliseconds(10));
  round.SetUnitTime(3, milliseconds(100));
  round.worker(3).revoking = true;
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(100));
  EXPECT_THAT(rule->Judge(round.view()).moves, IsEmpty());
}

TEST(Flexrr, WhatAHelperWillGetIsItsWorkBeforeTheGiverHasAnswered) {
  auto rule = Rule({.trigger = 0.2, .first = 1, .group_size = 0});
  RoundModel round(3, 20, milliseconds(10));
  round.SetUnitTime(1, milliseconds(100));
  round.SetUnitTime(2, milliseconds(100));
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(200));
  round.worker(0).pace = milliseconds(100);
  round.worker(2).revoking = true;
  const WorkVerdict first = rule->Judge(round.view());
  ASSERT_EQ(first.moves.size(), 1u);
  EXPECT_EQ(first.moves[0].from, WorkerId(1));
  EXPECT_GE(first.moves[0].units, 7u);
  round.worker(1).revoking = true;
  round.worker(2).revoking = false;
  round.AdvanceTo(round.now() + milliseconds(20));
  const WorkVerdict second = rule->Judge(round.view());
  ASSERT_EQ(second.moves.size(), 1u);
  EXPECT_EQ(second.moves[0].from, WorkerId(2));
  EXPECT_LE(second.moves[0].units, 5u) << "half of what is left beside those";
}

// More than half of it would come back at the next look.
TEST(Flexrr, WhatRunsCostGoesWithTheUnits) {
  auto rule = Rule({.trigger = 0.2, .first = 1, .group_size = 0});
  RoundModel round(2, 20, milliseconds(10));
  round.SetUnitTime(1, milliseconds(100));
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(200));
  for (std::uint32_t i = 0; i < 2; ++i) {
    round.worker(i).pace = milliseconds(100);
    round.worker(i).run_cost = 1;
  }
  const WorkVerdict verdict = rule->Judge(round.view());
  ASSERT_EQ(verdict.moves.size(), 1u);
  EXPECT_GE(verdict.moves[0].units, 7u);
  EXPECT_LE(verdict.moves[0].units, 10u);
}

// A look is a pass over all workers, so one for each that becomes free would be quadratic.
TEST(Flexrr, TheNewsOfVeryManyWorkersIsLookedAtTogether) {
  auto rule = Rule();
  RoundModel round(4096, 4, milliseconds(10));
  round.KnowUnitTimes();
  rule->Judge(round.view());
  round.AdvanceTo(round.now() + milliseconds(39));
  rule->Judge(round.view());
  RoundView view = round.view();
  const auto soon = [&](const WorkVerdict& verdict) {
    return verdict.look_again < view.now + (view.now - view.started) / 200;
  };
  Time together = kNever;
  std::uint32_t at_once = 0;
  for (view.finished = 1; view.finished <= 40; ++view.finished) {
    const WorkVerdict verdict = rule->Judge(view);
    at_once += soon(verdict) ? 0 : 1;
    if (soon(verdict)) together = verdict.look_again;
  }
  EXPECT_EQ(at_once, 8u);
  ASSERT_LT(together, kNever);
  EXPECT_GT(together, view.now);
  --view.finished;
  view.now = together;
  EXPECT_FALSE(soon(rule->Judge(view))) << "all of it is looked at";
}

}  // namespace
}  // namespace lockstep::policies
