#include "policies/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

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
  EXPECT_THAT(SharesBySpeed(times, 0, 28), ElementsAre(16, 8, 4));
  EXPECT_THAT(SharesBySpeed(times, 0, 2), ElementsAre(2, 0, 0));
}

// Twelve times slower: a single unit of it, with the cost of its run, takes longer than all.
TEST(Balance, ARunsCostCountsForEachThatHasUnits) {
  const std::vector<Duration> times = {milliseconds(1), milliseconds(12)};
  EXPECT_THAT(SharesBySpeed(times, 0, 128), ElementsAre(119, 9));
  EXPECT_THAT(SharesBySpeed(times, 12, 128), ElementsAre(128, 0));
  EXPECT_EQ(LongestShare(times, 12, std::vector<std::uint32_t>{128, 0}), milliseconds(140));
  EXPECT_EQ(LongestShare(times, 12, std::vector<std::uint32_t>{127, 1}), milliseconds(156));
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

// A round of eight workers: units of different lengths, and then one slow machine among them.
TEST(Balance, OneRoundTellsOfASlowWorkerAndNotOfLongUnits) {
  auto by_data = MakeBalance({});
  EXPECT_THAT(by_data->Share(Members({68, 75, 70, 66, 78, 72, 85, 74}), 64),
              ElementsAre(8, 8, 8, 8, 8, 8, 8, 8));
  auto by_machine = MakeBalance({});
  EXPECT_THAT(by_machine->Share(Members({70, 72, 71, 69, 142, 70, 73, 71}), 60),
              ElementsAre(8, 8, 8, 8, 4, 8, 8, 8));
}

}  // namespace
}  // namespace lockstep::policies
