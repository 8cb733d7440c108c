// Which attempt at the last round the parameters contain, however they came: what was replaced is
// never gone on with, and what stands is never given up.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class AttemptsTest : public MachineTest {
 protected:
  explicit AttemptsTest(std::uint64_t bucket_floats = 4096) : MachineTest(bucket_floats) {}

  static msg::Commit CommitOf(std::uint64_t round, std::uint32_t attempt) {
    msg::Commit commit = MakeCommit(round, {{kPeer, PartIndex(0), 1, 4}});
    commit.attempt = Attempt(attempt);
    commit.owners = {1, {{kPeer, 1}}};
    commit.next->attempt = Attempt(attempt);
    return commit;
  }
  // The peer publishes round 0, of which it owns everything.
  static SumReady AllSums() {
    SumReady sums = SumsOf(0);
    sums.inlined.ranges = {{0, 4096}};
    return sums;
  }
  // The peer has this bucket of its state copied, and the copy arrives.
  void Copy(std::uint32_t bucket, std::uint64_t version, std::uint32_t attempt) {
    const auto want = Said<StateWant>();
    ASSERT_TRUE(want);
    ASSERT_EQ(want->bucket, bucket);
    PeerSays(StateReady{bucket, version, Attempt(attempt), ++tag_, 0, false});
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }

  std::uint32_t tag_ = 0;
};

class AttemptsOfTwoBucketsTest : public AttemptsTest {
 protected:
  AttemptsOfTwoBucketsTest() : AttemptsTest(2048) {}
};

TEST_F(AttemptsTest, AReplacedAttemptThatWasCopiedIsNotGoneOnWith) {
  Begin(0);
  Tell(CommitOf(0, 1));
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Copy(0, 2, 0);
  ASSERT_TRUE(Told<msg::Level>());
  Tell(CommitOf(1, 0));
  EXPECT_FALSE(Told<msg::Behind>());
  Tell(CommitOf(1, 1));
  EXPECT_TRUE(Told<msg::Behind>());
}

TEST_F(AttemptsTest, TheAttemptThatWasCopiedIsNotDenied) {
  Begin(0);
  Tell(CommitOf(0, 0));
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Copy(0, 2, 1);
  ASSERT_TRUE(Told<msg::Level>());
  Tell(CommitOf(1, 0));  // an old one, under way while the copy was made
  EXPECT_TRUE(All<action::StartWork>().empty());
  Tell(CommitOf(1, 1));
  EXPECT_FALSE(Told<msg::Behind>());
  EXPECT_TRUE(machine_.view().level);
  EXPECT_EQ(All<action::StartWork>().size(), 1u);
}

TEST_F(AttemptsTest, SumsOfAnotherAttemptThanTheCopiedOnePutItBehind) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Copy(0, 2, 0);
  ASSERT_TRUE(Told<msg::Level>());
  Tell(msg::TakeSums{CommitOf(1, 1), kPeer});
  EXPECT_TRUE(Told<msg::Behind>());
}

TEST_F(AttemptsTest, WhoHasCopiedTheLastRoundCanWriteItsCheckpoint) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Copy(0, 2, 0);
  msg::Commit commit = CommitOf(1, 0);
  commit.checkpoint_writer = kSelf;
  Tell(commit);
  ASSERT_EQ(All<action::TakeSnapshot>().size(), 1u);
  EXPECT_EQ(All<action::TakeSnapshot>()[0].kind, action::SnapshotKind::kCheckpoint);
  Tell(commit);
  EXPECT_TRUE(All<action::TakeSnapshot>().empty());
}

TEST_F(AttemptsOfTwoBucketsTest, ABucketOfAReplacedAttemptIsCopiedAgain) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(0)});
  Copy(0, 1, 0);
  Tell(CommitOf(0, 1));
  PeerSays(StateReady{1, 1, Attempt(1), ++tag_, 0, false});
  ASSERT_EQ(All<action::Fetch>().size(), 1u);
  Do(event::FetchDone{All<action::Fetch>()[0].fetch, FetchStatus::kOk});
  EXPECT_FALSE(Told<msg::Level>());
  Copy(0, 1, 1);
  EXPECT_TRUE(Told<msg::Level>());
}

TEST_F(AttemptsOfTwoBucketsTest, BucketsOfTwoAttemptsAreNotLevel) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(0)});
  Copy(0, 1, 0);
  Copy(1, 1, 1);
  EXPECT_FALSE(Told<msg::Level>());
  Copy(0, 1, 1);
  EXPECT_TRUE(Told<msg::Level>());
}

// Copies in turn: who is asked for the next bucket, and which one.
class DonorsTest : public MachineTest {
 protected:
  DonorsTest() : MachineTest(1024) {}

  void BeginWithTwo() {
    Do(event::PeerUp{kOther, "test"});
    Begin(0);
    Tell(msg::CatchUp{kPeer, RoundId(0), 1, {kOther}});
  }
  std::pair<MemberId, std::uint32_t> Asked() const {
    for (const auto& a : All<action::ToPeer>()) {
      const auto decoded = DecodePeerMessage(a.bytes);
      const auto* want = decoded.ok() ? std::get_if<StateWant>(&decoded->message) : nullptr;
      if (want != nullptr) return {a.peer, want->bucket};
    }
    return {kSelf, 0};
  }
  void Give(const MemberId& donor, std::uint32_t bucket) {
    Says(donor, StateReady{bucket, 0, Attempt(0), ++tag_, 0, false});
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }
  static StateReady Gone(std::uint32_t bucket) {
    StateReady gone;
    gone.bucket = bucket;
    gone.gone = true;
    return gone;
  }

