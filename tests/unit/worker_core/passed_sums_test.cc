// Partial sums that are taken from one neighbour and passed on to the next, and whole ones that
// come back.
#include "base/routes.h"
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

// Four pieces of a grain each.
class PassedSumsTest : public MachineTest {
 protected:
  PassedSumsTest() : MachineTest(4096, SmallPieces()) {}
  static MachineConfig SmallPieces() {
    MachineConfig config = Config();
    config.piece_bytes = kGrain * sizeof(float);
    return config;
  }

  // The own part is sealed.
  void Start(ExchangeAlgorithm algorithm, std::uint32_t units = 1) {
    Do(event::PeerUp{kPeer, "test"});
    Do(event::PeerUp{kOther, "test"});
    Plan plan = MakePlan(0, units);
    plan.owners.algorithm = algorithm;
    plan.members = Members();
    Tell(msg::Start{StateSource::kSeed, plan, 0});
    if (units > 0) Compute(1);
    EXPECT_FALSE(Said<PartReady>()) << "nobody takes a part before the commit";
  }
  static std::vector<MemberId> Members() { return {kSelf, kPeer, kOther}; }
  static msg::Commit TheCommit(ExchangeAlgorithm algorithm, const std::vector<MemberId>& by) {
    std::vector<CommittedPart> parts;
    for (const MemberId& id : by) parts.push_back({id, PartIndex(0), 1, 4});
    msg::Commit commit = MakeCommit(0, std::move(parts));
    commit.owners = RootsOf(algorithm, 2, by);
    commit.members = Members();
    commit.next.reset();
    return commit;
  }
  void Says(const MemberId& peer, const PassedOn& passed) {
    SumReady ready;
    ready.term = Term(1);
    ready.map_version = 2;
    ready.generation = 1;
    ready.passed = passed;
    Do(event::FromPeer{peer, EncodePeerMessage(ready)});
  }
  // What a neighbour was told in this step.
  std::optional<PassedOn> ToldTo(const MemberId& peer) const {
    std::optional<PassedOn> told;
    for (const auto& a : All<action::ToPeer>()) {
      const auto decoded = DecodePeerMessage(a.bytes);
      if (a.peer != peer || !decoded.ok()) continue;
      if (const auto* sums = std::get_if<SumReady>(&decoded->message)) told = sums->passed;
    }
    return told;
  }
  void EndFetches(const MemberId& from, PieceKind kind, std::size_t count) {
    const auto fetches = All<action::Fetch>();
    ASSERT_EQ(fetches.size(), count);
    for (const auto& fetch : fetches) {
      EXPECT_EQ(fetch.peer, from);
      EXPECT_EQ(fetch.piece.kind, static_cast<std::uint32_t>(kind));
      Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
    }
  }
  action::Reduce TheReduction() const {
    const auto reductions = All<action::Reduce>();
    EXPECT_EQ(reductions.size(), 1u);
    return reductions.empty() ? action::Reduce{} : reductions[0];
  }
  void End(const action::Reduce& reduce) { Do(event::OpDone{reduce.op, false, 0, ""}); }
};

TEST_F(PassedSumsTest, TheFirstOfARingBeginsAndGetsTheSumsBack) {
  Start(ExchangeAlgorithm::kRing);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kSelf, kPeer}));
  const action::Reduce own = TheReduction();
  ASSERT_EQ(own.inputs.size(), 1u);
  EXPECT_EQ(own.inputs[0].source.buffer.kind, BufferKind::kContribution);
  EXPECT_EQ(own.slices.size(), 4u);
  // Nobody can have the whole before: it is not taken.
  Says(kPeer, {0, true, 4});
  EXPECT_TRUE(All<action::Fetch>().empty());
  End(own);
  EXPECT_EQ(ToldTo(kPeer), (PassedOn{0, false, 4}));
  EXPECT_FALSE(Told<msg::Published>());
  EndFetches(kPeer, PieceKind::kSum, 4);
  EXPECT_FALSE(All<action::Apply>().empty());
}

TEST_F(PassedSumsTest, WhatIsPassedOnIsServedUntilTheWholeIsThere) {
  Start(ExchangeAlgorithm::kRing);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kSelf, kPeer}));
  PieceName piece;
  piece.kind = static_cast<std::uint32_t>(PieceKind::kPartialSum);
  piece.owner = 1;
  piece.bytes = kGrain * sizeof(float);
  EXPECT_FALSE(machine_.OnPieceAsked(kPeer, piece).have);
  End(TheReduction());
  const Serve serve = machine_.OnPieceAsked(kPeer, piece);
  ASSERT_TRUE(serve.have);
  EXPECT_EQ(serve.from.buffer.kind, BufferKind::kSum);
  Do(event::Served{serve.cookie});
  Says(kPeer, {0, true, 1});
  EXPECT_EQ(All<action::Fetch>().size(), 1u);
  EXPECT_FALSE(machine_.OnPieceAsked(kPeer, piece).have);
  piece.offset = kGrain * sizeof(float);
  EXPECT_TRUE(machine_.OnPieceAsked(kPeer, piece).have);
}

