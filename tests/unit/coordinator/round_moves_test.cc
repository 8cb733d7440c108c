// Work that a rule moves: units are given again only when their holder gave them back or was
// fenced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "coordinator/round/pipeline.h"
#include "tests/unit/coordinator/carry_out.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Proposals {
  std::vector<policies::MoveUnits> moves;
  std::vector<WorkerId> fence;
};

class ProposingRule final : public policies::WorkRule {
 public:
  explicit ProposingRule(Proposals* proposals) : proposals_(proposals) {}
  std::string_view name() const override { return "proposing"; }
  std::vector<std::uint32_t> Share(std::span<const policies::WorkerView> members,
                                   std::uint32_t units) override {
    return std::vector<std::uint32_t>(members.size(),
                                      units / static_cast<std::uint32_t>(members.size()));
  }
  policies::WorkVerdict Judge(const policies::RoundView&) override {
    policies::WorkVerdict verdict;
    verdict.moves = std::move(proposals_->moves);
    verdict.fence = std::move(proposals_->fence);
    proposals_->moves.clear();
    proposals_->fence.clear();
    verdict.reason = "because";
    return verdict;
  }

 private:
  Proposals* proposals_;
};

// Closes over everything that is delivered, with weights that somebody has thought out.
class WeighingRule final : public policies::ClosingRule {
 public:
  explicit WeighingRule(const std::vector<float>* weights) : weights_(weights) {}
  std::string_view name() const override { return "weighing"; }
  policies::ClosingVerdict Judge(const policies::RoundView& view) override {
    policies::ClosingVerdict verdict;
    verdict.close = view.finished == view.with_units;
    verdict.reason = "because";
    for (const policies::WorkerView& worker : view.workers) {
      for (const policies::PartView& part : worker.parts) {
        const std::size_t i = std::min<std::size_t>(verdict.parts.size(), weights_->size() - 1);
        verdict.parts.push_back({worker.member.worker, part.part, (*weights_)[i]});
      }
    }
    return verdict;
  }
  bool CanDoWithout(const policies::RoundView&) override { return false; }

 private:
  const std::vector<float>* weights_;
};

// Two workers, four units each, all mapped.
class RoundMovesTest : public ::testing::Test {
 protected:
  RoundMovesTest() {
    StartParameters start;
    start.workers = 2;
    start.config.job.global_batch = 8;
    policies::Policy policy;
    policy.name = "test";
    policy.closing = std::make_unique<WeighingRule>(&weights_);
    policy.work = std::make_unique<ProposingRule>(&proposals_);
    job_ = std::make_unique<Job>(std::move(start), std::move(policy), 1);
    Edit(job_->out) = &actions_;
    Edit(job_->agreed).train_samples = 80;
    for (std::uint32_t i : {0u, 1u}) {
      Member* member = job_->members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
      Bring(job_->members, *member, MemberState::kLive, Time{});
    }
    for (std::uint32_t i : {0u, 1u}) {
      job_->members.SetPath(WorkerId(i), {At(1 - i).id, true, "", true, "mapped", 1});
    }
    rounds_ = std::make_unique<Pipeline>(job_.get());
    rounds_->Begin(Sampler(80, 8, 8), RoundId(0), 0, StateSource::kSeed);
  }
  Member& At(std::uint32_t worker) { return job_->members.at(WorkerId(worker)); }
  void Advance() {
    actions_.clear();
    AdvanceRounds(job_.get(), rounds_.get(), &closed_);
  }
  // Messages of a kind that the last step sent to `worker`.
  template <class M>
  std::vector<M> Sent(std::uint32_t worker) {
    std::vector<M> messages;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr || !std::holds_alternative<M>(*send->message)) continue;
      for (const ConnectionId to : send->to) {
        if (to.value == worker + 1) messages.push_back(std::get<M>(*send->message));
      }
    }
    return messages;
  }
  msg::Sealed SealedOf(PartIndex part, std::uint64_t from, std::uint64_t to) {
    msg::Sealed sealed{RoundId(0), part, to - from, 0, {}, 0};
    for (std::uint64_t i = from; i < to; ++i) {
      sealed.units.push_back({{UnitIndex(static_cast<std::uint32_t>(i)), {i, i + 1}}, 0, 1});
    }
    return sealed;
  }

  const RoundWork& open() { return rounds_->open()->work(); }
  // The last units of `from` go to `to`; the number of the Assign.
  std::uint32_t Move(std::uint32_t from, std::uint32_t to, std::uint32_t units) {
    proposals_.moves = {{WorkerId(from), WorkerId(to), units}};
    Advance();
    const std::vector<msg::Revoke> revokes = Sent<msg::Revoke>(from);
    if (revokes.size() != 1) {
      ADD_FAILURE() << "not moved";
      return 0;
    }
    actions_.clear();
    EXPECT_TRUE(rounds_
                    ->OnRevoked(At(from),
                                msg::Revoked{RoundId(0), revokes[0].from, revokes[0].order, false})
                    .ok());
    const std::vector<msg::Assign> assigns = Sent<msg::Assign>(to);
    EXPECT_EQ(assigns.size(), 1u);
    return assigns.empty() ? 0 : assigns[0].order;
  }

  std::vector<float> weights_{1.0f};
  Proposals proposals_;
  Actions actions_;
  std::unique_ptr<Job> job_;
  std::vector<RoundRecord> closed_;
  std::unique_ptr<Pipeline> rounds_;
};

