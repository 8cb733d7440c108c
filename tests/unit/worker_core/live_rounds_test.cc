#include "worker/core/live_rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/worker_core/machine_fixture.h"
#include "worker/core/sums.h"

namespace lockstep::worker {
namespace {

// The sums of a worker that owns half of one bucket, beside the rounds that they are of.
class LiveRoundsTest : public ::testing::Test {
 protected:
  static MachineConfig Config() {
    MachineConfig config;
    config.self = kSelf;
    config.term = Term(1);
    return config;
  }

  void Plan(std::uint64_t round) {
    Round& planned = rounds_.At(RoundId(round));
    planned.plan = Attempt(0);
    planned.given = GivenUnits{};
    planned.given->base = RoundId(round);
    rounds_.SetOwners(RoundId(round), kOwners);
  }
  void CommitRound(std::uint64_t round) {
    msg::Commit commit;
    commit.term = Term(1);
    commit.round = RoundId(round);
    commit.parts = {{kPeer, PartIndex(0), 1, 4}};
    commit.owners = kOwners;
    commit.members = {kSelf, kPeer};
    ASSERT_TRUE(sums_.OnCommit(commit));
    rounds_.OnCommitted(commit.round);
    own_.OnCommit(commit);
  }
  std::vector<std::uint64_t> Live() const {
    std::vector<std::uint64_t> live;
    for (const auto& [id, round] : rounds_.all()) live.push_back(id.value);
    return live;
  }
  using Rounds = std::vector<std::uint64_t>;

  const OwnerMap kOwners{1, {{kSelf, 1}, {kPeer, 1}}};
  Context context_{Config(), Layout({{0, 4096}}, 4 * 4096)};
  Buffers buffers_{context_};
  Fetcher fetcher_{context_, buffers_};
  Peers peers_{context_};
  LiveRounds rounds_{context_};
  CostReport costs_{context_};
  OwnWork own_{context_, buffers_, peers_, rounds_, costs_};
  Inputs inputs_{context_, buffers_, fetcher_, peers_, rounds_};
  Sums sums_{context_, buffers_, fetcher_, peers_, rounds_, inputs_, own_};
};

TEST_F(LiveRoundsTest, SumsAreKeptForALateWorkerAndThenAllOfTheRoundGoes) {
  for (std::uint64_t round = 0; round < 6; ++round) {
    Plan(round);
    CommitRound(round);
    rounds_.Prune(RoundId(round));
    rounds_.CheckInvariants();
  }
  // Applied up to round 4: the provisional round, and two that are closed.
  EXPECT_EQ(Live(), (Rounds{3, 4, 5}));
  EXPECT_EQ(rounds_.PlanOf(RoundId(2)), std::nullopt);
  EXPECT_EQ(rounds_.OwnersOf(RoundId(2)), nullptr);
  EXPECT_EQ(rounds_.SumsOf(RoundId(2)), nullptr);
}

TEST_F(LiveRoundsTest, WhatIsNotAppliedStays) {
  for (std::uint64_t round = 0; round < 4; ++round) {
    Plan(round);
    CommitRound(round);
    rounds_.Prune(RoundId(0));
  }
  EXPECT_EQ(Live(), (Rounds{0, 1, 2, 3}));
}

TEST_F(LiveRoundsTest, ARoundThatIsOpenAgainKeepsItsPlanAndItsOwners) {
  Plan(0);
  CommitRound(0);
  Plan(1);
  rounds_.Reopen(RoundId(0));
  rounds_.Expect(RoundId(0));
  rounds_.Prune(RoundId(0));
  rounds_.CheckInvariants();
  EXPECT_EQ(Live(), (Rounds{0, 1}));
  EXPECT_EQ(rounds_.PlanOf(RoundId(0)), Attempt(0));
  EXPECT_EQ(rounds_.OwnersOf(RoundId(0))->version, 1u);
  EXPECT_EQ(rounds_.SumsOf(RoundId(0)), nullptr);
}

TEST_F(LiveRoundsTest, TheEndOfARoundGivesUpItsFetchesAndItsBuffer) {
  Plan(0);
  CommitRound(0);
  peers_.OnUp({kPeer, "test"});
  SumReady ready = SumsOf(0);
  ASSERT_TRUE(sums_.OnSumReady(kPeer, ready, {}).ok());
  sums_.Update();
  fetcher_.Pump();
  ASSERT_EQ(fetcher_.under_way(), 1u);
  const BufferId buffer{BufferKind::kTaken, 0, {}};
  ASSERT_TRUE(buffers_.Taken(buffer));
  rounds_.ReopenFrom(RoundId(0));
  const bool given_up = std::ranges::any_of(context_.actions, [](const Action& action) {
    return std::holds_alternative<action::GiveUpFetch>(action);
  });
  EXPECT_TRUE(given_up);
  EXPECT_FALSE(buffers_.Taken(buffer));
  EXPECT_TRUE(buffers_.InUse(buffer)) << "bytes of the fetch may still land";
}

using LiveRoundsDeathTest = LiveRoundsTest;

TEST_F(LiveRoundsDeathTest, ARoundThatIsOverAndStillHasUnitsIsABug) {
  Plan(0);
  CommitRound(0);
  Plan(1);
  CommitRound(1);
  Plan(0);
  EXPECT_DEATH(rounds_.CheckInvariants(), "closed round 0 has units");
}

}  // namespace
}  // namespace lockstep::worker
