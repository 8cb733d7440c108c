// What a round does without: contributions that are no numbers, and members that do not apply what
// the others have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>

#include "coordinator/round/pipeline.h"
#include "policies/registry.h"
#include "tests/unit/coordinator/carry_out.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two workers, all mapped, an epoch of two rounds of eight samples, four units each.
class LeftOutTest : public ::testing::Test {
 protected:
  void Start(const char* on_nan) {
    StartParameters start;
    start.workers = 2;
    start.config.job.global_batch = 8;
    start.config.job.epochs = 1;
    start.config.job.on_nan = on_nan;
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
    rounds_ = std::make_unique<Pipeline>(job_.get());
    rounds_->Begin(Sampler(16, 8, 8), RoundId(0), 0, StateSource::kSeed);
  }
  Member& At(std::uint32_t worker) { return job_->members.at(WorkerId(worker)); }
  void Seal(std::uint32_t worker, std::uint64_t round, double loss, std::uint32_t units = 4) {
    msg::Sealed sealed{RoundId(round), PartIndex(0), units, loss, {}, 0};
    sealed.plan = rounds_->open()->work().plan().attempt;
    for (std::uint32_t i = 0; i < units; ++i) {
      const std::uint32_t unit = 4 * worker + i;
      const std::uint64_t at = 8 * round + unit;
      sealed.units.push_back({{UnitIndex(unit), {at, at + 1}}, 0, 1});
    }
    ASSERT_TRUE(rounds_->OnSealed(At(worker), sealed).ok());
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  void Apply(std::uint32_t worker, std::uint64_t round, std::uint32_t attempt = 0) {
    const Status status =
        rounds_->OnApplied(At(worker), msg::Applied{RoundId(round), Attempt(attempt), 0, 0, 0});
    ASSERT_TRUE(status.ok()) << status.error().message;
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  Status Finds(std::uint32_t worker, std::vector<std::uint64_t> parts, std::uint32_t attempt = 0) {
    const Status status = rounds_->OnNotFinite(
        At(worker), msg::NotFinite{RoundId(0), Attempt(attempt), std::move(parts)});
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
    return status;
  }
  // To the question whether it holds all sums of the first attempt at the first round.
  void HoldsNothing(std::uint32_t worker) {
    std::uint32_t order = 0;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* fence = std::get_if<msg::FenceAttempt>(&*send->message)) order = fence->order;
    }
    ASSERT_GT(order, 0u);
    ASSERT_TRUE(rounds_
                    ->OnHoldAnswer(At(worker), msg::HoldAnswer{job_->start.term, RoundId(0),
                                                               Attempt(0), false, order})
                    .ok());
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  // The last one that was sent.
  msg::Commit LastCommit() {
    msg::Commit commit;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send != nullptr && std::holds_alternative<msg::Commit>(*send->message)) {
        commit = std::get<msg::Commit>(*send->message);
      }
    }
    return commit;
  }

  const double nan_ = std::numeric_limits<double>::quiet_NaN();
  std::vector<RoundRecord> closed_;
  Actions actions_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Pipeline> rounds_;
};

// A work rule that does what the test says, once.
struct ToldRule : policies::WorkRule {
  std::string_view name() const override { return "told"; }
  std::vector<std::uint32_t> Share(std::span<const policies::WorkerView> members,
                                   std::uint32_t units) override {
    return std::vector<std::uint32_t>(members.size(),
                                      units / static_cast<std::uint32_t>(members.size()));
  }
  policies::WorkVerdict Judge(const policies::RoundView&) override {
    return std::exchange(next, {});
  }
  policies::WorkVerdict next;
};

// The other one has sealed both of its parts, and a stopped process answers nothing.
TEST_F(LeftOutTest, ARoundDoesWithoutTheUnitsOfAStoppedWorkerThatNobodyHasRoomFor) {
  Start("stop");
  Edit(job_->now) = Time{} + std::chrono::seconds(1);
  auto told = std::make_unique<ToldRule>();
  ToldRule& rule = *told;
  Edit(job_->policy).work = std::move(told);
  rule.next.moves = {{WorkerId(1), WorkerId(0), 1}};
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 3, job_->orders(), false}).ok());
  Seal(0, 0, 1.0);
  msg::Sealed second{RoundId(0), PartIndex(1), 1, 1.0, {}, 0};
  second.plan = rounds_->open()->work().plan().attempt;
  second.units.push_back({{UnitIndex(7), {7, 8}}, 0, 1});
  ASSERT_TRUE(rounds_->OnSealed(At(0), second).ok());
  rule.next.fence = {WorkerId(1)};
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  EXPECT_EQ(LastCommit().parts.size(), 0u);  // its answer may still come
  ASSERT_EQ(rounds_->open()->work().unassigned().size(), 3u);
  Edit(job_->now) += job_->bounds.Answer();
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  const msg::Commit commit = LastCommit();
  ASSERT_EQ(commit.parts.size(), 2u);
  EXPECT_EQ(commit.samples, 5u);
  EXPECT_FALSE(job_->failure());
}