// A wrong policy wastes time; what it gets wrong never reaches a sum.
TEST_F(RoundMovesTest, AWeightThatIsNoPositiveNumberClosesNothing) {
  ASSERT_TRUE(rounds_->OnSealed(At(0), SealedOf(PartIndex(0), 0, 4)).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(0), 4, 8)).ok());
  const auto warnings = [this] {
    return std::ranges::count_if(actions_, [](const Action& action) {
      const auto* line = std::get_if<LogLine>(&action);
      return line != nullptr && line->level == LogLevel::kWarning;
    });
  };
  const float infinity = std::numeric_limits<float>::infinity();
  std::ptrdiff_t warned = 0;
  for (const float wrong : {std::nanf(""), infinity, -infinity, 0.0f, -1.0f}) {
    for (const std::vector<float>& weights : {std::vector{1.0f, wrong}, std::vector{wrong, 1.0f}}) {
      weights_ = weights;
      Advance();
      EXPECT_THAT(Sent<msg::Commit>(0), SizeIs(0)) << wrong;
      warned += warnings();
    }
  }
  EXPECT_EQ(warned, 1);  // once for a round
  weights_ = {0.25f, 1.5f};
  Advance();
  ASSERT_THAT(Sent<msg::Commit>(0), SizeIs(1));
  EXPECT_EQ(Sent<msg::Commit>(0)[0].parts[0].weight, 0.25f);
  EXPECT_EQ(Sent<msg::Commit>(0)[0].parts[1].weight, 1.5f);
}

TEST_F(RoundMovesTest, UnitsMoveOnceTheirHolderHasGivenThemBack) {
  proposals_.moves = {{WorkerId(0), WorkerId(1), 2}};
  Advance();
  ASSERT_THAT(Sent<msg::Revoke>(0), SizeIs(1));
  EXPECT_EQ(Sent<msg::Revoke>(0)[0].from, 2u);
  EXPECT_THAT(Sent<msg::Assign>(1), SizeIs(0));
  // It had begun the third one.
  actions_.clear();
  ASSERT_TRUE(rounds_->OnRevoked(At(0), msg::Revoked{RoundId(0), 3, 1, false}).ok());
  ASSERT_THAT(Sent<msg::Assign>(1), SizeIs(1));
  EXPECT_THAT(Sent<msg::Assign>(1)[0].units, ElementsAre(Unit{UnitIndex(3), {3, 4}}));
  ASSERT_TRUE(rounds_->OnSealed(At(0), SealedOf(PartIndex(0), 0, 3)).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(0), 4, 8)).ok());
  Advance();
  EXPECT_THAT(Sent<msg::Commit>(0), SizeIs(0));
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(1), 3, 4)).ok());
  Advance();
  ASSERT_THAT(Sent<msg::Commit>(0), SizeIs(1));
  EXPECT_EQ(Sent<msg::Commit>(0)[0].samples, 8u);
}

TEST_F(RoundMovesTest, SealedRunsAreThoseOfTheUnits) {
  for (const std::vector<std::uint64_t>& runs : std::vector<std::vector<std::uint64_t>>{
           {3}, {5}, {4, 0}, {0, 4}, {5, std::numeric_limits<std::uint64_t>::max()}}) {
    msg::Sealed wrong = SealedOf(PartIndex(0), 0, 4);
    wrong.runs = runs;
    EXPECT_FALSE(rounds_->OnSealed(At(0), wrong).ok()) << runs.front();
  }
  msg::Sealed right = SealedOf(PartIndex(0), 0, 4);
  right.runs = {3, 1};
  EXPECT_TRUE(rounds_->OnSealed(At(0), right).ok());
}

