// What is kept of the sums of a closed round: the own shard, for who is late. What others have
// summed goes with the round, unless somebody was told that all of it can be had here.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class KeptSumsTest : public MachineTest {
 protected:
  explicit KeptSumsTest(const MachineConfig& config = Config()) : MachineTest(4096, config) {}

  FloatRange Shard(const MemberId& owner) const {
    return machine_.layout().Shard(MakePlan(0, 0).owners, owner).at(0).range;
  }
  static PieceName Name(std::uint64_t round, const MemberId& owner, const FloatRange& range) {
    PieceName name;
    name.kind = static_cast<std::uint32_t>(PieceKind::kSum);
    name.round = round;
    name.owner = owner.worker.value;
    name.offset = range.first * sizeof(float);
    name.bytes = range.count * sizeof(float);
    return name;
  }
  bool Serves(std::uint64_t round, const MemberId& owner) {
    const Serve serve = machine_.OnPieceAsked(kPeer, Name(round, owner, Shard(owner)));
    if (!serve.have) return false;
    EXPECT_EQ(serve.from.buffer.kind, owner == kSelf ? BufferKind::kSum : own_);
    Do(event::Served{serve.cookie});
    return true;
  }
  // The peer's part is sealed.
  static PartReady PartOf(std::uint64_t round) {
    const auto tag = static_cast<std::uint32_t>(1 + round);
    return {RoundId(round), PartIndex(0), tag, 0, 1, true, Attempt(0), {}};
  }
  // A round of the peer's part: this worker makes its shard of it, and takes the other one. Returns
  // where that landed.
  BufferId Take(std::uint64_t round) {
    PeerSays(PartOf(round));
    EndFetch();
    Tell(TheCommit(round));
    const auto reductions = All<action::Reduce>();
    EXPECT_EQ(reductions.size(), 1u);
    Do(event::OpDone{reductions.at(0).op, false, 0, ""});
    PeerSays(SumsOf(round));
    return EndFetch();
  }
  // And it is applied.
  void Apply() {
    const auto updates = All<action::Apply>();
    ASSERT_EQ(updates.size(), 1u);
    for (const auto& slice : updates[0].slices) {
      EXPECT_EQ(slice.source.buffer.kind, slice.range == Shard(kSelf) ? BufferKind::kSum : own_);
    }
    Do(event::OpDone{updates[0].op, false, 0, ""});
    ASSERT_TRUE(Told<msg::Applied>());
  }
  BufferId EndFetch() {
    const auto fetches = All<action::Fetch>();
    EXPECT_EQ(fetches.size(), 1u);
    Do(event::FetchDone{fetches.at(0).fetch, FetchStatus::kOk});
    return fetches.at(0).to.buffer;
  }
  static msg::Commit TheCommit(std::uint64_t round) {
    msg::Commit commit = MakeCommit(round, {{kPeer, PartIndex(0), 1, 4}});
    commit.next = MakePlan(round + 1, 0);
    return commit;
  }

  BufferKind own_ = BufferKind::kTaken;  // of the peer's shard
};

TEST_F(KeptSumsTest, WhatOthersSummedGoesWhenItsRoundIsClosed) {
  Begin(0);
  const BufferId first = Take(0);
  EXPECT_EQ(first, (BufferId{BufferKind::kTaken, 0, {}}));
  Apply();
  EXPECT_TRUE(Serves(0, kPeer)) << "its round is not closed";
  // The commit of the next one closes it, and what comes then takes its place.
  EXPECT_EQ(Take(1), first);
  Apply();
  EXPECT_FALSE(Serves(0, kPeer));
  EXPECT_TRUE(Serves(0, kSelf)) << "whoever is late takes it here";
  EXPECT_EQ(Take(2), first);
  Apply();
  EXPECT_TRUE(Serves(0, kSelf));
  EXPECT_TRUE(Serves(1, kSelf));
  EXPECT_TRUE(Serves(2, kSelf));
}

// A commit closes the round before it, whoever has not applied that.
TEST_F(KeptSumsTest, WhatIsNotAppliedStays) {
  Begin(0);
  const BufferId first = Take(0);
  const auto update = All<action::Apply>();
  ASSERT_EQ(update.size(), 1u);
  PeerSays(PartOf(1));
  EndFetch();
  Tell(TheCommit(1));
  EXPECT_TRUE(Serves(0, kPeer)) << "the update reads it";
  Do(event::OpDone{update[0].op, false, 0, ""});
  EXPECT_TRUE(Told<msg::Applied>());
  EXPECT_FALSE(Serves(0, kPeer));
  EXPECT_EQ(first.index, 0u);
}

