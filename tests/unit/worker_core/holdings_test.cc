// Shards that have holders: what a holder says and does, and what it must not do before the round
// is decided.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;

const std::vector<MemberId> kMembers = {kSelf, kPeer, kOther};
constexpr FloatRange kFirst{0, 2048};
constexpr FloatRange kSecond{2048, 2048};

// Two shards: this worker owns the first, the peer has it too; the second is the peer's and the
// other's.
class HoldingsTest : public MachineTest {
 protected:
  HoldingsTest() : HoldingsTest(Sharded()) {}
  explicit HoldingsTest(const MachineConfig& config) : MachineTest(4096, config) {}

  static MachineConfig Sharded() {
    MachineConfig config = Config();
    config.shards = 2;
    config.state_tensors = 1;
    config.reattaches = true;
    return config;
  }
  static OwnerMap Owners(std::uint32_t version = 1) {
    return {version, {{kSelf, 1}, {kPeer, 1}}, {{{kSelf, kPeer}}, {{kPeer, kOther}}}};
  }
  // The other is lost: this worker is to hold the second shard in its place.
  static OwnerMap WithoutOther() {
    return {2, {{kSelf, 1}, {kPeer, 1}}, {{{kSelf, kPeer}}, {{kPeer, kSelf}}}};
  }
  static OwnerMap ByThePeer() { return {2, {{kPeer, 2}}, {{{kPeer}}, {{kPeer}}}}; }
  void StartAll(const OwnerMap& owners) {
    Do(event::PeerUp{kPeer, "test"});
    Do(event::PeerUp{kOther, "test"});
    Plan plan = MakePlan(0, 0);
    plan.owners = owners;
    plan.members = kMembers;
    Tell(msg::Start{StateSource::kSeed, plan, 0});
  }
  void Start() {
    StartAll(Owners());
    const auto copies = All<action::CopySums>();
    ASSERT_EQ(copies.size(), 1u);
    ASSERT_EQ(copies[0].from.size(), 1u);
    EXPECT_EQ(copies[0].from[0].range, kFirst);
    Do(event::OpDone{copies[0].op, false, 0, ""});
    ASSERT_TRUE(Said<ParametersReady>());
    generation_ = Said<ParametersReady>()->generation;
  }
  // Of the peer's one part.
  static msg::Commit TheCommit(std::uint32_t attempt = 0, const OwnerMap& owners = Owners()) {
    msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
    commit.attempt = Attempt(attempt);
    commit.owners = owners;
    commit.members = kMembers;
    commit.next.reset();
    return commit;
  }
  // The sums of the first shard are made here.
  void Commit() {
    Start();
    Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
    EndFetches({{BufferKind::kStaging, kFirst}});
    Tell(TheCommit());
    EndReduction();
  }
  void Decide(std::uint32_t attempt = 0) { Tell(msg::Decide{RoundId(0), Attempt(attempt)}); }
  void EndUpdate() {
    const auto updates = All<action::UpdateHeld>();
    ASSERT_EQ(updates.size(), 1u);
    Do(event::OpDone{updates[0].op, false, 0, ""});
  }
  void Says(const MemberId& peer, const PeerMessage& message) {
    Do(event::FromPeer{peer, EncodePeerMessage(message)});
  }
  static ParametersReady Has(std::uint64_t version, std::vector<std::uint32_t> shards) {
    ParametersReady ready;
    ready.version = version;
    ready.generation = static_cast<std::uint32_t>(version) + 1;
    ready.shards = std::move(shards);
    return ready;
  }
  // All that the last step began, which go where and come whence in this order.
  void EndFetches(const std::vector<std::pair<BufferKind, FloatRange>>& to,
                  const MemberId& from = kPeer) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), to.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      EXPECT_EQ(fetches[i].peer, from);
      EXPECT_EQ(fetches[i].to.buffer.kind, to[i].first);
      EXPECT_EQ(fetches[i].to.range, to[i].second);
    }
    for (const auto& fetch : fetches) Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  // The round's parameters, all of which the peer has, when it says so.
  void TakeAllForACheckpoint() {
    msg::Commit commit = TheCommit(0, ByThePeer());
    commit.checkpoint_writer = kSelf;
    Tell(commit);
    Says(kPeer, Has(1, {0, 1}));
    EndFetches({{BufferKind::kState, kFirst}, {BufferKind::kState, kSecond}});
    const auto takes = All<action::TakeParameters>();
    ASSERT_EQ(takes.size(), 1u);
    Do(event::OpDone{takes[0].op, false, 9, ""});
    ASSERT_TRUE(Told<msg::Applied>());
  }
  // These are the state of both shards. Returns the fetches of their parameters.
  std::vector<action::Fetch> GatherStates(const std::vector<action::Fetch>& states) {
    std::vector<action::Fetch> parameters;
    EXPECT_EQ(states.size(), 2u);
    for (const auto& fetch : states) {
      EXPECT_EQ(fetch.piece.kind, static_cast<std::uint32_t>(PieceKind::kHeldState));
      EXPECT_EQ(fetch.piece.part, 1u);
      Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
      const auto next = All<action::Fetch>();
      EXPECT_EQ(next.size(), 1u);
      for (const auto& behind : next) {
        EXPECT_EQ(behind.piece.part, 0u);
        EXPECT_EQ(behind.to.range, fetch.to.range);
        parameters.push_back(behind);
      }
    }
    return parameters;
  }
  void GatherAll(const std::vector<action::Fetch>& states) {
    for (const auto& fetch : GatherStates(states)) {
      EXPECT_TRUE(All<action::TakeSnapshot>().empty());
      Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
    }
    const auto snapshots = All<action::TakeSnapshot>();
    ASSERT_EQ(snapshots.size(), 1u);
    Do(event::OpDone{snapshots[0].op, false, 0, ""});
    EXPECT_FALSE(All<action::UploadChunk>().empty());
  }
  void EndReduction() {
    const auto reductions = All<action::Reduce>();
    ASSERT_EQ(reductions.size(), 1u);
    Do(event::OpDone{reductions[0].op, false, 0, ""});
  }
  bool Serves(PieceKind kind, std::uint64_t version, const FloatRange& range,
              std::uint32_t tensor = 0, std::uint32_t shard = 0) {
    PieceName name;
    name.owner = shard;
    name.kind = static_cast<std::uint32_t>(kind);
    name.round = version;
    if (kind == PieceKind::kHeldState) name.attempt = generation_;
    name.part = tensor;
    name.offset = range.first * sizeof(float);
    name.bytes = range.count * sizeof(float);
    const Serve serve = machine_.OnPieceAsked(kOther, name);
    if (serve.have) Do(event::Served{serve.cookie});
    return serve.have;
  }

  std::uint32_t generation_ = 0;  // of what this worker holds, as it has said
};

