#include "policies/auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;

struct AutoRun {
  AutoRun(std::uint32_t workers, std::uint32_t units_each)
      : count(workers), units(workers * units_each), round(workers, units_each, milliseconds(10)) {}

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
      length = round.age();
      parts = verdict.parts.size();
      policy.work->OnCommitted(round.view());
      policy.closing->OnCommitted(round.view());
      round.Next();
      shares = policy.work->Share(round.view().workers, units);
      for (std::uint32_t w = 0; w < count; ++w) {
        round.worker(w).units_given = round.worker(w).units_planned = shares[w];
      }
    }
  }
  void RunWith(std::uint32_t worker, Duration unit_time) {
    round.SetUnitTime(worker, unit_time);
    Run(1);
    round.SetUnitTime(worker, milliseconds(10));
  }

  Policy policy = MakeAuto({}, {});
  std::uint32_t count;
  std::uint32_t units;
  RoundModel round;
  // Of the last round.
  std::string reason;
  Duration length{};
  std::size_t parts = 0;
  std::vector<std::uint32_t> shares;
};

TEST(Auto, WithoutStragglersSharesAreEqualAndNothingMoves) {
  AutoRun run(4, 16);
  run.Run(40);
  EXPECT_THAT(run.shares, ElementsAre(16, 16, 16, 16));
  EXPECT_EQ(run.round.moved, 0u);
  EXPECT_THAT(run.reason, HasSubstr("auto: equal shares (no lasting difference)"));
}

TEST(Auto, ALastingDifferenceIsMetByShares) {
  AutoRun run(4, 16);
  run.round.SetUnitTime(3, milliseconds(40));
  run.Run(40);
  EXPECT_LE(run.shares[3], 6u);
  EXPECT_THAT(run.reason, AllOf(HasSubstr("auto: balance"), HasSubstr("workers differ for good")));
  // And back again.
  run.round.SetUnitTime(3, milliseconds(10));
  run.Run(60);
  EXPECT_THAT(run.shares, ElementsAre(16, 16, 16, 16));
}

TEST(Auto, APassingOneIsMetByMoves) {
  AutoRun run(4, 16);
  for (std::uint32_t i = 0; i < 20; ++i) {
    run.RunWith(i % 4, milliseconds(40));
    run.Run(1);
  }
  EXPECT_GT(run.round.moved, 20u);
  EXPECT_THAT(run.reason, HasSubstr("+flexrr"));
}

TEST(Auto, ARoundClosesWithoutWhoseSamplesAreWorthLessThanTheTime) {
  AutoRun run(8, 4);
  run.Run(10);
  run.RunWith(7, milliseconds(400));
  EXPECT_THAT(run.reason, HasSubstr("the first 7 of 8 workers"));
  EXPECT_EQ(run.parts, 7u);
  EXPECT_EQ(run.round.moved, 0u) << "a unit more for one of the others costs all of them its time";
  EXPECT_LE(run.length, milliseconds(42));
  EXPECT_TRUE(run.round.fenced.empty());
}

TEST(Auto, WhoIsWorthItIsWaitedFor) {
  AutoRun run(8, 4);
  run.Run(10);
  run.RunWith(7, milliseconds(11));
  EXPECT_THAT(run.reason, HasSubstr("all 8 workers"));
}

TEST(Auto, WithFineUnitsWorkMovesAndNobodyIsLeftOut) {
  AutoRun run(4, 32);
  run.Run(10);
  run.RunWith(3, milliseconds(40));
  EXPECT_THAT(run.reason, HasSubstr("all 4 workers"));
  EXPECT_EQ(run.parts, 4u);
  EXPECT_GT(run.round.moved, 15u);
}

TEST(Auto, UntilItKnowsWhatTimeIsWorthAllAreWaitedFor) {
  AutoRun run(8, 4);
  run.RunWith(7, milliseconds(30));
  EXPECT_THAT(run.reason, HasSubstr("all 8 workers"));
}

TEST(Auto, AnExactRoundIsAwaitedWhole) {
  AutoRun run(8, 4);
  run.Run(10);
  run.round.view().exact = true;
  run.RunWith(7, milliseconds(30));
  EXPECT_THAT(run.reason, HasSubstr("all 8 workers"));
}

TEST(Auto, HalfOfTheSamplesAreWaitedForWhateverTheyCost) {
  AutoRun run(4, 1);
  run.Run(10);
  for (const std::uint32_t w : {1u, 2u, 3u}) run.round.SetUnitTime(w, milliseconds(100 * w));
  run.Run(1);
  EXPECT_THAT(run.reason, HasSubstr("the first 2 of 4 workers"));
}

TEST(Auto, WhoIsSlowForGoodIsLeftOutWhereUnitsAreTooLongToShareOut) {
  AutoRun run(8, 2);
  run.round.SetUnitTime(7, milliseconds(30));
  run.Run(40);
  EXPECT_THAT(run.shares, Each(2u)) << "with fewer for worker 7 others would have three";
  EXPECT_THAT(run.reason, AllOf(HasSubstr("the first 7 of 8 workers"),
                                HasSubstr("auto: equal shares+backup (workers differ for good")));
  // And it is taken back in.
  run.round.SetUnitTime(7, milliseconds(10));
  run.Run(60);
  EXPECT_THAT(run.reason, AllOf(HasSubstr("all 8 workers"), HasSubstr("no lasting difference")));
}

}  // namespace
}  // namespace lockstep::policies