// Of two trees one ends here: those below are added in their order, then the own part.
TEST_F(PassedSumsTest, TheRootOfATreeAddsAllAndPublishes) {
  Start(ExchangeAlgorithm::kTree);
  Tell(TheCommit(ExchangeAlgorithm::kTree, Members()));
  // In the other one it is a leaf.
  const action::Reduce leaf = TheReduction();
  EXPECT_EQ(leaf.inputs.size(), 1u);
  End(leaf);
  EXPECT_EQ(ToldTo(kOther), (PassedOn{1, false, 2}));
  Says(kPeer, {0, false, 2});
  EndFetches(kPeer, PieceKind::kPartialSum, 2);
  EXPECT_TRUE(All<action::Reduce>().empty());
  Says(kOther, {0, false, 1});
  EndFetches(kOther, PieceKind::kPartialSum, 1);
  const action::Reduce first = TheReduction();
  ASSERT_EQ(first.inputs.size(), 3u);
  EXPECT_EQ(first.inputs[0].source.buffer,
            (BufferId{BufferKind::kStaging, kPartialStaging, kPeer.worker}));
  EXPECT_EQ(first.inputs[1].source.buffer,
            (BufferId{BufferKind::kStaging, kPartialStaging, kOther.worker}));
  EXPECT_EQ(first.inputs[2].source.buffer.kind, BufferKind::kContribution);
  EXPECT_EQ(first.slices.size(), 1u) << "as soon as a piece is there";
  End(first);
  EXPECT_EQ(ToldTo(kPeer), (PassedOn{0, true, 1}));
  EXPECT_EQ(ToldTo(kOther), (PassedOn{0, true, 1}));
  EXPECT_FALSE(Told<msg::Published>());
  Says(kOther, {0, false, 2});
  EndFetches(kOther, PieceKind::kPartialSum, 1);
  End(TheReduction());
  EXPECT_TRUE(Told<msg::Published>());
  Says(kOther, {1, true, 2});
  EndFetches(kOther, PieceKind::kSum, 2);
  EXPECT_FALSE(All<action::Apply>().empty());
}

TEST_F(PassedSumsTest, WhoContributesNothingOnlyTakesTheSums) {
  Start(ExchangeAlgorithm::kRing, 0);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kPeer, kOther}));
  EXPECT_TRUE(All<action::Reduce>().empty());
  Says(kPeer, {0, true, 4});
  EndFetches(kPeer, PieceKind::kSum, 4);
  EXPECT_FALSE(All<action::Apply>().empty());
}

// A message between workers may be quicker than the coordinator's.
TEST_F(PassedSumsTest, WhatComesBeforeTheCommitCounts) {
  Start(ExchangeAlgorithm::kRing, 0);
  Says(kPeer, {0, true, 99});  // more than there can be
  EXPECT_TRUE(All<action::ClosePeer>().empty());
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kPeer, kOther}));
  EndFetches(kPeer, PieceKind::kSum, 4);
  EXPECT_FALSE(All<action::Apply>().empty());
}

TEST_F(PassedSumsTest, WhatIsNotOnesOwnToPassOnIsRefused) {
  Start(ExchangeAlgorithm::kRing);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kSelf, kPeer}));
  Says(kOther, {0, true, 4});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  Says(kPeer, {0, false, 4});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  Says(kPeer, {1, true, 4});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
}

TEST_F(PassedSumsTest, ACommitThatLetsOthersEndTheRoutesIsABreach) {
  for (const ExchangeAlgorithm algorithm : {ExchangeAlgorithm::kRing, ExchangeAlgorithm::kTree}) {
    machine_ = StepMachine(SmallPieces(), Layout({{0, 4096}}, 4 * 4096));
    Start(algorithm);
    msg::Commit commit = TheCommit(algorithm, {kSelf, kPeer});
    commit.owners.owners = {{kSelf, 1}};
    Tell(commit);
    ASSERT_EQ(All<action::Exit>().size(), 1u);
    EXPECT_TRUE(All<action::Exit>()[0].failed);
  }
}

// Nothing is told twice but to a connection that is made again.
TEST_F(PassedSumsTest, AConnectionThatIsMadeAgainIsToldAgain) {
  Start(ExchangeAlgorithm::kRing);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kSelf, kPeer}));
  End(TheReduction());
  Do(event::PeerDown{kPeer, "test"});
  Do(event::PeerUp{kPeer, "test"});
  EXPECT_EQ(ToldTo(kPeer), (PassedOn{0, false, 4}));
  Do(event::PeerUp{kOther, "test"});
  EXPECT_FALSE(ToldTo(kPeer));
}

// The parts are kept for it: they are announced to the owners of the next attempt.
TEST_F(PassedSumsTest, TheNextAttemptIsDirect) {
  Start(ExchangeAlgorithm::kRing);
  Tell(TheCommit(ExchangeAlgorithm::kRing, {kSelf, kPeer, kOther}));
  End(TheReduction());
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0), 1});
  ASSERT_TRUE(Told<msg::HoldAnswer>());
  EXPECT_FALSE(Told<msg::HoldAnswer>()->holds_all);
  msg::Commit next = MakeCommit(0, {{kSelf, PartIndex(0), 1, 4}, {kPeer, PartIndex(0), 1, 4}});
  next.attempt = Attempt(1);
  next.owners = {3, {{kSelf, 1}, {kPeer, 1}}};
  next.members = Members();
  next.next.reset();
  Tell(next);
  ASSERT_TRUE(Said<PartReady>());
  EXPECT_TRUE(Said<PartReady>()->sealed);
}

}  // namespace
}  // namespace lockstep::worker
