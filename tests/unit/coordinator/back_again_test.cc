// Members that were out of an open round with units of it, and are back while it is still open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/round/pipeline.h"
#include "policies/registry.h"
#include "tests/unit/coordinator/carry_out.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace std::chrono_literals;

// Workers with four units each in round 0, a sample a unit, all mapped.
class BackAgainTest : public ::testing::Test {
 protected:
  // `begin`: before the first round is planned.
  void Start(
      std::uint32_t workers, const std::string& policy_name = "full+none",
      std::uint64_t epoch_samples = 100, const std::function<void()>& begin = [] {}) {
    StartParameters start;
    start.workers = workers;
    start.config.policy.name = policy_name;
    start.config.job.global_batch = 4 * workers;
    start.config.job.min_workers = 1;
    auto policy = policies::MakePolicy(start.config.policy, workers, nullptr);
    ASSERT_TRUE(policy.ok());
    job_ = std::make_unique<Job>(std::move(start), std::move(*policy), 1);
    Edit(job_->out) = &actions_;
    Edit(job_->agreed).train_samples = 100;
    for (std::uint32_t i = 0; i < workers; ++i) {
      Member* member = job_->members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
      Bring(job_->members, *member, MemberState::kLive, Time{});
    }
    for (std::uint32_t i = 0; i < workers; ++i) Map(i);
    begin();
    rounds_ = std::make_unique<Pipeline>(job_.get());
    rounds_->Begin(Sampler(epoch_samples, 4 * workers, 4 * workers), RoundId(0), 0,
                   StateSource::kSeed);
  }
  void Map(std::uint32_t worker) {
    for (const Member& other : job_->members.all()) {
      if (other.id.worker.value == worker || !other.live()) continue;
      job_->members.SetPath(WorkerId(worker), {other.id, true, "", true, "mapped", 1});
      job_->members.SetPath(other.id.worker, {At(worker).id, true, "", true, "mapped", 1});
    }
  }
  Member& At(std::uint32_t worker) { return job_->members.at(WorkerId(worker)); }
  void Out(std::uint32_t worker) {
    const MemberId id = At(worker).id;
    job_->members.Free(At(worker), job_->now());
    rounds_->OnOut(id, "test");
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  void Back(std::uint32_t worker) {
    Member* member =
        job_->members.TakeSlot(WorkerId(worker), ConnectionId(worker + 1), job_->now());
    ASSERT_EQ(member, &At(worker));
    Bring(job_->members, *member, MemberState::kLive, job_->now());
    Map(worker);
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  // All that it has and has not sealed.
  void Seal(std::uint32_t worker) {
    const RoundWork& open = rounds_->open()->work();
    const WorkerShare& share = *open.Share(WorkerId(worker));
    const auto part = PartIndex(static_cast<std::uint8_t>(share.parts.size()));
    msg::Sealed sealed{open.round(), part, share.queue.size() - share.sealed_units, 1.0, {}, 0};
    for (std::size_t i = share.sealed_units; i < share.queue.size(); ++i) {
      sealed.units.push_back({{share.queue[i], open.RangeOf(share.queue[i])}, 0, 1});
    }
    sealed.plan = open.plan().attempt;
    ASSERT_TRUE(rounds_->OnSealed(At(worker), sealed).ok());
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  template <class Message>
  std::vector<Message> All() const {
    std::vector<Message> all;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* message = std::get_if<Message>(send->message.get())) all.push_back(*message);
    }
    return all;
  }

  std::vector<RoundRecord> closed_;
  Actions actions_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Pipeline> rounds_;
};

// Were it given what the next one had, which is as slow, it would be out once more, and so on.
TEST_F(BackAgainTest, TheRoundDoesWithoutThemWhereOthersHaveContributed) {
  Start(4);
  Seal(0);
  Seal(1);
  Out(2);
  Seal(0);
  Seal(1);
  Back(2);
  EXPECT_THAT(All<msg::Commit>(), IsEmpty());
  Out(3);
  ASSERT_THAT(All<msg::Commit>(), SizeIs(1));
  const msg::Commit commit = All<msg::Commit>()[0];
  EXPECT_EQ(commit.samples, 12u);
  for (const std::uint32_t worker : {0u, 1u, 2u}) {
    ASSERT_TRUE(rounds_->OnApplied(At(worker), msg::Applied{RoundId(0), Attempt(0), 0, 0, 0}).ok());
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  // In the next round all have room. Its commit closes this one: what was left comes again.
  for (const std::uint32_t worker : {0u, 1u, 2u}) Seal(worker);
  ASSERT_THAT(All<msg::Commit>(), SizeIs(2));
  ASSERT_THAT(closed_, SizeIs(1));
  EXPECT_THAT(closed_[0].requeued, ElementsAre(SampleRange{12, 16}));
}

// The only one that is left has its share, and the one that is back does not get any of it.
TEST_F(BackAgainTest, OthersWithRoomComeFirst) {
  Start(3);
  Out(2);
  Back(2);
  const std::size_t before = All<msg::Assign>().size();
  Out(1);
  ASSERT_THAT(All<msg::Assign>(), SizeIs(before + 1));
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(0))->queue.size(), 12u);
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(2)), nullptr);
}

