// An owner that has not published, and one that stands in for it: whoever of the two is first is
// taken, and neither is waited for once the other has come.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class StandInTest : public MachineTest {
 protected:
  StandInTest() = default;
  explicit StandInTest(const MachineConfig& config) : MachineTest(4096, config) {}

  // Two peers, and no units of its own.
  void Start() {
    Do(event::PeerUp{kPeer, "test"});
    Do(event::PeerUp{kOther, "test"});
    Plan plan = MakePlan(0, 0);
    plan.owners = Owners();
    plan.members = Members();
    Tell(msg::Start{StateSource::kSeed, plan, 0});
  }
  // Three owners; the committed part is the peer's. What this worker needs of it has come, and its
  // own shard is published.
  void Commit() {
    Start();
    Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
    EndFetch(kPeer, BufferKind::kStaging, Shard(kSelf));
    Tell(TheCommit());
    EndReduction();
    ASSERT_TRUE(Told<msg::Published>());
    EXPECT_FALSE(Told<msg::Published>()->stands_in_for);
  }
  // Of the peer's part, which all three sum.
  static msg::Commit TheCommit() {
    msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
    commit.owners = Owners();
    commit.members = Members();
    commit.next.reset();
    return commit;
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
    SumReady sums = SumsOf(0);
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
  // The shard that is stood in for is made, as the operation says of it.
  void EndStandIn(bool torn, std::vector<std::uint32_t> not_finite) {
    Hedge(kOther, kSelf);
    EndFetch(kPeer, BufferKind::kStaging, Shard(kOther));
    const auto reductions = All<action::Reduce>();
    ASSERT_EQ(reductions.size(), 1u);
    event::OpDone done{reductions[0].op, torn, 0, ""};
    done.not_finite = std::move(not_finite);
    Do(done);
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
  EndFetch(kPeer, BufferKind::kTaken, Shard(kPeer));
  EXPECT_TRUE(Applies());
  Says(kOther, Sums());  // late
  EXPECT_FALSE(Fetches());
}

// Nor does anybody else who makes it: so this attempt is held by nobody, ever.
TEST_F(StandInTest, WhatIsNotFiniteIsToldAndNotPublished) {
  Commit();
  EndStandIn(/*torn=*/false, {0});
  ASSERT_TRUE(Told<msg::NotFinite>());
  EXPECT_EQ(*Told<msg::NotFinite>(), (msg::NotFinite{RoundId(0), Attempt(0), {0}}));
  EXPECT_FALSE(Told<msg::Published>());
  EXPECT_FALSE(Said<SumReady>());
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kTaken, Shard(kPeer));
  EXPECT_FALSE(Reduces());
  EXPECT_FALSE(Applies());
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 1});
  ASSERT_TRUE(Told<msg::HoldAnswer>());
  EXPECT_FALSE(Told<msg::HoldAnswer>()->holds_all);
}

// A part that changed meanwhile says nothing.
TEST_F(StandInTest, WhatIsTornIsNotToldToBeNotFinite) {
  Commit();
  EndStandIn(/*torn=*/true, {0});
  EXPECT_FALSE(Told<msg::NotFinite>());
  EXPECT_FALSE(Told<msg::Published>());
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
  EndFetch(kPeer, BufferKind::kTaken, Shard(kPeer));
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
  EXPECT_TRUE(All<action::Log>().empty());
  Says(kOther, Sums());
  EndFetch(kOther, BufferKind::kTaken, Shard(kOther));
}

TEST_F(StandInTest, OthersTakeTheShardFromWhoStandsIn) {
  Commit();
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kTaken, Shard(kPeer));
  Hedge(kOther, kPeer);
  EXPECT_FALSE(Fetches());
  Says(kPeer, Sums(kOther.worker));
  EndFetch(kPeer, BufferKind::kTaken, Shard(kOther));
  EXPECT_TRUE(Applies());
}

TEST_F(StandInTest, WhoStandsInMayBeHeardBeforeTheCoordinator) {
  Commit();
  Says(kPeer, Sums());
  EndFetch(kPeer, BufferKind::kTaken, Shard(kPeer));
  Says(kPeer, Sums(kOther.worker));
  EXPECT_FALSE(Fetches());
  Hedge(kOther, kPeer);
  EndFetch(kPeer, BufferKind::kTaken, Shard(kOther));
  EXPECT_TRUE(Applies());
}

TEST_F(StandInTest, WhoWasLateTakesItsOwnShardFromWhoStandsIn) {
  Start();
  Tell(TheCommit());
  Hedge(kSelf, kPeer);
  Says(kPeer, Sums(kSelf.worker));
  EndFetch(kPeer, BufferKind::kTaken, Shard(kSelf));
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
  EndFetch(kOther, BufferKind::kTaken, Shard(kOther));
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
  Tell(msg::TakeSums{TheCommit(), kPeer});
  Do(event::FetchDone{part[0].fetch, FetchStatus::kOk});
  EXPECT_FALSE(Reduces());
}

