// An owner that has not published, and one that stands in for it: whoever of the two is first is
// taken, and neither is waited for once the other has come.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

const MemberId kOther{WorkerId(2), Incarnation(1)};

class StandInTest : public MachineTest {
 protected:
  // Three owners; the committed part is the peer's. What this worker needs of it has come, and its
  // own shard is published.
  void Commit() {
    Do(event::PeerUp{kPeer, "test"});
    Do(event::PeerUp{kOther, "test"});
    Plan plan = MakePlan(0, 0);
    plan.owners = Owners();
    plan.members = Members();
    Tell(msg::Start{StateSource::kSeed, plan, 0});
    Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
    EndFetch(kPeer, BufferKind::kStaging, Shard(kSelf));
    msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
    commit.owners = Owners();
    commit.members = Members();
    commit.next.reset();
    Tell(commit);
    EndReduction();
    ASSERT_TRUE(Told<msg::Published>());
    EXPECT_FALSE(Told<msg::Published>()->stands_in_for);
  }
  static OwnerMap Owners() { return {1, {{kSelf, 1}, {kPeer, 1}, {kOther, 1}}}; }
  static std::vector<MemberId> Members() { return {kSelf, kPeer, kOther}; }
  FloatRange Shard(const MemberId& owner) const {
    return machine_.layout().Shard(Owners(), owner).at(0).range;
  }
  void Says(const MemberId& peer, const PeerMessage& message) {
    Do(event::FromPeer{peer, EncodePeerMessage(message)});
  }
  void Hedge(const MemberId& owner, const MemberId& by) {
    Tell(msg::Hedge{Term(1), RoundId(0), Attempt(0), owner, by});
  }
  static SumReady Sums(std::optional<WorkerId> stands_in_for = std::nullopt) {
    SumReady sums;
    sums.term = Term(1);
    sums.map_version = 1;
    sums.generation = 1;
    sums.stands_in_for = stands_in_for;
    return sums;
  }
  bool Fetches() const { return !All<action::Fetch>().empty(); }
  bool Reduces() const { return !All<action::Reduce>().empty(); }
  bool Applies() const { return !All<action::Apply>().empty(); }
  // The only one that has just begun.
  void EndFetch(const MemberId& from, BufferKind to, const FloatRange& range) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].peer, from);
    EXPECT_EQ(fetches[0].to.buffer.kind, to);
    EXPECT_EQ(fetches[0].to.range, range);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }
  void EndReduction() {
    const auto reductions = All<action::Reduce>();
    ASSERT_EQ(reductions.size(), 1u);
    Do(event::OpDone{reductions[0].op, false, 0, ""});
  }
};

TEST_F(StandInTest, WhoStandsInMakesTheOwnersSums) {
  Commit();
  Hedge(kOther, kSelf);
  EndFetch(kPeer, BufferKind::kStaging, Shard(kOther));  // what it did not need before
  const auto reductions = All<action::Reduce>();
  ASSERT_EQ(reductions.size(), 1u);
  ASSERT_EQ(reductions[0].slices.size(), 1u);
  EXPECT_EQ(reductions[0].slices[0].range, Shard(kOther));
  EndReduction();
  ASSERT_TRUE(Told<msg::Published>());
  EXPECT_EQ(Told<msg::Published>()->stands_in_for, kOther.worker);
  ASSERT_TRUE(Said<SumReady>());
  EXPECT_EQ(Said<SumReady>()->stands_in_for, kOther.worker);
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kSum, Shard(kPeer));
  EXPECT_TRUE(Applies());
  Says(kOther, Sums());  // late
  EXPECT_FALSE(Fetches());
}

TEST_F(StandInTest, TheOwnerIsQuickerAfterAll) {
  Commit();
  Hedge(kOther, kSelf);
  const auto part = All<action::Fetch>();
  ASSERT_EQ(part.size(), 1u);
  Says(kOther, Sums());
  const auto sums = All<action::Fetch>();
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].peer, kOther);
  Do(event::FetchDone{part[0].fetch, FetchStatus::kOk});
  EXPECT_FALSE(Reduces());
  Do(event::FetchDone{sums[0].fetch, FetchStatus::kOk});
  EXPECT_FALSE(Reduces());
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kSum, Shard(kPeer));
  EXPECT_TRUE(Applies());
}

