// What is waited for before an attempt is decided where shards have holders, and for how long.
#include "coordinator/round/barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policies/registry.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr std::uint32_t kWorkers = 4;
constexpr std::uint64_t kParameters = 1000;

class BarrierTest : public ::testing::Test {
 protected:
  BarrierTest() : job_(Start(), *policies::MakePolicy(PolicySection(), kWorkers), 1) {
    Edit(job_.now) = Time(std::chrono::seconds(100));
    Edit(job_.agreed).parameter_count = kParameters;
    Edit(job_.agreed).state_tensors = 1;
    for (std::uint64_t i = 0; i < kWorkers; ++i) {
      Member* member = job_.members.TakeSlot(std::nullopt, ConnectionId(i + 1), job_.now());
      Bring(job_.members, *member, MemberState::kLive, job_.now());
    }
  }
  static StartParameters Start() {
    StartParameters start;
    start.workers = kWorkers;
    start.config.liveness.timeout_s = 10;
    return start;
  }
  MemberId Id(std::uint32_t worker) const { return job_.members.at(WorkerId(worker)).id; }
  void Hear(std::uint32_t worker) { job_.members.at(WorkerId(worker)).last_heard = job_.now(); }
  // Two shards; worker 3 holds none.
  msg::Commit Commit() const {
    msg::Commit commit;
    commit.owners = {1, {{Id(0), 1}, {Id(1), 1}}, {{{Id(1), Id(0)}}, {{Id(2), Id(1)}}}};
    commit.members = {Id(0), Id(1), Id(2), Id(3)};
    return commit;
  }
  Barrier Make(bool copies = false) { return {&job_, Commit(), copies}; }
  Barrier::Decision AtDeadline(Barrier& barrier) {
    Edit(job_.now) = barrier.Deadline();
    return barrier.OnDeadline();
  }
  static testing::Matcher<std::vector<WorkerId>> Workers(std::initializer_list<std::uint32_t> ids) {
    std::vector<WorkerId> workers;
    for (const std::uint32_t id : ids) workers.push_back(WorkerId(id));
    return testing::UnorderedElementsAreArray(workers);
  }

  Job job_;
};

TEST_F(BarrierTest, IsDecidedWhenEachHolderHasSaidSoOnce) {
  Barrier barrier = Make();
  EXPECT_FALSE(barrier.decided());
  EXPECT_FALSE(*barrier.OnHeld(Id(0)));
  EXPECT_FALSE(*barrier.OnHeld(Id(1)));
  EXPECT_FALSE(*barrier.OnHeld(Id(1)));  // heard twice, counted once
  EXPECT_FALSE(barrier.decided());
  EXPECT_EQ(barrier.Waiting(), "waiting for the sums at worker 2");
  EXPECT_TRUE(*barrier.OnHeld(Id(2)));
  EXPECT_TRUE(barrier.decided());
  EXPECT_EQ(barrier.Waiting(), "");
}

TEST_F(BarrierTest, WhoIsToHoldNothingMaySayNothing) {
  Barrier barrier = Make();
  EXPECT_FALSE(barrier.Holds(Id(3)));
  EXPECT_FALSE(barrier.OnHeld(Id(3)).ok());
  const MemberId before{WorkerId(0), Incarnation(Id(0).incarnation.value + 1)};
  EXPECT_FALSE(barrier.Holds(before));
  EXPECT_FALSE(barrier.OnHeld(before).ok());
}

TEST_F(BarrierTest, AllAreAskedForASignOfLifeAndTheSilentOneIsBlamed) {
  Barrier barrier = Make();
  ASSERT_TRUE(barrier.OnHeld(Id(0)).ok());
  EXPECT_LT(barrier.Deadline(), job_.now() + std::chrono::seconds(10));
  const Barrier::Decision first = AtDeadline(barrier);
  // Also who has said Held: others may wait for a shard that it has stopped serving.
  EXPECT_THAT(first.ping, Workers({0, 1, 2, 3}));
  EXPECT_THAT(first.blamed, IsEmpty());
  EXPECT_THAT(first.silent, IsEmpty());
  EXPECT_GT(barrier.Deadline(), job_.now());
  Hear(1);
  Hear(2);
  const Barrier::Decision second = AtDeadline(barrier);
  EXPECT_THAT(second.blamed, Workers({0}));
  EXPECT_THAT(second.silent, Workers({0, 3}));
}

