// What is queued from a peer goes with its connection: contributions are taken back from the
// inputs, sums from the attempt that wanted them, and neither is taken for the other. They are told
// apart by their kind alone, for the number of a contribution's tag may be that of a sum's attempt.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kPiece = 1024;  // floats

class PeerDownTest : public MachineTest {
 protected:
  // One fetch at a time, so that all others are queued.
  void Build(MemberId self, MemberId peer) {
    MachineConfig config = Config();
    config.self = self;
    config.fetch_window = 1;
    config.piece_bytes = kPiece * sizeof(float);
    machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
    peer_ = peer;
    Do(event::PeerUp{peer_, "test"});
    Tell(msg::Start{StateSource::kSeed, MakePlan(0, 0), 0});
  }
  void Says(const PeerMessage& message) { Do(event::FromPeer{peer_, EncodePeerMessage(message)}); }
  // Its part of round 0, under the tag 1.
  void AnnouncePart() { Says(PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}}); }
  // Attempt 1 at round 0, all of whose sums it has.
  void CommitAndPublishAll() {
    msg::Commit commit = MakeCommit(0, {{peer_, PartIndex(0), 1, 4}});
    commit.attempt = Attempt(1);
    Tell(commit);
    Tell(msg::TakeSums{commit, peer_});
    SumReady sums;
    sums.term = Term(1);
    sums.attempt = Attempt(1);
    sums.map_version = 1;
    sums.generation = 1;
    sums.whole = true;
    Says(sums);
  }
  action::Fetch UnderWay() {
    const auto fetches = All<action::Fetch>();
    EXPECT_EQ(fetches.size(), 1u);
    return fetches.empty() ? action::Fetch{} : fetches[0];
  }
  // The transport may end what is under way after it has reported the peer.
  void BreakBefore(const action::Fetch& ends) {
    EXPECT_GT(machine_.view().queued, 0u);
    Do(event::PeerDown{peer_, "connection reset"});
    EXPECT_EQ(machine_.view().queued, 0u);
    Do(event::FetchDone{ends.fetch, FetchStatus::kPeerDown});
    EXPECT_EQ(machine_.view().fetches, 0u);
  }

  MemberId peer_;
};

TEST_F(PeerDownTest, QueuedContributionsAreNotTakenFromTheSums) {
  Build(kSelf, kPeer);
  CommitAndPublishAll();
  const action::Fetch sum = UnderWay();
  ASSERT_EQ(sum.to.buffer.kind, BufferKind::kTaken);
  AnnouncePart();  // of the same floats, which is queued behind the sums
  BreakBefore(sum);
}

TEST_F(PeerDownTest, QueuedSumsAreNotTakenFromTheContributions) {
  Build(kPeer, kSelf);  // of worker 0, as whose staging buffer that of the sums would be looked up
  AnnouncePart();
  const action::Fetch part = UnderWay();
  ASSERT_EQ(part.to.buffer.kind, BufferKind::kStaging);
  CommitAndPublishAll();
  BreakBefore(part);
}

// Whatever rounds it named: nobody is left who would say more of them.
TEST_F(PeerDownTest, WhatItSaidOfRoundsThatDoNotComeIsForgotten) {
  Begin(0);
  Do(event::PeerUp{kOther, "test"});
  const auto says = [&](std::uint64_t round) {
    Do(event::FromPeer{kOther, EncodePeerMessage(SumsOf(round))});
  };
  says(0);
  says((std::uint64_t{1} << 47) + 1);
  EXPECT_EQ(machine_.view().heard, 2u);
  Do(event::PeerDown{kOther, "connection reset"});
  Tell(msg::MemberLeft{kOther, "connection reset"});
  EXPECT_EQ(machine_.view().heard, 1u) << "round 0 is to come";
}

// With the connection comes all that was lost with it, each piece once.
TEST_F(PeerDownTest, WhatWasQueuedIsAskedForAgain) {
  Build(kSelf, kPeer);
  AnnouncePart();
  BreakBefore(UnderWay());
  Do(event::PeerUp{peer_, "test"});
  std::vector<FloatRange> came;
  for (auto fetches = All<action::Fetch>(); !fetches.empty(); fetches = All<action::Fetch>()) {
    ASSERT_EQ(fetches.size(), 1u);
    came.push_back(fetches[0].to.range);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }
  EXPECT_EQ(came, (std::vector<FloatRange>{{0, kPiece}, {kPiece, kPiece}}));
  EXPECT_TRUE(Told<msg::Receipts>());
}

}  // namespace
}  // namespace lockstep::worker