TEST_F(LeftOutTest, AContributionThatIsNoNumberEndsTheJob) {
  Start("stop");
  Seal(0, 0, 1.0);
  Seal(1, 0, nan_);
  ASSERT_TRUE(job_->failure());
  EXPECT_THAT(*job_->failure(),
              HasSubstr("round 0: the loss or gradient of worker 1 over the samples "
                        "[4, 8) of epoch 0 is not finite"));
}

// The word of one about another one, which nobody else has heard of.
TEST_F(LeftOutTest, WhoSaysItOfAnotherOneIsNamed) {
  for (const char* on_nan : {"stop", "skip"}) {
    actions_.clear();
    Start(on_nan);
    Seal(0, 0, 1.0);
    Seal(1, 0, 1.0);
    ASSERT_TRUE(Finds(0, {1}).ok());
    std::string said = job_->failure().value_or("");
    for (const Action& action : actions_) {
      if (const auto* line = std::get_if<LogLine>(&action)) said += line->text + "\n";
    }
    EXPECT_THAT(said, HasSubstr("gradient of worker 1 over the samples [4, 8) of epoch 0 is not "
                                "finite"));
    EXPECT_THAT(said, HasSubstr(", as worker 0 says")) << on_nan;
  }
}

TEST_F(LeftOutTest, OrIsSkippedAndItsSamplesAreDropped) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(job_->failure());
  msg::Commit commit = LastCommit();
  ASSERT_EQ(commit.parts.size(), 1u);
  EXPECT_EQ(commit.parts[0].member, At(0).id);
  EXPECT_EQ(commit.samples, 4u);
  Apply(0, 0);
  Apply(1, 0);
  // The epoch's last round is for those who have contributed lately, and whole without the others.
  Seal(0, 1, 1.0, 8);
  Apply(0, 1);
  Apply(1, 1);
  EXPECT_TRUE(rounds_->done());
  ASSERT_EQ(closed_.size(), 2u);
  EXPECT_THAT(closed_[0].dropped, ElementsAre(SampleRange{4, 8}));
  EXPECT_THAT(closed_[0].requeued, IsEmpty());
  ASSERT_EQ(closed_[0].skipped.size(), 1u);
  EXPECT_EQ(closed_[0].skipped[0].worker, WorkerId(1));
  EXPECT_EQ(closed_[0].loss, 0.25);
  EXPECT_THAT(closed_[1].skipped, IsEmpty());
  EXPECT_EQ(job_->closed().totals.samples_dropped, 4u);
  EXPECT_EQ(job_->closed().totals.samples_counted, 12u);
  EXPECT_EQ(job_->closed().totals.epochs, 1u);
}

TEST_F(LeftOutTest, ATailThatIsCountedExactlyDoesWithoutThemToo) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  Apply(0, 0);
  Apply(1, 0);
  Seal(0, 1, nan_);
  Seal(1, 1, 1.0);
  Apply(0, 1);
  Apply(1, 1);
  EXPECT_TRUE(rounds_->done());
  EXPECT_EQ(job_->closed().totals.samples_dropped, 4u);
  EXPECT_EQ(job_->closed().totals.epochs, 1u);
}

TEST_F(LeftOutTest, WithNothingButSuchContributionsThereIsNothingToGoOnWith) {
  Start("skip");
  Seal(0, 0, nan_);
  EXPECT_FALSE(job_->failure());
  Seal(1, 0, nan_);
  ASSERT_TRUE(job_->failure());
  EXPECT_THAT(*job_->failure(), HasSubstr("every other contribution"));
}

// What no worker sees in its own gradient, whoever sums sees.
TEST_F(LeftOutTest, WhatOwnersFindEndsTheJob) {
  Start("stop");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  ASSERT_EQ(LastCommit().parts.size(), 2u);
  EXPECT_TRUE(Finds(0, {1}).ok());
  ASSERT_TRUE(job_->failure());
  EXPECT_THAT(*job_->failure(),
              HasSubstr("round 0: the loss or gradient of worker 1 over the samples "
                        "[4, 8) of epoch 0 is not finite"));
}