// Over the parts of the commit, whichever they are; a mean over samples, not over parts.
TEST_F(RoundMovesTest, MetricsOfPartsAreReducedInTheCommit) {
  msg::Sealed some = SealedOf(PartIndex(0), 0, 3);
  some.loss_sum = 6;
  some.metrics = {{"accuracy", Reduction::kMean, 3, 3}, {"norm", Reduction::kMax, 2, 0}};
  msg::Sealed others = SealedOf(PartIndex(0), 4, 8);
  others.loss_sum = 2;
  others.metrics = {{"accuracy", Reduction::kMean, 1, 4}, {"norm", Reduction::kMax, 5, 0}};
  msg::Sealed moved = SealedOf(PartIndex(1), 3, 4);
  moved.metrics = {{"accuracy", Reduction::kMean, 0, 1}, {"tokens", Reduction::kSum, 7, 0}};
  Move(0, 1, 1);
  ASSERT_TRUE(rounds_->OnSealed(At(0), some).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), others).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), moved).ok());
  Advance();
  const std::vector<msg::Commit> commits = Sent<msg::Commit>(0);
  ASSERT_THAT(commits, SizeIs(1));
  EXPECT_EQ(commits[0].loss, 1);
  EXPECT_THAT(commits[0].metrics, ElementsAre(Metric{"accuracy", Reduction::kMean, 4, 8},
                                              Metric{"norm", Reduction::kMax, 5, 0},
                                              Metric{"tokens", Reduction::kSum, 7, 0}));
}

// What a part counts for is its program's to say; where it says nothing, its samples.
TEST_F(RoundMovesTest, AMeanIsOverWhatThePartsCountFor) {
  msg::Sealed some = SealedOf(PartIndex(0), 0, 3);
  some.loss_sum = 30;
  some.divisor = 17;
  msg::Sealed others = SealedOf(PartIndex(0), 4, 8);
  others.loss_sum = 10;
  others.divisor = 0;
  msg::Sealed moved = SealedOf(PartIndex(1), 3, 4);
  Move(0, 1, 1);
  ASSERT_TRUE(rounds_->OnSealed(At(0), some).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), others).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), moved).ok());
  Advance();
  const std::vector<msg::Commit> commits = Sent<msg::Commit>(0);
  ASSERT_THAT(commits, SizeIs(1));
  EXPECT_EQ(commits[0].samples, 8u);
  EXPECT_EQ(commits[0].scale, static_cast<float>(1.0 / 18));
  EXPECT_EQ(commits[0].loss, 40.0 / 18);
}

TEST_F(RoundMovesTest, OfWhatCountsForNothingTheMeanIsZero) {
  for (std::uint32_t w : {0u, 1u}) {
    msg::Sealed nothing = SealedOf(PartIndex(0), 4 * w, 4 * w + 4);
    nothing.divisor = 0;
    ASSERT_TRUE(rounds_->OnSealed(At(w), nothing).ok());
  }
  Advance();
  const std::vector<msg::Commit> commits = Sent<msg::Commit>(0);
  ASSERT_THAT(commits, SizeIs(1));
  EXPECT_EQ(commits[0].scale, 0);
  EXPECT_EQ(commits[0].loss, 0);
}

TEST_F(RoundMovesTest, MetricsAreOfThePartAndBounded) {
  std::vector<Metric> many;
  for (std::size_t i = 0; i <= kMaxMetrics; ++i) {
    many.push_back({std::to_string(i), Reduction::kSum, 1, 0});
  }
  for (const std::vector<Metric>& metrics : std::vector<std::vector<Metric>>{
           {{"more", Reduction::kMean, 1, 5}},
           {{"twice", Reduction::kSum, 1, 0}, {"twice", Reduction::kSum, 1, 0}}}) {
    msg::Sealed wrong = SealedOf(PartIndex(0), 0, 4);
    wrong.metrics = metrics;
    EXPECT_FALSE(rounds_->OnSealed(At(0), wrong).ok()) << metrics.front().name;
  }
  many.resize(kMaxMetrics);
  msg::Sealed right = SealedOf(PartIndex(0), 0, 4);
  right.metrics = many;
  EXPECT_TRUE(rounds_->OnSealed(At(0), right).ok());
  // No worker knows how many the others have: it is no fault of its own.
  msg::Sealed other = SealedOf(PartIndex(0), 4, 8);
  other.metrics = {{"another", Reduction::kSum, 1, 0}, {"0", Reduction::kSum, 2, 0}};
  actions_.clear();
  EXPECT_TRUE(rounds_->OnSealed(At(1), other).ok());
  ASSERT_THAT(actions_, SizeIs(1));
  EXPECT_THAT(std::get<LogLine>(actions_[0]).text, ::testing::HasSubstr("another of worker 1"));
  Advance();
  const std::vector<msg::Commit> commits = Sent<msg::Commit>(0);
  ASSERT_THAT(commits, SizeIs(1));
  ASSERT_THAT(commits[0].metrics, SizeIs(kMaxMetrics));
  EXPECT_EQ(commits[0].metrics[0].name, "0");
  EXPECT_EQ(commits[0].metrics[0].value, 3);
}