// Others may lack what it has contributed, or had of the state.
TEST_F(BarrierTest, WhoHoldsNothingAndIsSilentIsNotBlamed) {
  Barrier barrier = Make();
  AtDeadline(barrier);
  for (std::uint32_t worker = 0; worker < 3; ++worker) Hear(worker);
  const Barrier::Decision decision = AtDeadline(barrier);
  EXPECT_THAT(decision.blamed, IsEmpty());
  EXPECT_THAT(decision.silent, Workers({3}));
}

// They have the new parameters, and one has stopped since it has said so.
TEST_F(BarrierTest, BehindItThoseWhoAreSilentAreFoundTheSameWay) {
  Barrier barrier = Make();
  for (std::uint32_t worker = 0; worker < 3; ++worker) ASSERT_TRUE(barrier.OnHeld(Id(worker)).ok());
  const auto look = [&] {
    const Time deadline = barrier.Deadline();
    EXPECT_GT(deadline, job_.now());
    Edit(job_.now) = deadline;
    return barrier.OnFetchDeadline();
  };
  const Barrier::Decision first = look();
  EXPECT_THAT(first.ping, Workers({0, 1, 2, 3}));
  EXPECT_THAT(first.silent, IsEmpty());
  for (const std::uint32_t worker : {0, 2, 3}) Hear(worker);
  EXPECT_THAT(look().silent, Workers({1}));
  EXPECT_THAT(look().ping, Workers({0, 1, 2, 3}));
}

TEST_F(BarrierTest, WhoLivesAndIsLateHasABound) {
  Barrier barrier = Make();
  ASSERT_TRUE(barrier.OnHeld(Id(0)).ok());
  ASSERT_TRUE(barrier.OnHeld(Id(1)).ok());
  const Time began = job_.now();
  std::vector<WorkerId> blamed;
  for (int looks = 0; blamed.empty() && looks < 100; ++looks) {
    const Time deadline = barrier.Deadline();
    ASSERT_GT(deadline, job_.now());
    blamed = AtDeadline(barrier).blamed;
    for (std::uint32_t worker = 0; worker < 3; ++worker) Hear(worker);
  }
  EXPECT_THAT(blamed, Workers({2}));
  EXPECT_GE(job_.now(), began + job_.bounds.Stuck());
}

// The same, and with each deadline more of a shard has been copied: it is not blamed, but for more
// than there is to be copied.
TEST_F(BarrierTest, WhoGetsOnWithACopyIsWaitedFor) {
  Barrier barrier = Make(true);
  ASSERT_TRUE(barrier.OnHeld(Id(0)).ok());
  ASSERT_TRUE(barrier.OnHeld(Id(1)).ok());
  const Time began = job_.now();
  std::uint64_t copied = 0;
  while (job_.now() < began + 3 * job_.bounds.Copy()) {
    ASSERT_THAT(AtDeadline(barrier).blamed, IsEmpty());
    for (std::uint32_t worker = 0; worker < 3; ++worker) Hear(worker);
    barrier.OnCopied(Id(2), ++copied);
  }
  barrier.OnCopied(Id(2), copied);  // nothing new
  barrier.OnCopied(Id(2), 2 * kParameters + 1);
  const Time stood_still = job_.now();
  std::vector<WorkerId> blamed;
  for (int looks = 0; blamed.empty() && looks < 100; ++looks) {
    blamed = AtDeadline(barrier).blamed;
    for (std::uint32_t worker = 0; worker < 3; ++worker) Hear(worker);
  }
  EXPECT_THAT(blamed, Workers({2}));
  EXPECT_LE(job_.now(), stood_still + 2 * job_.bounds.Copy());
}

}  // namespace
}  // namespace lockstep::coordinator