TEST_F(BackAgainTest, WhereNobodyElseHasUnitsTheyGetThem) {
  Start(2);
  Out(1);
  Back(1);
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(1)), nullptr);
  Out(0);
  ASSERT_NE(rounds_->open()->work().Share(WorkerId(1)), nullptr);
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(1))->queue.size(), 8u);
  Seal(1);
  ASSERT_THAT(All<msg::Commit>(), SizeIs(1));
  EXPECT_EQ(All<msg::Commit>()[0].samples, 8u);
}

// An absence may last for a day, and nobody is drawn into a round who is to leave.
TEST_F(BackAgainTest, TheRoundDoesNotWaitForWhoGetsNothing) {
  for (const bool away : {true, false}) {
    SCOPED_TRACE(away ? "away" : "draining");
    actions_.clear();
    Start(5, "full+balance", 100, [&] {
      if (away) job_->members.SetAbsence(At(4), Absence{Time{}, Time{} + Duration(1h), "test"});
      At(4).draining = !away;
    });
    ASSERT_EQ(rounds_->open()->work().Share(WorkerId(4)), nullptr);
    for (const std::uint32_t worker : {0u, 1u}) Seal(worker);
    Out(2);
    for (const std::uint32_t worker : {0u, 1u}) Seal(worker);
    Back(2);
    EXPECT_THAT(All<msg::Commit>(), IsEmpty());
    Out(3);
    EXPECT_THAT(All<msg::Commit>(), SizeIs(1));
  }
}

// Workers are started anew one after the other, in one long round.
TEST_F(BackAgainTest, WhoHasUnitsAgainGetsMoreOfThem) {
  Start(3);
  for (const std::uint32_t worker : {1u, 2u}) {
    Out(worker);
    Back(worker);
  }
  Out(0);
  ASSERT_NE(rounds_->open()->work().Share(WorkerId(1)), nullptr);
  ASSERT_NE(rounds_->open()->work().Share(WorkerId(2)), nullptr);
  Out(2);
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(1))->queue.size(), 12u);
  Seal(1);
  ASSERT_THAT(All<msg::Commit>(), SizeIs(1));
  EXPECT_EQ(All<msg::Commit>()[0].samples, 12u);
}

// Who is back is nobody to whom the units of a stuck one could go.
TEST_F(BackAgainTest, NobodyIsFencedForThem) {
  Start(3, "full+flexrr", 12, [&] {
    for (const std::uint32_t worker : {0u, 1u, 2u}) At(worker).unit_times.mean = 1ms;
  });
  ASSERT_TRUE(rounds_->open()->work().exact());
  Out(2);
  Back(2);
  Edit(job_->now) += Duration(1h);
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  EXPECT_THAT(All<msg::FenceRound>(), IsEmpty());
  EXPECT_EQ(rounds_->open()->work().Share(WorkerId(2)), nullptr);
}

}  // namespace
}  // namespace lockstep::coordinator