TEST_F(HoldingsTest, WhatIsHeldIsToldAndServedFromTheStartOn) {
  Start();
  ASSERT_TRUE(Said<ParametersReady>());
  EXPECT_EQ(Said<ParametersReady>()->version, 0u);
  EXPECT_THAT(Said<ParametersReady>()->shards, ElementsAre(0));
  EXPECT_TRUE(Serves(PieceKind::kParameters, 0, kFirst));
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 0, kFirst, 1));
  EXPECT_FALSE(Serves(PieceKind::kParameters, 0, kSecond));
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kSecond));
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kFirst, 2));  // there is no such tensor
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 1, kFirst));
  ++generation_;  // of before it began anew
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kFirst));
}

TEST_F(HoldingsTest, StateIsServedOfOneShardAtATime) {
  StartAll({1, {{kSelf, 1}, {kPeer, 1}}, {{{kSelf, kPeer}}, {{kPeer, kSelf}}}});
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  Do(event::OpDone{copies[0].op, false, 0, ""});
  ASSERT_TRUE(Said<ParametersReady>());
  generation_ = Said<ParametersReady>()->generation;
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 0, kFirst, 1, 0));
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 0, kSecond, 1, 1));
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kSecond, 1, 0));
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kFirst, 1, 2)) << "there is no such shard";
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, {1024, 2048}, 1, 0)) << "it is of both";
  EXPECT_TRUE(Serves(PieceKind::kParameters, 0, {1024, 2048}));
}

// What has come of a copy that was given up would stay otherwise.
TEST_F(HoldingsTest, WhatWasCopiedInVainIsGivenBack) {
  Commit();
  Says(kPeer, Has(0, {0, 1}));
  Tell(TheCommit(1, WithoutOther()));
  std::vector<action::Fetch> fetches = All<action::Fetch>();
  std::erase_if(fetches, [](const action::Fetch& fetch) {
    return fetch.to.buffer.kind != BufferKind::kState;
  });
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_TRUE(All<action::DropHeldState>().empty());
  Do(event::FetchDone{fetches[0].fetch, FetchStatus::kGone});
  const auto drops = All<action::DropHeldState>();
  ASSERT_EQ(drops.size(), 1u);
  EXPECT_THAT(drops[0].ranges, ElementsAre(kSecond));
}