TEST_F(StandInTest, TheOwnerPublishesWhileItsShardIsMade) {
  Commit();
  Hedge(kOther, kSelf);
  EndFetch(kPeer, BufferKind::kStaging, Shard(kOther));
  const auto reductions = All<action::Reduce>();
  ASSERT_EQ(reductions.size(), 1u);
  Says(kOther, Sums());
  EXPECT_FALSE(Fetches());  // into what is being written
  Do(event::OpDone{reductions[0].op, false, 0, ""});
  EXPECT_TRUE(Told<msg::Published>());
  EXPECT_FALSE(Fetches());
}

// A part that changed under the reduction: the owner may have had it in time.
TEST_F(StandInTest, WhoCannotMakeItTakesItFromTheOwner) {
  Commit();
  Hedge(kOther, kSelf);
  EndFetch(kPeer, BufferKind::kStaging, Shard(kOther));
  const auto reductions = All<action::Reduce>();
  ASSERT_EQ(reductions.size(), 1u);
  Do(event::OpDone{reductions[0].op, true, 0, ""});
  EXPECT_FALSE(Told<msg::Published>());
  Says(kOther, Sums());
  EndFetch(kOther, BufferKind::kSum, Shard(kOther));
}

TEST_F(StandInTest, OthersTakeTheShardFromWhoStandsIn) {
  Commit();
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kSum, Shard(kPeer));
  Hedge(kOther, kPeer);
  EXPECT_FALSE(Fetches());
  Says(kPeer, Sums(kOther.worker));
  EndFetch(kPeer, BufferKind::kSum, Shard(kOther));
  EXPECT_TRUE(Applies());
}

TEST_F(StandInTest, WhoStandsInMayBeHeardBeforeTheCoordinator) {
  Commit();
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kSum, Shard(kPeer));
  Says(kPeer, Sums(kOther.worker));
  EXPECT_FALSE(Fetches());
  Hedge(kOther, kPeer);
  EndFetch(kPeer, BufferKind::kSum, Shard(kOther));
  EXPECT_TRUE(Applies());
}

TEST_F(StandInTest, WhoWasLateTakesItsOwnShardFromWhoStandsIn) {
  Do(event::PeerUp{kPeer, "test"});
  Do(event::PeerUp{kOther, "test"});
  Plan plan = MakePlan(0, 0);
  plan.owners = Owners();
  plan.members = Members();
  Tell(msg::Start{StateSource::kSeed, plan, 0});
  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = Owners();
  commit.members = Members();
  commit.next.reset();
  Tell(commit);
  Hedge(kSelf, kPeer);
  Says(kPeer, Sums(kSelf.worker));
  EndFetch(kPeer, BufferKind::kSum, Shard(kSelf));
  Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
  for (const auto& fetch : All<action::Fetch>()) {
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
    EXPECT_FALSE(Reduces());
  }
}

TEST_F(StandInTest, AConnectionThatBreaksSendsToTheOtherOne) {
  Commit();
  Hedge(kOther, kPeer);
  Says(kPeer, Sums(kOther.worker));
  const auto fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  Do(event::PeerDown{kPeer, "connection reset"});
  Do(event::FetchDone{fetches[0].fetch, FetchStatus::kPeerDown});
  Says(kOther, Sums());
  EndFetch(kOther, BufferKind::kSum, Shard(kOther));
}

TEST_F(StandInTest, AFencedAttemptIsNotMade) {
  Commit();
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 1});
  Hedge(kOther, kSelf);
  for (const auto& fetch : All<action::Fetch>()) {
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  EXPECT_FALSE(Reduces());
  EXPECT_FALSE(Told<msg::Published>());
}

TEST_F(StandInTest, AHolderIsTakenFromAlone) {
  Commit();
  Hedge(kOther, kSelf);
  const auto part = All<action::Fetch>();
  ASSERT_EQ(part.size(), 1u);
  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = Owners();
  commit.members = Members();
  commit.next.reset();
  Tell(msg::TakeSums{commit, kPeer});
  Do(event::FetchDone{part[0].fetch, FetchStatus::kOk});
  EXPECT_FALSE(Reduces());
}

TEST_F(StandInTest, NobodyStandsInForWhoOwnsNothing) {
  Commit();
  Says(kPeer, Sums(WorkerId(7)));
  ASSERT_EQ(All<action::ClosePeer>().size(), 1u);
  EXPECT_EQ(All<action::ClosePeer>()[0].peer, kPeer);
}

}  // namespace
}  // namespace lockstep::worker
