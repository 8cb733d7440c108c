// A program that asks for the ends of epochs is shown the parameters after an epoch's last round,
// also where this worker has no units for a while.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class EpochEndTest : public MachineTest {
 protected:
  explicit EpochEndTest(const MachineConfig& config = Asking()) : MachineTest(4096, config) {}

  static MachineConfig Asking() {
    MachineConfig config = Config();
    config.epoch_ends = true;
    return config;
  }

  // The commit of a round of `epoch`, over the peer's part; the next round, without units for this
  // worker, is of epoch `next`.
  static msg::Commit TheCommit(std::uint64_t round, std::uint32_t epoch, std::uint32_t next) {
    msg::Commit commit = MakeCommit(round, {{kPeer, PartIndex(0), 1, 4}});
    commit.epoch = Epoch(epoch);
    commit.next = MakePlan(round + 1, 0);
    commit.next->epoch = Epoch(next);
    return commit;
  }
  // Everything but the update of that round; what the last step has asked for is kept.
  void Commit(std::uint64_t round, std::uint32_t epoch, std::uint32_t next) {
    PeerSays(PartReady{RoundId(round),
                       PartIndex(0),
                       static_cast<std::uint32_t>(1 + round),
                       0,
                       1,
                       true,
                       Attempt(0),
                       {}});
    EndFetches();
    Tell(TheCommit(round, epoch, next));
    for (const auto& reduce : All<action::Reduce>()) {
      Do(event::OpDone{reduce.op, false, 0, ""});
    }
    PeerSays(SumsOf(round));
    EndFetches();
  }
  void EndFetches() {
    for (const auto& fetch : All<action::Fetch>()) {
      Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
    }
  }
  void Apply() {
    const auto updates = All<action::Apply>();
    ASSERT_EQ(updates.size(), 1u);
    Do(event::OpDone{updates[0].op, false, 0, ""});
    ASSERT_TRUE(Told<msg::Applied>());
  }
};

TEST_F(EpochEndTest, IsShownToAWorkerWithoutUnits) {
  Begin(0);
  Commit(0, 0, 0);
  Apply();
  EXPECT_TRUE(All<action::EpochEnd>().empty()) << "round 1 is of the same epoch";
  Commit(1, 0, 1);
  Apply();
  const auto ends = All<action::EpochEnd>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].epoch, Epoch(0));
  EXPECT_EQ(ends[0].next, RoundId(2));
  EXPECT_FALSE(ends[0].late);
}

TEST_F(EpochEndTest, TheParametersStayUntilTheProgramHasSeenThem) {
  Begin(0);
  Commit(0, 0, 1);
  Apply();
  ASSERT_EQ(All<action::EpochEnd>().size(), 1u);
  Commit(1, 1, 1);
  EXPECT_TRUE(All<action::Apply>().empty());
  Do(event::EpochEndSeen{});
  EXPECT_TRUE(All<action::EpochEnd>().empty()) << "once is enough";
  Apply();
}

TEST_F(EpochEndTest, NobodyIsToldWhoDoesNotAsk) {
  machine_ = StepMachine(Config(), Layout({{0, 4096}}, 4 * 4096));
  Begin(0);
  Commit(0, 0, 1);
  Apply();
  EXPECT_TRUE(All<action::EpochEnd>().empty());
}

TEST_F(EpochEndTest, AWorkerThatJoinsHearsOfTheEpochsBefore) {
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(0, 1);
  plan.epoch = Epoch(3);
  Tell(msg::Start{StateSource::kSeed, plan, 0});
  const auto ends = All<action::EpochEnd>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].epoch, Epoch(2));
  EXPECT_TRUE(ends[0].late) << "it was not in the job then";
  EXPECT_EQ(All<action::StartWork>().size(), 1u) << "others may take its units meanwhile";
}

TEST_F(EpochEndTest, WhatAnotherCoreHasShownIsNotShownAgain) {
  MachineConfig config = Asking();
  config.held = HeldParameters{Term(1), RoundId(0), std::nullopt};
  config.epochs_seen = {.next = Epoch(1), .newest = Epoch(0)};
  machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(0, 0);
  plan.epoch = Epoch(1);
  Tell(msg::Start{StateSource::kHeld, plan, 0});
  EXPECT_TRUE(All<action::EpochEnd>().empty());
  EXPECT_TRUE(All<action::Exit>().empty());
}

TEST_F(EpochEndTest, AnEndThatTheCoreBeforeDidNotShowIsShownAndIsNotLate) {
  MachineConfig config = Asking();
  config.held = HeldParameters{Term(1), RoundId(0), std::nullopt};
  config.epochs_seen = {.next = Epoch(0), .newest = Epoch(0)};
  machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(0, 0);
  plan.epoch = Epoch(1);
  Tell(msg::Start{StateSource::kHeld, plan, 0});
  const auto ends = All<action::EpochEnd>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].epoch, Epoch(0));
  EXPECT_FALSE(ends[0].late);
}

// The checkpoint may be of the middle of an epoch, whatever this worker had before.
TEST_F(EpochEndTest, OfACheckpointItIsNotKnownWhichEndItIs) {
  MachineConfig config = Asking();
  config.held = HeldParameters{Term(1), RoundId(9), std::nullopt};
  config.epochs_seen = {.next = Epoch(0), .newest = Epoch(0)};
  machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(7, 0);
  plan.epoch = Epoch(1);
  Tell(msg::StateChunk{.round = RoundId(6),
                       .tensor = 0,
                       .offset = 0,
                       .last = true,
                       .bytes = std::vector<std::byte>(4096 * sizeof(float))});
  Tell(msg::Start{StateSource::kCheckpoint, plan, 0});
  const auto ends = All<action::EpochEnd>();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].late);
}

TEST_F(EpochEndTest, TheJobsEndWaitsForTheProgram) {
  Begin(0);
  Commit(0, 0, 1);
  Apply();
  ASSERT_EQ(All<action::EpochEnd>().size(), 1u);
  Commit(1, 1, 1);
  Tell(msg::Finish{});
  EXPECT_TRUE(All<action::Exit>().empty());
  Do(event::EpochEndSeen{});
  EXPECT_EQ(All<action::Apply>().size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
