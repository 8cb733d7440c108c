// I6 of a committed round: everybody lives and is heard, and still nothing moves. However that came
// about, it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "coordinator/round/pipeline.h"
#include "policies/registry.h"
#include "tests/unit/coordinator/carry_out.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Two workers, all mapped, round 0 of eight samples in four units each, committed.
class StuckRoundTest : public ::testing::Test {
 protected:
  void Commit(std::optional<std::uint32_t> only_owner = std::nullopt) {
    StartParameters start;
    start.workers = 2;
    start.config.job.global_batch = 8;
    start.config.job.epochs = 4;
    auto policy = policies::MakePolicy(start.config.policy, 2, nullptr);
    ASSERT_TRUE(policy.ok());
    job_ = std::make_unique<Job>(std::move(start), std::move(*policy), 1);
    Edit(job_->out) = &actions_;
    Edit(job_->agreed).train_samples = 16;
    for (std::uint32_t i : {0u, 1u}) {
      Member* member = job_->members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
      Bring(job_->members, *member, MemberState::kLive, Time{});
    }
    for (std::uint32_t i : {0u, 1u}) {
      job_->members.SetPath(WorkerId(i), {At(1 - i).id, true, "", true, "mapped", 1});
    }
    if (only_owner) At(1 - *only_owner).owner_trial.Fail(RoundId(0));
    rounds_ = std::make_unique<Pipeline>(job_.get());
    rounds_->Begin(Sampler(16, 8, 8), RoundId(0), 0, StateSource::kSeed);
    for (std::uint32_t worker : {0u, 1u}) {
      msg::Sealed sealed{RoundId(0), PartIndex(0), 4, 1.0, {}, 0};
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t unit = 4 * worker + i;
        sealed.units.push_back({{UnitIndex(unit), {unit, unit + 1}}, 0, 1});
      }
      ASSERT_TRUE(rounds_->OnSealed(At(worker), sealed).ok());
      Advance();
    }
    ASSERT_THAT(LastSent<msg::Commit>()->owners.owners, SizeIs(only_owner ? 1 : 2));
  }
  Member& At(std::uint32_t worker) { return job_->members.at(WorkerId(worker)); }
  void Advance() { AdvanceRounds(job_.get(), rounds_.get(), &closed_); }
  void Publish(std::uint32_t worker, std::uint32_t attempt = 0) {
    ASSERT_TRUE(
        rounds_->OnPublished(At(worker), msg::Published{RoundId(0), Attempt(attempt)}).ok());
    Advance();
  }
  // To the last question.
  void Answer(std::uint32_t worker, bool holds) {
    const auto asked = LastSent<msg::FenceAttempt>();
    ASSERT_TRUE(asked);
    ASSERT_TRUE(rounds_
                    ->OnHoldAnswer(At(worker), msg::HoldAnswer{asked->term, asked->round,
                                                               asked->attempt, holds, asked->order})
                    .ok());
    Advance();
  }
  // Everybody is heard all the time, until something of that kind was sent or somebody is out. In
  // time-outs; 0: nothing of it has come in a hundred.
  template <class Message>
  double Wait() {
    const std::size_t before = Count<Message>();
    const Time from = job_->now();
    while (job_->now() < from + 100 * job_->timeout) {
      Edit(job_->now) += job_->timeout / 20;
      for (std::uint32_t i : {0u, 1u}) At(i).last_heard = job_->now();
      EXPECT_LT(rounds_->NextDeadline(), kNever);
      Advance();
      if (Count<Message>() > before || !job_->leaving().empty() || !job_->behind().empty()) {
        return Seconds(job_->now() - from) / Seconds(job_->timeout);
      }
    }
    return 0;
  }
  template <class Message>
  std::size_t Count() const {
    std::size_t count = 0;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send != nullptr && std::holds_alternative<Message>(*send->message)) ++count;
    }
    return count;
  }
  template <class Message>
  std::optional<Message> LastSent() const {
    std::optional<Message> last;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* message = std::get_if<Message>(send->message.get())) last = *message;
    }
    return last;
  }

  std::vector<RoundRecord> closed_;
  Actions actions_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Pipeline> rounds_;
};

