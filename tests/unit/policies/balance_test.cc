#include "policies/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "policies/auto.h"
#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<WorkerView> Members(std::initializer_list<int> unit_ms) {
  std::vector<WorkerView> members;
  for (const int ms : unit_ms) {
    WorkerView member;
    member.member = {WorkerId(static_cast<std::uint32_t>(members.size())), Incarnation(1)};
    member.unit_time_mean = milliseconds(ms);
    members.push_back(member);
  }
  return members;
}

TEST(Balance, SharesFollowSpeed) {
  const std::vector<Duration> times = {milliseconds(10), milliseconds(20), milliseconds(40)};
  EXPECT_THAT(SharesBySpeed(times, 28), ElementsAre(16, 8, 4));
  EXPECT_THAT(SharesBySpeed(times, 2), ElementsAre(2, 0, 0));
}

TEST(Balance, EqualUntilAllAreMeasured) {
  auto rule = MakeBalance({});
  EXPECT_THAT(rule->Share(Members({10, 0, 40}), 9), ElementsAre(3, 3, 3));
  EXPECT_THAT(rule->Share(Members({10, 10, 40}), 9), ElementsAre(4, 4, 1));
}

TEST(Balance, SmallChangesLeaveTheSharesAsTheyAre) {
  auto rule = MakeBalance({.hysteresis = 0.05});
  EXPECT_THAT(rule->Share(Members({100, 100}), 100), ElementsAre(50, 50));
  EXPECT_THAT(rule->Share(Members({100, 104}), 100), ElementsAre(50, 50));
  const auto shares = rule->Share(Members({100, 150}), 100);
  EXPECT_THAT(shares, ElementsAre(60, 40));
}

TEST(Balance, WhoGetsNothingIsTriedAgain) {
  auto rule = MakeBalance({});
  std::uint32_t tried = 0;
  for (int round = 0; round < 128; ++round) {
    const auto shares = rule->Share(Members({10, 10, 1000}), 8);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0u), 8u);
    tried += shares[2];
  }
  EXPECT_EQ(tried, 2u);
}

struct AutoRun {
  Policy policy = MakeAuto({}, {});
  RoundModel round{4, 16, milliseconds(10)};
  std::string reason;
  std::vector<std::uint32_t> shares;

  void Run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      ClosingVerdict verdict;
      for (int step = 0; step < 10000 && !verdict.close; ++step) {
        round.AdvanceTo(round.now() + milliseconds(1));
        round.CarryOut(policy.work->Judge(round.view()));
        verdict = policy.closing->Judge(round.view());
      }
      ASSERT_TRUE(verdict.close);
      reason = verdict.reason;
      policy.work->OnCommitted(round.view());
      policy.closing->OnCommitted(round.view());
      round.Next();
      const RoundView& view = round.view();
      shares = policy.work->Share(view.workers, 64);
      for (std::uint32_t w = 0; w < 4; ++w) {
        round.worker(w).units_given = round.worker(w).units_planned = shares[w];
      }
    }
  }
};

TEST(Auto, WithoutStragglersSharesAreEqualAndNothingMoves) {
  AutoRun run;
  run.Run(40);
  EXPECT_THAT(run.shares, ElementsAre(16, 16, 16, 16));
  EXPECT_EQ(run.round.moved, 0u);
  EXPECT_THAT(run.reason, HasSubstr("auto: equal shares (no lasting difference)"));
}

TEST(Auto, ALastingDifferenceIsMetByShares) {
  AutoRun run;
  run.round.SetUnitTime(3, milliseconds(40));
  run.Run(40);
  EXPECT_LE(run.shares[3], 6u);
  EXPECT_THAT(run.reason, HasSubstr("auto: balance"));
  EXPECT_THAT(run.reason, HasSubstr("workers differ for good"));
  // And back again.
  run.round.SetUnitTime(3, milliseconds(10));
  run.Run(60);
  EXPECT_THAT(run.shares, ElementsAre(16, 16, 16, 16));
}

TEST(Auto, APassingOneIsMetByMoves) {
  AutoRun run;
  for (int i = 0; i < 20; ++i) {
    run.round.SetUnitTime(static_cast<std::uint32_t>(i) % 4, milliseconds(40));
    run.Run(1);
    run.round.SetUnitTime(static_cast<std::uint32_t>(i) % 4, milliseconds(10));
    run.Run(1);
  }
  EXPECT_GT(run.round.moved, 20u);
  EXPECT_THAT(run.reason, HasSubstr("+flexrr"));
}

}  // namespace
}  // namespace lockstep::policies