// What the owner has sent here may be all that anybody has of it.
TEST_F(StandInTest, WhoHasTheShardAlreadyPublishesIt) {
  Commit();
  Says(kOther, Sums());
  EndFetch(kOther, BufferKind::kTaken, Shard(kOther));
  EXPECT_FALSE(Told<msg::Published>());
  Hedge(kOther, kSelf);
  EXPECT_FALSE(Fetches());
  EXPECT_FALSE(Reduces());
  // Where those who map this worker read it.
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  ASSERT_EQ(copies[0].from.size(), 1u);
  EXPECT_EQ(copies[0].from[0].source.buffer.kind, BufferKind::kTaken);
  EXPECT_EQ(copies[0].from[0].range, Shard(kOther));
  EXPECT_EQ(copies[0].to.kind, BufferKind::kSum);
  EXPECT_FALSE(Told<msg::Published>());
  Do(event::OpDone{copies[0].op, false, 0, ""});
  ASSERT_TRUE(Told<msg::Published>());
  EXPECT_EQ(Told<msg::Published>()->stands_in_for, kOther.worker);
  ASSERT_TRUE(Said<SumReady>());
  EXPECT_EQ(Said<SumReady>()->stands_in_for, kOther.worker);
}

// The holder's own shard comes of itself. It was asked for all of them.
TEST_F(StandInTest, AHoldersOwnShardIsNotItsAnswer) {
  Commit();
  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = Owners();
  commit.members = Members();
  commit.next.reset();
  Tell(msg::TakeSums{commit, kPeer});
  ASSERT_TRUE(Said<SumWant>());
  Says(kPeer, Sums());
  EXPECT_FALSE(Fetches());
  SumReady all = Sums();
  all.whole = true;
  Says(kPeer, all);
  EXPECT_TRUE(Fetches());
}

// A shard that comes in two pieces.
class StandInPiecesTest : public StandInTest {
 protected:
  StandInPiecesTest() : StandInTest(InPieces()) {}
  static MachineConfig InPieces() {
    MachineConfig config = Config();
    config.piece_bytes = 4096;
    return config;
  }
  // All that is under way from there ends.
  void EndFetches(const MemberId& from, FetchStatus status) {
    for (const auto& fetch : fetches_) {
      if (fetch.peer == from) Do(event::FetchDone{fetch.fetch, status});
    }
    std::erase_if(fetches_, [&](const action::Fetch& fetch) { return fetch.peer == from; });
  }
  void Commit() {
    Start();
    Tell(TheCommit());
    Says(kOther, Sums());
    fetches_ = All<action::Fetch>();
    ASSERT_EQ(fetches_.size(), 2u);
  }
  // The parts of which this worker would make the owner's shard come, too.
  void PartsCome() {
    Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
    for (auto pieces = All<action::Fetch>(); !pieces.empty(); pieces = All<action::Fetch>()) {
      std::vector<action::Fetch> more;
      for (const auto& fetch : pieces) {
        EXPECT_EQ(fetch.peer, kPeer);
        Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
        for (const auto& reduce : All<action::Reduce>()) reduced_.push_back(reduce.slices);
        for (const auto& next : All<action::Fetch>()) more.push_back(next);
      }
      actions_.clear();
      for (const auto& next : more) actions_.push_back(next);
    }
  }

  std::vector<action::Fetch> fetches_;
  std::vector<std::vector<Slice>> reduced_;
};

// Its half may be on its way to others, so it is not written over; the round is lost with its
// owner.
TEST_F(StandInPiecesTest, WhoHasHalfOfTheShardDoesNotMakeIt) {
  Commit();
  Do(event::FetchDone{fetches_[0].fetch, FetchStatus::kOk});
  fetches_.erase(fetches_.begin());
  Do(event::PeerDown{kOther, "connection reset"});
  Hedge(kOther, kSelf);
  EndFetches(kOther, FetchStatus::kPeerDown);
  PartsCome();
  for (const auto& slices : reduced_) {
    for (const Slice& slice : slices) EXPECT_NE(slice.range, Shard(kOther));
  }
}

// The connection is reported to have ended before what was asked over it.
TEST_F(StandInPiecesTest, WhatWasAskedOfTheOwnerIsWaitedForBeforeItIsMade) {
  Commit();
  Do(event::PeerDown{kOther, "connection reset"});
  Hedge(kOther, kSelf);
  PartsCome();
  for (const auto& slices : reduced_) {
    for (const Slice& slice : slices) EXPECT_NE(slice.range, Shard(kOther));
  }
  EndFetches(kOther, FetchStatus::kPeerDown);
  const auto reductions = All<action::Reduce>();
  ASSERT_EQ(reductions.size(), 1u);
  ASSERT_EQ(reductions[0].slices.size(), 1u);
  EXPECT_EQ(reductions[0].slices[0].range, Shard(kOther));
}

TEST_F(StandInTest, NobodyStandsInForWhoOwnsNothing) {
  Commit();
  Says(kPeer, Sums(WorkerId(7)));
  ASSERT_EQ(All<action::ClosePeer>().size(), 1u);
  EXPECT_EQ(All<action::ClosePeer>()[0].peer, kPeer);
}

}  // namespace
}  // namespace lockstep::worker