TEST_F(StuckRoundTest, ThatIsPublishedAndNotAppliedIsTriedAgainAFewTimes) {
  Commit();
  for (std::uint32_t attempt = 0; attempt < 3; ++attempt) {
    Publish(0, attempt);
    Publish(1, attempt);
    EXPECT_NEAR(Wait<msg::FenceAttempt>(), 6, 0.1) << attempt;
    ASSERT_TRUE(job_->leaving().empty());
    Answer(0, false);
    Answer(1, false);
    ASSERT_EQ(LastSent<msg::Commit>()->attempt, Attempt(attempt + 1));
  }
  Publish(0, 3);
  Publish(1, 3);
  EXPECT_NEAR(Wait<msg::FenceAttempt>(), 6, 0.1);
  ASSERT_THAT(job_->leaving(), SizeIs(2));
  EXPECT_THAT(job_->leaving()[0].reason, HasSubstr("nobody has applied round 0 for"));
}

TEST_F(StuckRoundTest, SumsOfTheAttemptBeforeAreNoneOfTheNext) {
  Commit();
  Publish(0);
  EXPECT_GT(Wait<msg::FenceAttempt>(), 0);
  Answer(0, false);
  Answer(1, false);
  const msg::Commit commit = *LastSent<msg::Commit>();
  ASSERT_EQ(commit.attempt, Attempt(1));
  for (const std::uint32_t attempt : {0u, 1u}) {
    for (const OwnerShare& share : commit.owners.owners) {
      Publish(share.owner.worker.value, attempt);
    }
    EXPECT_EQ(rounds_->committed()->publication().complete(), attempt == 1);
  }
}

// The other one goes on without it.
TEST_F(StuckRoundTest, AHolderThatDoesNotApplyWhatItHoldsIsOut) {
  Commit();
  Publish(0);
  Publish(1);
  EXPECT_GT(Wait<msg::FenceAttempt>(), 0);
  Answer(0, true);
  ASSERT_EQ(LastSent<msg::TakeSums>()->holder, At(0).id);
  EXPECT_NEAR(Wait<msg::FenceAttempt>(), 6, 0.1);
  ASSERT_THAT(job_->leaving(), SizeIs(1));
  EXPECT_EQ(job_->leaving()[0].member, At(0).id);
  EXPECT_TRUE(At(1).live());
}

// There is nobody to copy from: to be put behind would be the end of the job.
TEST_F(StuckRoundTest, WhoeverAppliedItFirstIsLost) {
  Commit(0);
  Publish(0);
  ASSERT_TRUE(rounds_->OnApplied(At(1), msg::Applied{RoundId(0), Attempt(0), 0, 0, 0}).ok());
  job_->members.Free(At(1), job_->now());
  rounds_->OnOut(At(1).id, "test");
  Advance();
  EXPECT_GT(Wait<msg::FenceAttempt>(), 0);
  EXPECT_EQ(Count<msg::FenceAttempt>(), 1u);
  EXPECT_TRUE(At(0).live());
}

// Both have failed as owners by then, so both own.
TEST_F(StuckRoundTest, ThatNoOwnerPublishesGoesToOthersAsWell) {
  Commit(0);
  EXPECT_NEAR(Wait<msg::FenceAttempt>(), 6, 1);
  ASSERT_TRUE(job_->leaving().empty());
  Answer(0, false);
  Answer(1, false);
  const msg::Commit commit = *LastSent<msg::Commit>();
  EXPECT_EQ(commit.attempt, Attempt(1));
  EXPECT_THAT(commit.owners.owners, SizeIs(2));
}

TEST_F(StuckRoundTest, ThatNoOwnerPublishesEndsWhereThereAreNoOthers) {
  Commit();
  EXPECT_NEAR(Wait<msg::FenceAttempt>(), 6, 1);
  ASSERT_THAT(job_->leaving(), SizeIs(2));
  EXPECT_THAT(job_->leaving()[0].reason, HasSubstr("nobody has published sums of round 0 for"));
}

// Of two that own, one publishes: the other gets more time than a silent one would, then it is on
// trial. Nobody says who holds the sums.
TEST_F(StuckRoundTest, WhoLivesAndNeverSaysWhetherItHoldsTheSumsIsBehind) {
  Commit();
  Publish(0);
  EXPECT_GT(Wait<msg::FenceAttempt>(), 0);
  ASSERT_TRUE(job_->leaving().empty());
  EXPECT_TRUE(At(1).owner_trial.on());
  EXPECT_NEAR(Wait<msg::Commit>(), 6, 1);
  EXPECT_THAT(job_->behind(), SizeIs(2));
}

}  // namespace
}  // namespace lockstep::coordinator