TEST_F(RoundMovesTest, LossesThatAreTooLargeTogetherEndTheJob) {
  for (std::uint32_t w : {0u, 1u}) {
    msg::Sealed large = SealedOf(PartIndex(0), 4 * w, 4 * w + 4);
    large.loss_sum = 1e308;
    ASSERT_TRUE(rounds_->OnSealed(At(w), large).ok());
  }
  Decision decision = rounds_->Decide();
  ASSERT_EQ(decision.kind, Decision::Kind::kCommit);
  const auto draft = rounds_->DraftCommit(std::move(decision.verdict));
  ASSERT_FALSE(draft.ok());
  EXPECT_THAT(draft.error().message, ::testing::HasSubstr("the sum of the workers' losses is not"));
}

TEST_F(RoundMovesTest, AUnitThatWasGivenAwayIsNotSealedByItsFormerHolder) {
  proposals_.moves = {{WorkerId(0), WorkerId(1), 1}};
  Advance();
  ASSERT_TRUE(rounds_->OnRevoked(At(0), msg::Revoked{RoundId(0), 3, 1, false}).ok());
  EXPECT_FALSE(rounds_->OnSealed(At(0), SealedOf(PartIndex(0), 0, 4)).ok());
}

TEST_F(RoundMovesTest, WhoDoesNotGiveBackInTimeIsFenced) {
  proposals_.moves = {{WorkerId(0), WorkerId(1), 2}};
  Advance();
  Edit(job_->now) = rounds_->NextDeadline();
  Advance();
  EXPECT_THAT(Sent<msg::FenceRound>(0), SizeIs(1));
  ASSERT_THAT(Sent<msg::Assign>(1), SizeIs(1));
  EXPECT_THAT(Sent<msg::Assign>(1)[0].units, SizeIs(4));
  // What it says of the round counts for nothing, and is no crime: it may not know yet.
  EXPECT_TRUE(rounds_->OnSealed(At(0), SealedOf(PartIndex(0), 0, 4)).ok());
  EXPECT_TRUE(rounds_->OnRevoked(At(0), msg::Revoked{RoundId(0), 2, 1, false}).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(0), 4, 8)).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(1), 0, 4)).ok());
  Advance();
  ASSERT_THAT(Sent<msg::Commit>(1), SizeIs(1));
  EXPECT_THAT(Sent<msg::Commit>(1)[0].parts, SizeIs(2));
}

TEST_F(RoundMovesTest, FencedByTheRule) {
  proposals_.fence = {WorkerId(1)};
  Advance();
  EXPECT_THAT(Sent<msg::FenceRound>(1), SizeIs(1));
  Advance();
  ASSERT_THAT(Sent<msg::Assign>(0), SizeIs(1));
  EXPECT_THAT(Sent<msg::Assign>(0)[0].units, SizeIs(4));
}

TEST_F(RoundMovesTest, NonsenseIsNotCarriedOut) {
  proposals_.moves = {
      {WorkerId(0), WorkerId(0), 2}, {WorkerId(7), WorkerId(0), 1}, {WorkerId(0), WorkerId(9), 1}};
  proposals_.fence = {WorkerId(8)};
  Advance();
  EXPECT_TRUE(actions_.empty());
}

TEST_F(RoundMovesTest, NothingIsGivenBehindTheSecondPart) {
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(0), 4, 8)).ok());
  proposals_.moves = {{WorkerId(0), WorkerId(1), 1}};
  Advance();
  ASSERT_TRUE(rounds_->OnRevoked(At(0), msg::Revoked{RoundId(0), 3, 1, false}).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(1), 3, 4)).ok());
  proposals_.moves = {{WorkerId(0), WorkerId(1), 1}};
  Advance();
  EXPECT_THAT(Sent<msg::Revoke>(0), SizeIs(0));
}