TEST_F(LeftOutTest, WhatOwnersFindIsSkippedByAnotherAttempt) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  const msg::Commit first = LastCommit();
  EXPECT_EQ(first.samples, 8u);
  EXPECT_TRUE(Finds(0, {1}).ok());
  EXPECT_TRUE(Finds(1, {1}).ok());  // so does the other owner
  HoldsNothing(0);
  EXPECT_EQ(LastCommit().attempt, Attempt(0));  // the other one might hold it
  HoldsNothing(1);
  const msg::Commit second = LastCommit();
  EXPECT_EQ(second.round, RoundId(0));
  EXPECT_EQ(second.attempt, Attempt(1));
  ASSERT_EQ(second.parts.size(), 1u);
  EXPECT_EQ(second.parts[0].member, At(0).id);
  EXPECT_EQ(second.samples, 4u);
  EXPECT_TRUE(Finds(1, {1}).ok());  // of the attempt before
  EXPECT_FALSE(job_->failure());
  Apply(0, 0, 1);
  Apply(1, 0, 1);
  Seal(0, 1, 1.0);
  Seal(1, 1, 1.0);
  Apply(0, 1);
  Apply(1, 1);
  EXPECT_TRUE(rounds_->done());
  ASSERT_EQ(closed_.size(), 2u);
  EXPECT_THAT(closed_[0].dropped, ElementsAre(SampleRange{4, 8}));
  ASSERT_EQ(closed_[0].skipped.size(), 1u);
  EXPECT_EQ(closed_[0].skipped[0].worker, WorkerId(1));
  ASSERT_EQ(closed_[0].attempts.size(), 2u);
  EXPECT_THAT(closed_[0].attempts[1].reason, HasSubstr("worker 1"));
  EXPECT_EQ(job_->closed().totals.samples_dropped, 4u);
  EXPECT_EQ(job_->closed().totals.samples_counted, 12u);
}

TEST_F(LeftOutTest, WhenOwnersFindNothingElseTheJobEnds) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  EXPECT_TRUE(Finds(0, {0, 1}).ok());
  ASSERT_TRUE(job_->failure());
  EXPECT_THAT(*job_->failure(), HasSubstr("every other contribution"));
}

// The first is lost before the promises are given: what is left is what cannot be summed.
TEST_F(LeftOutTest, NorIsThereAnythingWhenTheOtherIsLost) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  EXPECT_TRUE(Finds(1, {1}).ok());
  job_->PutBehind(At(0), "test");
  rounds_->OnOut(At(0).id, "test");
  Edit(job_->behind).clear();
  HoldsNothing(1);
  ASSERT_TRUE(job_->failure());
  EXPECT_THAT(*job_->failure(),
              HasSubstr("worker 1 over the samples [4, 8) of epoch 0 is not finite, "
                        "and no other contribution is left"));
}

TEST_F(LeftOutTest, WhatCannotBeFoundIsRefused) {
  Start("skip");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  EXPECT_FALSE(Finds(0, {2}).ok());
  EXPECT_FALSE(Finds(0, {1}, 1).ok());
  EXPECT_TRUE(Finds(0, {}).ok());
  Apply(0, 0);
  EXPECT_FALSE(Finds(1, {1}).ok());  // somebody holds all sums
  EXPECT_FALSE(job_->failure());
}

// Somebody else computes what a lost worker's skipped contribution was made of.
TEST_F(LeftOutTest, WhatALostWorkerHadSkippedIsComputedAgain) {
  Start("skip");
  Seal(1, 0, nan_);
  EXPECT_EQ(rounds_->open()->work().SamplesWanted(), 4u);
  job_->PutBehind(At(1), "test");
  rounds_->OnOut(At(1).id, "test");
  EXPECT_EQ(rounds_->open()->work().SamplesWanted(), 8u);
}

TEST_F(LeftOutTest, WhoDoesNotApplyWhatOthersHaveIsPutBehind) {
  Start("stop");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  Apply(0, 0);
  Edit(job_->now) += job_->timeout - std::chrono::milliseconds(1);
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  EXPECT_TRUE(At(1).live());
  EXPECT_LE(rounds_->NextDeadline(), job_->now() + std::chrono::milliseconds(1));
  Edit(job_->now) += std::chrono::milliseconds(1);
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  EXPECT_EQ(At(1).state, MemberState::kBehind);
  EXPECT_TRUE(At(0).live());
}

TEST_F(LeftOutTest, NobodyIsPutBehindWhileNobodyHasAppliedIt) {
  Start("stop");
  Seal(0, 0, 1.0);
  Seal(1, 0, 1.0);
  const std::vector<OwnerShare> owners = LastCommit().owners.owners;
  for (const OwnerShare& share : owners) {
    ASSERT_TRUE(
        rounds_->OnPublished(At(share.owner.worker.value), msg::Published{RoundId(0), Attempt(0)})
            .ok());
  }
  Edit(job_->now) += 3 * job_->timeout;
  AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  EXPECT_TRUE(At(0).live());
  EXPECT_TRUE(At(1).live());
}

}  // namespace
}  // namespace lockstep::coordinator
