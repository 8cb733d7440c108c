#include "policies/epoch_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/registry.h"
#include "policies/work_none.h"
#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Of four workers the third computes nothing any more.
RoundModel WithOneStopped() {
  RoundModel round(4, 8, milliseconds(10));
  round.KnowUnitTimes();
  round.SetUnitTime(2, std::chrono::hours(1));
  return round;
}

TEST(EpochEnd, NothingMovesInOtherRounds) {
  auto rule = MakeEpochEnd({}, MakeWorkNone());
  EXPECT_EQ(rule->name(), "none");
  RoundModel round = WithOneStopped();
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
  EXPECT_EQ(round.moved, 0u);
  EXPECT_THAT(round.fenced, IsEmpty());
}

TEST(EpochEnd, TheLastRoundOfAnEpochDoesNotWaitForWhoIsStopped) {
  auto rule = MakeEpochEnd({}, MakeWorkNone());
  RoundModel round = WithOneStopped();
  round.view().exact = true;
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
  EXPECT_GT(round.moved, 0u);
  EXPECT_THAT(round.fenced, ElementsAre(2));
  EXPECT_LT(Seconds(round.age()), 0.2);
}

TEST(EpochEnd, TheLastUnitIsFencedOffWhereSomebodyIsIdle) {
  for (const std::uint32_t idle : {0u, 1u}) {
    auto rule = MakeEpochEnd({}, MakeWorkNone());
    RoundModel round(1, 1, milliseconds(10));
    round.KnowUnitTimes();
    round.SetUnitTime(0, std::chrono::hours(1));
    round.view().exact = true;
    round.view().idle = idle;
    RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
    EXPECT_EQ(round.fenced.size(), idle);
  }
}

TEST(EpochEnd, AllWhoAreStoppedAreFencedWhileSomebodyIsFree) {
  auto rule = MakeEpochEnd({}, MakeWorkNone());
  RoundModel round(4, 1, milliseconds(10));
  round.KnowUnitTimes();
  for (const std::uint32_t worker : {1u, 2u, 3u}) round.SetUnitTime(worker, std::chrono::hours(1));
  round.view().exact = true;
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
  EXPECT_THAT(round.fenced, ElementsAre(1, 2, 3));
  EXPECT_LT(Seconds(round.age()), 0.2);
}

// An owner that gets nothing holds them all up.
TEST(EpochEnd, NobodyIsFencedForADeliveryThatIsLateForAll) {
  auto rule = MakeEpochEnd({}, MakeWorkNone());
  RoundModel round(4, 1, milliseconds(10));
  round.KnowUnitTimes();
  round.view().exact = true;
  round.view().idle = 1;
  round.AdvanceTo(round.now() + milliseconds(10));
  for (std::uint32_t worker = 0; worker < 4; ++worker) {
    round.worker(worker).finished_at.reset();
    round.worker(worker).parts.back().delivered_at.reset();
  }
  RunRound(rule.get(), &round, milliseconds(1), milliseconds(400));
  EXPECT_THAT(round.fenced, IsEmpty());
}

TEST(EpochEnd, IsOfPoliciesThatLeaveOut) {
  const auto moves = [](const char* name) {
    PolicySection section;
    section.name = name;
    auto policy = MakePolicy(section, 4, nullptr);
    EXPECT_TRUE(policy) << name;
    RoundModel round = WithOneStopped();
    round.view().exact = true;
    RunRound(policy->work.get(), &round, milliseconds(1), milliseconds(400));
    return round.moved > 0;
  };
  for (const char* name : {"backup", "backup+balance", "deadline", "partial+none"})
    EXPECT_TRUE(moves(name)) << name;
  // full leaves nobody out in any round, and local steps belong to who takes them.
  for (const char* name : {"full", "full+balance", "local+backup"})
    EXPECT_FALSE(moves(name)) << name;
}

}  // namespace
}  // namespace lockstep::policies