TEST_F(RoundMovesTest, SeveralAssignsInARowGoToOneHelper) {
  Move(0, 1, 1);
  Move(0, 1, 1);
  ASSERT_TRUE(rounds_->OnSealed(At(1), SealedOf(PartIndex(0), 4, 8)).ok());
  Move(0, 1, 1);
  EXPECT_EQ(open().Share(WorkerId(1))->queue.size(), 7u);
  msg::Sealed rest = SealedOf(PartIndex(1), 1, 4);
  std::reverse(rest.units.begin(), rest.units.end());
  ASSERT_TRUE(rounds_->OnSealed(At(1), rest).ok());
  ASSERT_TRUE(rounds_->OnSealed(At(0), SealedOf(PartIndex(0), 0, 1)).ok());
  Advance();
  ASSERT_THAT(Sent<msg::Commit>(0), SizeIs(1));
  EXPECT_EQ(Sent<msg::Commit>(0)[0].samples, 8u);
}

TEST_F(RoundMovesTest, WhatComesTooLateIsRefusedAndGoesElsewhere) {
  const std::uint32_t first = Move(0, 1, 1);   // unit 3, to position 4
  const std::uint32_t second = Move(0, 1, 1);  // unit 2, to position 5
  // It took the first one as the last of its second part, and refuses the second one.
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 5, second, false}).ok());
  EXPECT_THAT(open().Share(WorkerId(1))->queue, SizeIs(5));
  // Back to who has room: its former holder.
  Advance();
  ASSERT_THAT(Sent<msg::Assign>(0), SizeIs(1));
  EXPECT_THAT(Sent<msg::Assign>(0)[0].units, ElementsAre(Unit{UnitIndex(2), {2, 3}}));
  EXPECT_THAT(Sent<msg::Assign>(1), SizeIs(0));
  // Nothing is given to who has refused, and each refusal counts once.
  EXPECT_FALSE(open().Share(WorkerId(1))->HasRoom());
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 5, second, false}).ok());
  EXPECT_THAT(open().Share(WorkerId(1))->queue, SizeIs(5));
  EXPECT_TRUE(open().unassigned().empty());
  EXPECT_NE(first, second);
}

TEST_F(RoundMovesTest, ARefusalIsOfItsAssignAloneAndBothEndsCountAlike) {
  const std::uint32_t first = Move(0, 1, 1);   // unit 3, to position 4
  const std::uint32_t second = Move(0, 1, 1);  // unit 2, to position 5
  // The worker cannot have refused the first one and know of the second: that begins where the
  // first one would have.
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 4, first, false}).ok());
  EXPECT_THAT(open().Share(WorkerId(1))->queue,
              ElementsAre(UnitIndex(4), UnitIndex(5), UnitIndex(6), UnitIndex(7), UnitIndex(2)));
  EXPECT_FALSE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 5, second, false})
                   .ok());  // that is another one
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 4, second, false}).ok());
  EXPECT_THAT(open().Share(WorkerId(1))->queue, SizeIs(4));
}

TEST_F(RoundMovesTest, AnAnswerIsToItsOrderOnly) {
  Move(0, 1, 1);
  proposals_.moves = {{WorkerId(1), WorkerId(0), 1}};
  Advance();
  ASSERT_THAT(Sent<msg::Revoke>(1), SizeIs(1));
  const msg::Revoke revoke = Sent<msg::Revoke>(1)[0];
  EXPECT_EQ(revoke.from, 4u);
  // An old answer, of the same round in an earlier plan.
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 0, 77, false}).ok());
  EXPECT_THAT(open().Share(WorkerId(1))->queue, SizeIs(5));
  // The Assign was refused before the Revoke was seen: the answer gives nothing more.
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 4, revoke.order - 1, false}).ok());
  EXPECT_TRUE(open().Share(WorkerId(1))->revoke.has_value());
  ASSERT_TRUE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 4, revoke.order, false}).ok());
  EXPECT_FALSE(open().Share(WorkerId(1))->revoke.has_value());
  EXPECT_THAT(open().Share(WorkerId(1))->queue, SizeIs(4));
  EXPECT_FALSE(rounds_->OnRevoked(At(1), msg::Revoked{RoundId(0), 0, 0, false}).ok() &&
               open().Share(WorkerId(1))->queue.size() < 4);  // the plan cannot be refused
}

}  // namespace
}  // namespace lockstep::coordinator