  std::uint32_t tag_ = 0;
};

TEST_F(DonorsTest, BucketsComeFromThemInTurn) {
  BeginWithTwo();
  EXPECT_EQ(Asked(), std::pair(kPeer, 0u));
  Give(kPeer, 0);
  EXPECT_EQ(Asked(), std::pair(kOther, 1u));
  Give(kOther, 1);
  EXPECT_EQ(Asked(), std::pair(kPeer, 2u));
}

TEST_F(DonorsTest, WhatALostOneWasToGiveAnotherOneGivesAndNothingIsCopiedTwice) {
  BeginWithTwo();
  Give(kPeer, 0);
  ASSERT_EQ(Asked(), std::pair(kOther, 1u));
  Do(event::PeerDown{kOther, "test"});
  EXPECT_EQ(Asked(), std::pair(kPeer, 1u));
  Give(kPeer, 1);
  EXPECT_EQ(Asked(), std::pair(kPeer, 2u));
}

TEST_F(DonorsTest, OneThatHasNoStateToGiveIsAskedNoMore) {
  BeginWithTwo();
  Says(kPeer, Gone(0));
  EXPECT_FALSE(Told<msg::Behind>());
  ASSERT_EQ(Asked(), std::pair(kOther, 0u));
  Give(kOther, 0);
  EXPECT_EQ(Asked(), std::pair(kOther, 1u));
  Says(kOther, Gone(1));
  EXPECT_TRUE(Told<msg::Behind>());  // the coordinator names others
}

TEST_F(AttemptsOfTwoBucketsTest, ARoundThatIsPlannedAnewWhileItIsWorkedInIsWorkedInAgain) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(0)});
  Copy(0, 0, 0);
  Copy(1, 0, 0);
  Tell(CommitOf(0, 0));
  SumReady sums = AllSums();
  sums.inlined.ranges = {{0, 2048}, {2048, 2048}};
  PeerSays(sums, 4096);
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const std::uint64_t op = All<action::Apply>()[0].op;
  Plan anew = MakePlan(0, 0);
  anew.attempt = Attempt(1);
  Tell(msg::Start{StateSource::kPeers, anew, 0});
  Do(event::OpDone{op, false, 0, ""});
  EXPECT_FALSE(Told<msg::Level>());
  EXPECT_TRUE(Said<StateWant>());
}

TEST_F(AttemptsTest, ACommitThatComesWhileAnAbandonedUpdateEndsIsFollowed) {
  Begin(0);
  Tell(CommitOf(0, 0));
  PeerSays(AllSums(), 4096);
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const std::uint64_t op = All<action::Apply>()[0].op;
  Tell(msg::CatchUp{kPeer, RoundId(0)});
  Tell(CommitOf(0, 0));  // of the round whose update is not to count
  Do(event::OpDone{op, false, 0, ""});
  EXPECT_FALSE(Told<msg::Level>());
  EXPECT_FALSE(Told<msg::Applied>());
  EXPECT_TRUE(Said<StateWant>());
}

TEST_F(AttemptsTest, AnotherAttemptThanTheOneBeingAppliedPutsItBehind) {
  Begin(0);
  Tell(CommitOf(0, 0));
  PeerSays(AllSums(), 4096);
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const std::uint64_t op = All<action::Apply>()[0].op;
  Tell(CommitOf(0, 1));
  ASSERT_TRUE(Told<msg::Behind>());
  EXPECT_FALSE(Told<msg::Behind>()->has_any);
  Do(event::OpDone{op, false, 0, ""});  // what an update in its midst leaves is nobody's state
  EXPECT_FALSE(Told<msg::Applied>());
  EXPECT_FALSE(machine_.view().level);
}

TEST_F(AttemptsTest, AnotherAttemptThanTheOneBeingWorkedInPutsItBehind) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(0), 3});
  Copy(0, 0, 0);
  Tell(CommitOf(0, 0));
  PeerSays(AllSums(), 4096);
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const std::uint64_t op = All<action::Apply>()[0].op;
  Tell(CommitOf(0, 1));
  ASSERT_TRUE(Told<msg::Behind>());
  EXPECT_EQ(Told<msg::Behind>()->order, 3u);
  Do(event::OpDone{op, false, 0, ""});
  EXPECT_FALSE(Told<msg::Level>());
}

// The example of catch_up.h: one bucket lacks a round that the other has.
TEST_F(AttemptsOfTwoBucketsTest, BucketsOfTwoRoundsAreNotLevel) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(0)});
  Copy(0, 1, 0);
  Copy(1, 0, 0);
  EXPECT_FALSE(Told<msg::Level>());
  Tell(CommitOf(0, 0));
  SumReady sums = AllSums();
  sums.inlined.ranges = {{0, 2048}, {2048, 2048}};
  PeerSays(sums, 4096);
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const action::Apply apply = All<action::Apply>()[0];
  ASSERT_EQ(apply.slices.size(), 1u);
  EXPECT_EQ(apply.slices[0].range, (FloatRange{2048, 2048}));
  EXPECT_FALSE(Told<msg::Level>());
  Do(event::OpDone{apply.op, false, 0, ""});
  ASSERT_TRUE(Told<msg::Level>());
  EXPECT_EQ(Told<msg::Level>()->round, RoundId(0));
}

}  // namespace
}  // namespace lockstep::worker