TEST_F(HoldingsTest, NothingChangesBeforeTheRoundIsDecided) {
  Commit();
  ASSERT_TRUE(Told<msg::Held>());
  EXPECT_EQ(*Told<msg::Held>(), (msg::Held{RoundId(0), Attempt(0)}));
  EXPECT_TRUE(All<action::UpdateHeld>().empty());
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 0, kFirst));
  Decide();
  const auto updates = All<action::UpdateHeld>();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_THAT(updates[0].ranges, ElementsAre(kFirst));
  // The state is being changed; parameters of before are still whole.
  EXPECT_FALSE(Serves(PieceKind::kHeldState, 0, kFirst));
  EXPECT_TRUE(Serves(PieceKind::kParameters, 0, kFirst));
}

TEST_F(HoldingsTest, TheOtherShardIsTakenFromWhoHoldsIt) {
  Commit();
  Decide();
  EndUpdate();
  ASSERT_TRUE(Said<ParametersReady>());
  EXPECT_EQ(Said<ParametersReady>()->version, 1u);
  EXPECT_TRUE(Serves(PieceKind::kParameters, 1, kFirst));
  EXPECT_TRUE(Serves(PieceKind::kParameters, 0, kFirst));  // for who is late
  EXPECT_TRUE(All<action::TakeParameters>().empty());
  Says(kPeer, Has(1, {0, 1}));
  EndFetches({{BufferKind::kState, kSecond}});
  const auto takes = All<action::TakeParameters>();
  ASSERT_EQ(takes.size(), 1u);
  ASSERT_EQ(takes[0].from.size(), 1u);  // the own ones are copied, the fetched ones are there
  EXPECT_EQ(takes[0].from[0].range, kFirst);
  EXPECT_FALSE(Told<msg::Applied>());
  Do(event::OpDone{takes[0].op, false, 9, ""});
  ASSERT_TRUE(Told<msg::Applied>());
  EXPECT_EQ(Told<msg::Applied>()->digest, 9u);
}

TEST_F(HoldingsTest, AnotherHolderDoesWhereTheFirstIsLost) {
  Commit();
  Decide();
  EndUpdate();
  Says(kPeer, Has(1, {0, 1}));
  ASSERT_EQ(All<action::Fetch>().size(), 1u);
  const auto fetch = All<action::Fetch>()[0].fetch;
  Says(kOther, Has(1, {1}));
  Do(event::PeerDown{kPeer, "reset"});
  EXPECT_TRUE(All<action::Fetch>().empty());  // something may land there yet
  Do(event::FetchDone{fetch, FetchStatus::kPeerDown});
  EndFetches({{BufferKind::kState, kSecond}}, kOther);
  EXPECT_EQ(All<action::TakeParameters>().size(), 1u);
}

// Who has said nothing cannot be waited for, so the coordinator is wrong.
TEST_F(HoldingsTest, ADecisionWithoutItsWordIsRefused) {
  Start();
  Tell(TheCommit());
  EXPECT_FALSE(Told<msg::Held>());
  Decide();
  EXPECT_TRUE(All<action::UpdateHeld>().empty());
  ASSERT_TRUE(Told<msg::Leave>());
  EXPECT_NE(Told<msg::Leave>()->reason.find("it decides round 0"), std::string::npos)
      << Told<msg::Leave>()->reason;
}

// The attempt is decided only when whoever is to hold a shard has all of it: parameters and state.
TEST_F(HoldingsTest, AShardThatIsLackingIsCopiedFirst) {
  Commit();
  Says(kPeer, Has(0, {0, 1}));
  Tell(TheCommit(1, WithoutOther()));
  EXPECT_FALSE(Told<msg::Held>());
  const auto fetches = All<action::Fetch>();
  std::vector<std::uint32_t> tensors;
  for (const auto& fetch : fetches) {
    if (fetch.to.range == kSecond && fetch.to.buffer.kind != BufferKind::kStaging) {
      EXPECT_EQ(fetch.peer, kPeer);
      tensors.push_back(fetch.piece.part);
    }
  }
  EXPECT_THAT(tensors, ElementsAre(1)) << "the parameters are behind the state";
}