TEST_F(KeptSumsTest, WhoWasNamedKeepsAllOfIt) {
  Begin(0);
  const BufferId first = Take(0);
  Apply();
  PeerSays(SumWant{Term(1), RoundId(0), Attempt(0)});
  ASSERT_TRUE(Said<SumReady>());
  EXPECT_TRUE(Said<SumReady>()->whole);
  EXPECT_NE(Take(1), first);
  EXPECT_TRUE(Serves(0, kPeer));
}

// Whoever takes it there may be heard only when the round is closed.
TEST_F(KeptSumsTest, WhoIsNamedByTheCoordinatorKeepsAllOfIt) {
  Begin(0);
  const BufferId first = Take(0);
  Apply();
  Tell(msg::TakeSums{TheCommit(0), kSelf});
  EXPECT_NE(Take(1), first);
  PeerSays(SumWant{Term(1), RoundId(0), Attempt(0)});
  ASSERT_TRUE(Said<SumReady>());
  EXPECT_TRUE(Said<SumReady>()->whole);
  EXPECT_TRUE(Serves(0, kPeer));
}

// It says so, and who asked copies the parameters instead.
TEST_F(KeptSumsTest, WhoAsksLaterHearsThatItIsGone) {
  Begin(0);
  Take(0);
  Apply();
  Take(1);
  PeerSays(SumWant{Term(1), RoundId(0), Attempt(0)});
  ASSERT_TRUE(Said<SumReady>());
  EXPECT_TRUE(Said<SumReady>()->gone);
  EXPECT_FALSE(Said<SumReady>()->whole);
}

// What the peer has summed is read in its memory, and copied only for who is to take all of it
// here.
class KeptMappedTest : public KeptSumsTest {
 protected:
  KeptMappedTest() : KeptSumsTest(Mapping()) {
    Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "arena", "host"}}});
    Do(event::PeerUp{kPeer, "tcp"});
    Do(event::PeerMapped{kPeer, true, ""});
    PeerSays(MapState{true});
    Tell(msg::Start{StateSource::kSeed, MakePlan(0, 0), 0});
  }
  static MachineConfig Mapping() {
    MachineConfig config = Config();
    config.mapping = true;
    config.host_id = "host";
    return config;
  }
  void DoRound(std::uint64_t round) {
    PeerSays(PartOf(round));
    Tell(TheCommit(round));
    const auto reductions = All<action::Reduce>();
    ASSERT_EQ(reductions.size(), 1u);
    Do(event::OpDone{reductions[0].op, false, 0, ""});
    PeerSays(SumsOf(round, static_cast<std::uint32_t>(1 + round)));
    const auto updates = All<action::Apply>();
    ASSERT_EQ(updates.size(), 1u);
    Do(event::OpDone{updates[0].op, false, 0, ""});
    ASSERT_TRUE(Told<msg::Applied>());
  }
};

TEST_F(KeptMappedTest, ACopyForWhoMightTakeAllOfItIsToldToTheCoordinator) {
  DoRound(0);
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 3});
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_FALSE(Told<msg::HoldAnswer>());
  Do(event::OpDone{copies[0].op, false, 0, ""});
  ASSERT_TRUE(Told<msg::HoldAnswer>());
  EXPECT_TRUE(Told<msg::HoldAnswer>()->holds_all);
}

// Nobody waits for the answer then, and what it would promise is given back.
TEST_F(KeptMappedTest, AQuestionThatItsRoundIsClosedBeforeIsNotAnswered) {
  DoRound(0);
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 3});
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  DoRound(1);
  DoRound(2);
  Do(event::OpDone{copies[0].op, false, 0, ""});
  EXPECT_FALSE(Told<msg::HoldAnswer>());
  EXPECT_FALSE(Serves(0, kPeer));
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 4});
  EXPECT_FALSE(Told<msg::HoldAnswer>());
}

class KeptTogetherTest : public KeptSumsTest {
 protected:
  KeptTogetherTest() : KeptSumsTest(Together()) { own_ = BufferKind::kSum; }
  static MachineConfig Together() {
    MachineConfig config = Config();
    config.sums_apart = false;
    return config;
  }
};

TEST_F(KeptTogetherTest, InOneBufferItAllStays) {
  Begin(0);
  const BufferId first = Take(0);
  EXPECT_EQ(first.kind, BufferKind::kSum);
  Apply();
  EXPECT_NE(Take(1), first);
  EXPECT_TRUE(Serves(0, kPeer));
}

}  // namespace
}  // namespace lockstep::worker
