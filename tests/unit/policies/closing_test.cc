// The closing rules that learn from recent arrivals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/backup_auto.h"
#include "policies/deadline.h"
#include "policies/partial.h"
#include "tests/unit/policies/round_model.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Rounds of equal workers until the rule has its deadline.
void Learn(ClosingRule* rule, RoundModel* round, int rounds = 25) {
  for (int i = 0; i < rounds; ++i) {
    round->AdvanceTo(round->now() + std::chrono::seconds(1));
    ASSERT_TRUE(rule->Judge(round->view()).close);
    rule->OnCommitted(round->view());
    round->Next();
  }
}

TEST(Deadline, WaitsForAllUntilItKnowsWhatIsUsual) {
  auto rule = MakeDeadline({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  round.SetUnitTime(3, milliseconds(100));
  round.AdvanceTo(round.now() + milliseconds(500));
  EXPECT_FALSE(rule->Judge(round.view()).close);
}

TEST(Deadline, ClosesWithoutWhoIsLateBehindTheMedianAndKTimesTheSpread) {
  auto rule = MakeDeadline({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round);
  round.SetUnitTime(3, milliseconds(100));
  // 80 ms, and a spread that counts as at least 2 % of it: 86.4 ms.
  round.AdvanceTo(round.now() + milliseconds(86));
  ClosingVerdict verdict = rule->Judge(round.view());
  EXPECT_FALSE(verdict.close);
  EXPECT_NEAR(Seconds(verdict.look_again - round.view().started), 0.0864, 1e-4);
  round.AdvanceTo(round.now() + milliseconds(1));
  verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(verdict.parts, SizeIs(3));
  EXPECT_THAT(verdict.reason, HasSubstr("3 of 4 workers"));
}

// So many rounds of 8 units each; who is chosen takes `longest` for one, by turns.
std::unique_ptr<ClosingRule> DeadlineAfter(RoundModel* round, int rounds, int every,
                                           Duration longest) {
  auto rule = MakeDeadline({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  for (int i = 0; i < rounds; ++i) {
    const auto worker = static_cast<std::uint32_t>(i / every % 4);
    round->SetUnitTime(worker, i % every == 0 ? longest : milliseconds(10));
    round->AdvanceTo(round->now() + std::chrono::seconds(2));
    rule->OnCommitted(round->view());
    round->SetUnitTime(worker, milliseconds(10));
    round->Next();
  }
  return rule;
}

double DeadlineOf(ClosingRule* rule, RoundModel* round) {
  round->AdvanceTo(round->now() + milliseconds(1));
  return Seconds(rule->Judge(round->view()).look_again - round->view().started);
}

// One of four has long units in each round: without it a round would have three fourths of the
// work in seven tenths of the time. Not so if it takes ten times as long.
TEST(Deadline, WaitsForMoreWorkIfThatIsWorthIt) {
  RoundModel round(4, 8, milliseconds(10));
  auto rule = DeadlineAfter(&round, 20, 1, milliseconds(14));
  EXPECT_NEAR(DeadlineOf(rule.get(), &round), 0.112 * 1.25, 1e-4) << "and for a little more";
  RoundModel stalls(4, 8, milliseconds(10));
  rule = DeadlineAfter(&stalls, 20, 1, milliseconds(100));
  EXPECT_NEAR(DeadlineOf(rule.get(), &stalls), 0.0864, 1e-4);
  RoundModel rare(4, 8, milliseconds(10));
  rule = DeadlineAfter(&rare, 20, 5, milliseconds(40));
  EXPECT_NEAR(DeadlineOf(rule.get(), &rare), 0.0864, 1e-4);
}

TEST(Deadline, NeverWithFewerThanTheLeast) {
  auto rule = MakeDeadline({.k = 4, .min_contributors = 3, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round);
  round.SetUnitTime(2, milliseconds(100));
  round.SetUnitTime(3, milliseconds(100));
  round.AdvanceTo(round.now() + milliseconds(700));
  EXPECT_FALSE(rule->Judge(round.view()).close);
}

TEST(Deadline, AnExactRoundIsWaitedFor) {
  auto rule = MakeDeadline({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round);
  round.SetUnitTime(3, milliseconds(100));
  round.AdvanceTo(round.now() + milliseconds(200));
  round.view().exact = true;
  EXPECT_FALSE(rule->Judge(round.view()).close);
}

// Leaving somebody out must not make its time look short: else the deadline would creep down.
TEST(Deadline, WhoIsLeftOutCountsWithTheTimeItWouldHaveTaken) {
  auto rule = MakeDeadline({.k = 0, .min_contributors = 1, .workers = 4, .window = 5});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round, 5);
  double first = 0;
  double last = 0;
  for (int i = 0; i < 20; ++i) {
    const Time start = round.view().started;
    ClosingVerdict verdict;
    while (!(verdict = rule->Judge(round.view())).close) {
      round.AdvanceTo(round.now() + milliseconds(1));
    }
    last = Seconds(round.now() - start);
    if (i == 0) first = last;
    rule->OnCommitted(round.view());
    round.Next();
  }
  EXPECT_NEAR(last, first, 0.003);
}

TEST(Partial, CutsAtTheDeadlineAndClosesOverWhatIsThere) {
  auto rule = MakePartial({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round);
  round.SetUnitTime(3, milliseconds(30));
  round.AdvanceTo(round.now() + milliseconds(85));
  EXPECT_FALSE(rule->Judge(round.view()).cut);
  round.AdvanceTo(round.now() + milliseconds(2));
  ClosingVerdict verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.cut);
  EXPECT_FALSE(verdict.close);
  EXPECT_FALSE(rule->Judge(round.view()).cut) << "once is enough";
  // It has done two units, is in the third, and gives the others back.
  round.worker(3).units_given = 3;
  round.AdvanceTo(round.now() + milliseconds(4));
  verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(verdict.parts, SizeIs(4));
  EXPECT_THAT(verdict.reason, HasSubstr("4 workers gave what they had"));
}

TEST(Partial, WhoDoesNotComeOutOfItsUnitIsLeftOut) {
  auto rule = MakePartial({.k = 4, .min_contributors = 2, .workers = 4, .window = 20});
  RoundModel round(4, 8, milliseconds(10));
  Learn(rule.get(), &round);
  round.SetUnitTime(3, std::chrono::hours(1));
  round.AdvanceTo(round.now() + milliseconds(87));
  EXPECT_TRUE(rule->Judge(round.view()).cut);
  round.worker(3).units_given = 1;
  const ClosingVerdict wait = rule->Judge(round.view());
  EXPECT_FALSE(wait.close);
  round.AdvanceTo(wait.look_again);
  const ClosingVerdict verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(verdict.parts, SizeIs(3));
}

std::vector<std::vector<Duration>> Rounds(std::initializer_list<int> ms, int count) {
  std::vector<Duration> round;
  for (const int value : ms) round.push_back(milliseconds(value));
  return std::vector<std::vector<Duration>>(static_cast<std::size_t>(count), round);
}

TEST(BackupAuto, EqualArrivalsNeedNoBackup) {
  EXPECT_EQ(BestBackups(Rounds({100, 100, 101, 102}, 10), 0), 0u);
}

TEST(BackupAuto, OneLateOfFourIsWorthABackup) {
  // 4 in 400 ms against 3 in 101 ms.
  EXPECT_EQ(BestBackups(Rounds({100, 100, 101, 400}, 10), 0), 1u);
  // 4 in 120 against 3 in 101: the smaller batch costs more than it saves.
  EXPECT_EQ(BestBackups(Rounds({100, 100, 101, 120}, 10), 0), 0u);
}

TEST(BackupAuto, ASmallGainDoesNotChangeIt) {
  EXPECT_EQ(BestBackups(Rounds({100, 100, 101, 135}, 10), 1), 1u);
  EXPECT_EQ(BestBackups(Rounds({100, 100, 101, 136}, 10), 0), 0u);
}

TEST(BackupAuto, AtMostHalf) {
  EXPECT_EQ(BestBackups(Rounds({1, 1000, 1000, 1000}, 10), 0), 0u);
  EXPECT_EQ(BestBackups(Rounds({1, 1, 1000, 1000}, 10), 0), 2u);
}

TEST(BackupAuto, LearnsFromTheRoundsAndSaysWhy) {
  auto rule = MakeBackupAuto();
  RoundModel round(4, 8, milliseconds(10));
  round.SetUnitTime(3, milliseconds(100));
  Learn(rule.get(), &round, 10);
  round.AdvanceTo(round.now() + milliseconds(90));
  const ClosingVerdict verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(verdict.parts, SizeIs(3));
  EXPECT_THAT(verdict.reason, HasSubstr("auto: b = 1, contributions come 7.50 times as fast"));
}

// Of five, four are left; one of these is late.
TEST(BackupAuto, LeavesAsManyOutWhereAWorkerIsLost) {
  auto rule = MakeBackupAuto();
  RoundModel round(4, 8, milliseconds(10));
  round.view().configured_workers = 5;
  round.SetUnitTime(3, milliseconds(100));
  Learn(rule.get(), &round, 10);
  round.AdvanceTo(round.now() + milliseconds(90));
  const ClosingVerdict verdict = rule->Judge(round.view());
  EXPECT_TRUE(verdict.close);
  EXPECT_THAT(verdict.parts, SizeIs(3));
}

// What a worker that is lost had goes to others, unless so many are left out anyway.
TEST(BackupAuto, DoesWithoutNoMoreThanItLeavesOut) {
  auto rule = MakeBackupAuto();
  RoundModel round(4, 8, milliseconds(10));
  EXPECT_TRUE(rule->CanDoWithout(round.view()));
  round.worker(3).units_given = 0;
  EXPECT_FALSE(rule->CanDoWithout(round.view())) << "b = 0";
  round.Next();
  round.SetUnitTime(3, milliseconds(100));
  Learn(rule.get(), &round, 10);
  round.worker(3).units_given = 0;
  EXPECT_TRUE(rule->CanDoWithout(round.view())) << "b = 1";
  round.worker(2).units_given = 0;
  EXPECT_FALSE(rule->CanDoWithout(round.view())) << "b = 1";
}

// The late one of four is lost; the other three are alike.
TEST(BackupAuto, LearnsAnewFromRoundsOfAsMany) {
  auto rule = MakeBackupAuto();
  RoundModel four(4, 8, milliseconds(10));
  four.SetUnitTime(3, milliseconds(100));
  Learn(rule.get(), &four, 32);
  RoundModel three(3, 8, milliseconds(10));
  Learn(rule.get(), &three, 8);
  three.worker(2).units_given = 0;
  EXPECT_FALSE(rule->CanDoWithout(three.view()));
}

// Four of eight are slow, and then they are lost.
TEST(BackupAuto, LeavesNoMoreThanHalfOut) {
  auto rule = MakeBackupAuto();
  RoundModel eight(8, 8, milliseconds(10));
  for (std::uint32_t slow = 4; slow < 8; ++slow) eight.SetUnitTime(slow, milliseconds(100));
  Learn(rule.get(), &eight, 10);
  RoundModel four(4, 8, milliseconds(10));
  four.worker(3).units_given = 0;
  four.worker(2).units_given = 0;
  EXPECT_TRUE(rule->CanDoWithout(four.view()));
  four.worker(1).units_given = 0;
  EXPECT_FALSE(rule->CanDoWithout(four.view()));
}

}  // namespace
}  // namespace lockstep::policies