// Holders may be quicker to tell than the coordinator: the round is applied, and then decided here.
// What is gathered for a checkpoint after it has nothing to do with who held it before.
TEST_F(HoldingsTest, ACheckpointThatIsGatheredIsNotGivenUpWhenTheDecisionComes) {
  StartAll(ByThePeer());
  TakeAllForACheckpoint();
  const auto fetches = All<action::Fetch>();
  Decide();
  GatherAll(fetches);
}

TEST_F(HoldingsTest, ACheckpointIsGatheredOnceWhatWasHeldIsDecided) {
  Start();
  TakeAllForACheckpoint();
  EXPECT_TRUE(All<action::Fetch>().empty());  // they would land in what is held
  Decide();
  GatherAll(All<action::Fetch>());
}

// The donor was not kept waiting for this worker and went on: what was on its way may be of the
// next version. Then it has the parameters of this one to give no longer, which come last.
TEST_F(HoldingsTest, StateThatMayHaveChangedOnItsWayIsInNoCheckpoint) {
  StartAll(ByThePeer());
  TakeAllForACheckpoint();
  const auto parameters = GatherStates(All<action::Fetch>());
  ASSERT_EQ(parameters.size(), 2u);
  Do(event::FetchDone{parameters[0].fetch, FetchStatus::kOk});
  Do(event::FetchDone{parameters[1].fetch, FetchStatus::kGone});
  EXPECT_TRUE(All<action::TakeSnapshot>().empty());
  EXPECT_TRUE(All<action::Fetch>().empty());
  Says(kPeer, Has(2, {0, 1}));
  EXPECT_TRUE(All<action::TakeSnapshot>().empty());
  EXPECT_TRUE(All<action::UploadChunk>().empty());
}

// The snapshot of a checkpoint only reads.
TEST_F(HoldingsTest, WhatIsHeldIsServedWhileItsCheckpointIsTaken) {
  Start();
  Says(kPeer, PartReady{RoundId(0), PartIndex(0), 1, 0, 1, true, Attempt(0), {}});
  EndFetches({{BufferKind::kStaging, kFirst}});
  msg::Commit commit = TheCommit();
  commit.checkpoint_writer = kSelf;
  Tell(commit);
  EndReduction();
  Decide();
  EndUpdate();
  ASSERT_TRUE(Said<ParametersReady>());
  generation_ = Said<ParametersReady>()->generation;
  Says(kPeer, Has(1, {0, 1}));
  EndFetches({{BufferKind::kState, kSecond}});
  const auto takes = All<action::TakeParameters>();
  ASSERT_EQ(takes.size(), 1u);
  Do(event::OpDone{takes[0].op, false, 9, ""});
  for (const std::uint32_t part : {1u, 0u}) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].piece.part, part);
    Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  }
  ASSERT_EQ(All<action::TakeSnapshot>().size(), 1u);
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 1, kFirst, 1));
  EXPECT_TRUE(Serves(PieceKind::kHeldState, 1, kFirst));
}

// No coordinator that is right says so.
TEST_F(HoldingsTest, ADecisionOfWhatIsNotCommittedHereChangesNothing) {
  Commit();
  Decide(1);
  EXPECT_TRUE(All<action::UpdateHeld>().empty());
  Tell(TheCommit(1));
  EndReduction();
  EXPECT_TRUE(All<action::UpdateHeld>().empty());
  ASSERT_TRUE(Told<msg::Held>());
  EXPECT_EQ(Told<msg::Held>()->attempt, Attempt(1));
  Decide(1);
  EXPECT_EQ(All<action::UpdateHeld>().size(), 1u);
}

// --- the next coordinator

class HoldsTest : public HoldingsTest {
 protected:
  using HoldingsTest::HoldingsTest;
  void LoseCoordinator(const std::optional<HeldParameters>& decided) {
    Do(event::CoordinatorGone{"reset"});
    EXPECT_EQ(All<action::Orphaned>().size(), 1u);
    Do(event::CoordinatorFound{decided});
  }
  action::Detached Detached() {
    const auto detached = All<action::Detached>();
    EXPECT_EQ(detached.size(), 1u);
    return detached.empty() ? action::Detached{} : detached[0];
  }
};

TEST_F(HoldsTest, WhatTheNextCoordinatorKnowsToBeDecidedIsApplied) {
  Commit();
  ASSERT_TRUE(Told<msg::Held>());
  LoseCoordinator(HeldParameters{Term(1), RoundId(1), Attempt(0)});
  EXPECT_TRUE(All<action::Detached>().empty());
  EndUpdate();
  // To where all parameters are.
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].to.kind, BufferKind::kState);
  EXPECT_EQ(copies[0].from[0].range, kFirst);
  Do(event::OpDone{copies[0].op, false, 0, ""});
  const action::Detached detached = Detached();
  EXPECT_EQ(detached.held, (HeldParameters{Term(1), RoundId(1), Attempt(0)}));
  EXPECT_THAT(detached.shards, ElementsAre(0));
  EXPECT_FALSE(detached.whole);
}

class Undecided : public HoldsTest,
                  public ::testing::WithParamInterface<std::optional<HeldParameters>> {};

TEST_P(Undecided, WhatWasNotDecidedIsNotApplied) {
  Commit();
  LoseCoordinator(GetParam());
  const action::Detached detached = Detached();
  EXPECT_EQ(detached.held, (HeldParameters{Term(1), RoundId(0), std::nullopt}));
  EXPECT_THAT(detached.shards, ElementsAre(0));
  EXPECT_TRUE(detached.whole) << "those of the start are here";
}

INSTANTIATE_TEST_SUITE_P(Holds, Undecided,
                         ::testing::Values(std::nullopt,
                                           HeldParameters{Term(1), RoundId(1), Attempt(1)},
                                           HeldParameters{Term(2), RoundId(1), Attempt(0)},
                                           HeldParameters{Term(1), RoundId(2), Attempt(0)},
                                           HeldParameters{Term(1), RoundId(1), std::nullopt}));

// A fetch that is under way may still land in the parameters.
TEST_F(HoldsTest, ParametersThatAreBeingTakenAreGivenUp) {
  Commit();
  Decide();
  EndUpdate();
  Says(kPeer, Has(1, {0, 1}));
  const auto fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  LoseCoordinator(std::nullopt);
  EXPECT_TRUE(All<action::Detached>().empty());
  EXPECT_TRUE(All<action::CopySums>().empty());
  Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  Do(event::OpDone{copies[0].op, false, 0, ""});
  EXPECT_EQ(Detached().held, (HeldParameters{Term(1), RoundId(1), Attempt(0)}));
  EXPECT_FALSE(Detached().whole);
}

TEST_F(HoldsTest, ACheckpointThatIsBeingTakenEndsFirst) {
  StartAll(ByThePeer());
  TakeAllForACheckpoint();
  std::vector<action::Fetch> parameters = GatherStates(All<action::Fetch>());
  for (const auto& fetch : parameters) Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  const auto snapshots = All<action::TakeSnapshot>();
  ASSERT_EQ(snapshots.size(), 1u);
  LoseCoordinator(std::nullopt);
  EXPECT_TRUE(All<action::Detached>().empty());
  Do(event::OpDone{snapshots[0].op, false, 0, ""});
  EXPECT_FALSE(Detached().held) << "others hold all shards of that round";
}

// Its shard is of version 5, the other one is to be taken.
class HeldBefore : public HoldingsTest {
 protected:
  HeldBefore() : HoldingsTest(Before()) {}
  static MachineConfig Before() {
    MachineConfig config = Sharded();
    config.term = Term(2);
    config.held = HeldParameters{Term(1), RoundId(5), Attempt(0)};
    config.held_shards = {0};
    config.held_whole = false;
    return config;
  }
};

TEST_F(HeldBefore, ItTakesWhatOthersHoldAndComputes) {
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(5, 1);
  plan.owners = Owners();
  plan.members = kMembers;
  Tell(msg::Start{StateSource::kHeld, plan, 0});
  const auto dropped = All<action::DropHeldState>();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_THAT(dropped[0].ranges, ElementsAre(kSecond));
  const auto copies = All<action::CopySums>();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].from[0].source.buffer.kind, BufferKind::kState);
  EXPECT_EQ(copies[0].from[0].range, kFirst);
  EXPECT_TRUE(All<action::InitializeState>().empty());
  Do(event::OpDone{copies[0].op, false, 0, ""});
  EXPECT_EQ(Said<ParametersReady>()->version, 5u);
  EXPECT_TRUE(All<action::StartWork>().empty());
  Says(kPeer, Has(5, {1}));
  EndFetches({{BufferKind::kState, kSecond}});
  const auto takes = All<action::TakeParameters>();
  ASSERT_EQ(takes.size(), 1u);
  Do(event::OpDone{takes[0].op, false, 9, ""});
  EXPECT_FALSE(Told<msg::Level>()) << "the coordinator takes it to be level";
  EXPECT_FALSE(Told<msg::Applied>());
  EXPECT_EQ(All<action::StartWork>().size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
