// What the compute thread hears of the parts that it has sealed, with the next work: which ones the
// parameters have come through, and nothing of any other. And where few numbers are sent: that
// pieces of contributions and sums are where both sides expect them.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class AppliedPartsTest : public MachineTest {
 protected:
  // The peer owns everything.
  static Plan PlanOf(std::uint64_t round, std::uint32_t units = 1) {
    Plan plan = MakePlan(round, units);
    plan.owners = {1, {{kPeer, 1}}};
    return plan;
  }
  static msg::Commit CommitOf(std::uint64_t round, std::vector<CommittedPart> parts,
                              std::uint32_t units = 1) {
    msg::Commit commit = MakeCommit(round, std::move(parts));
    commit.owners = {1, {{kPeer, 1}}};
    commit.next = PlanOf(round + 1, units);
    return commit;
  }
  static CommittedPart Own(std::uint8_t part) { return {kSelf, PartIndex(part), 1, 4}; }
  static CommittedPart Peers() { return {kPeer, PartIndex(0), 1, 4}; }

  void BeginAt0(std::uint32_t units = 1) {
    Do(event::PeerUp{kPeer, "test"});
    Tell(msg::Start{StateSource::kSeed, PlanOf(0, units), 0});
    Note();
  }
  void Note() {
    for (const auto& start : All<action::StartWork>()) start_ = start;
  }
  // The peer publishes the round's sums, and the parameters take them.
  void Apply(std::uint64_t round) {
    SumReady sums = SumsOf(round);
    sums.inlined.ranges = {{0, 4096}};
    PeerSays(sums, 4096);
    ASSERT_EQ(All<action::Apply>().size(), 1u);
    EndApply();
  }
  void EndApply() {
    Do(event::OpDone{All<action::Apply>().at(0).op, false, 42, ""});
    Note();
  }
  static SealedPart Part(std::uint32_t work, std::uint8_t part) { return {work, PartIndex(part)}; }
  using Parts = std::vector<SealedPart>;

  action::StartWork start_;  // the last
};

TEST_F(AppliedPartsTest, IsAPartThatIsInTheCommit) {
  BeginAt0();
  EXPECT_EQ(start_.applied, Parts());
  EXPECT_FALSE(start_.copied);
  const std::uint32_t work = start_.work;
  Compute(work);
  Tell(CommitOf(0, {Own(0), Peers()}));
  Apply(0);
  EXPECT_EQ(start_.round, RoundId(1));
  EXPECT_EQ(start_.applied, Parts({Part(work, 0)}));
  Compute(start_.work);
  Tell(CommitOf(1, {Peers()}));
  Apply(1);
  EXPECT_EQ(start_.round, RoundId(2));
  EXPECT_EQ(start_.applied, Parts()) << "a part that is left out, or one that was said before";
}

TEST_F(AppliedPartsTest, IsEachOfTwoParts) {
  for (const bool second : {true, false}) {
    machine_ = StepMachine(Config(), Layout({{0, 4096}}, 4 * 4096));
    BeginAt0();
    const std::uint32_t work = start_.work;
    Compute(work);
    Tell(msg::Assign{RoundId(0), {Unit{UnitIndex(7), {70, 74}}}, 3});
    Compute(work);
    Tell(CommitOf(0, second ? std::vector{Own(0), Own(1), Peers()} : std::vector{Own(0), Peers()}));
    Apply(0);
    EXPECT_EQ(start_.applied,
              second ? Parts({Part(work, 0), Part(work, 1)}) : Parts({Part(work, 0)}));
  }
}

// Its units are somebody else's; what it is given then is a new beginning.
TEST_F(AppliedPartsTest, IsNotOneThatWasFenced) {
  BeginAt0();
  const std::uint32_t fenced = start_.work;
  Compute(fenced);
  Tell(msg::FenceRound{RoundId(0), 5});
  Tell(msg::Assign{RoundId(0), {Unit{UnitIndex(7), {70, 74}}}, 6});
  Note();
  ASSERT_NE(start_.work, fenced);
  EXPECT_EQ(start_.applied, Parts());
  const std::uint32_t work = start_.work;
  Compute(work);
  Tell(CommitOf(0, {Own(1), Peers()}));
  Apply(0);
  EXPECT_EQ(start_.applied, Parts({Part(work, 1)}));
}

TEST_F(AppliedPartsTest, IsTheOneOfTheLastPlanOfARound) {
  BeginAt0();
  const std::uint32_t before = start_.work;
  Compute(before);
  Plan again = PlanOf(0);
  again.attempt = Attempt(2);
  Tell(msg::Start{StateSource::kPeers, again, 0});
  Note();
  ASSERT_NE(start_.work, before);
  const std::uint32_t work = start_.work;
  Compute(work);
  Tell(CommitOf(0, {Own(0), Peers()}));
  Apply(0);
  EXPECT_EQ(start_.applied, Parts({Part(work, 0)}));
}

// The next round is committed without it, and closes the one that it has not applied yet.
TEST_F(AppliedPartsTest, IsAlsoOneOfARoundThatItIsLateFor) {
  BeginAt0();
  const std::uint32_t work = start_.work;
  Compute(work);
  Tell(CommitOf(0, {Own(0), Peers()}));
  Tell(CommitOf(1, {Peers()}));
  Apply(0);
  Apply(1);
  EXPECT_EQ(start_.round, RoundId(2));
  EXPECT_EQ(start_.applied, Parts({Part(work, 0)}));
}

TEST_F(AppliedPartsTest, IsSaidUntilAnotherPartIsSealed) {
  BeginAt0();
  const std::uint32_t work = start_.work;
  Compute(work);
  Tell(CommitOf(0, {Own(0), Peers()}));
  Apply(0);
  Tell(CommitOf(1, {Peers()}));  // before the compute thread has taken a unit
  Apply(1);
  EXPECT_EQ(start_.round, RoundId(2));
  EXPECT_EQ(start_.applied, Parts({Part(work, 0)}));
  Compute(start_.work);
  Tell(CommitOf(2, {Peers()}));
  Apply(2);
  EXPECT_EQ(start_.applied, Parts());
}

TEST_F(AppliedPartsTest, NothingIsKnownAfterCopying) {
  BeginAt0();
  Compute(start_.work);
  Tell(CommitOf(0, {Own(0), Peers()}));
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  PeerSays(StateReady{0, 1, Attempt(0), 9, 0, false});
  ASSERT_EQ(All<action::Fetch>().size(), 1u);
  Do(event::FetchDone{All<action::Fetch>()[0].fetch, FetchStatus::kOk});
  ASSERT_TRUE(Told<msg::Level>());
  Note();
  Tell(msg::Assign{RoundId(1), {Unit{UnitIndex(7), {70, 74}}}, 6});
  ASSERT_EQ(start_.round, RoundId(1));
  EXPECT_TRUE(start_.copied);
  EXPECT_EQ(start_.applied, Parts());
  Compute(start_.work);
  Tell(CommitOf(1, {Peers()}));
  Apply(1);
  EXPECT_FALSE(start_.copied);
}

// The coordinator is lost: what the next one numbers anew is said of these parts before.
TEST_F(AppliedPartsTest, IsToldWithTheLastWordOnACoordinator) {
  MachineConfig config = Config();
  config.reattaches = true;
  for (const bool counts : {true, false}) {
    machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
    BeginAt0();
    const std::uint32_t work = start_.work;
    Compute(work);
    Tell(CommitOf(0, counts ? std::vector{Own(0), Peers()} : std::vector{Peers()}));
    Apply(0);
    Do(event::CoordinatorGone{"reset"});
    Do(event::CoordinatorFound{});
    const auto detached = All<action::Detached>();
    ASSERT_EQ(detached.size(), 1u);
    EXPECT_EQ(detached[0].applied, counts ? Parts({Part(work, 0)}) : Parts());
    EXPECT_FALSE(detached[0].copied);
  }
}

// It was sealed under the coordinator before, whose work nobody can name here.
TEST_F(AppliedPartsTest, NothingIsKnownAfterAPartOfBefore) {
  BeginAt0();
  Tell(CommitOf(0, {Own(0), Peers()}));
  Apply(0);
  EXPECT_EQ(start_.round, RoundId(1));
  EXPECT_TRUE(start_.copied);
  EXPECT_EQ(start_.applied, Parts());
}

// The compute thread was sealing a part of the work before, of which it had begun without a word of
// that: the seal says nothing of what it has heard.
TEST_F(AppliedPartsTest, ASealThatWasUnderWayIsNoAnswer) {
  BeginAt0();
  const Run run = TakeRun();
  ASSERT_TRUE(run.last);
  Tell(CommitOf(0, {Peers()}));
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Do(Done(start_.work, run));
  Do(event::PartSealed{start_.work, run.part, 2});
  PeerSays(StateReady{0, 1, Attempt(0), 9, 0, false});
  ASSERT_EQ(All<action::Fetch>().size(), 1u);
  Do(event::FetchDone{All<action::Fetch>()[0].fetch, FetchStatus::kOk});
  ASSERT_TRUE(Told<msg::Level>());
  Note();
  Tell(msg::Assign{RoundId(1), {Unit{UnitIndex(7), {70, 74}}}, 6});
  ASSERT_EQ(start_.round, RoundId(1));
  EXPECT_TRUE(start_.copied);
}

// 10 of each 1024 numbers: 10 and 5 for their places.
class FewNumbersTest : public MachineTest {
 protected:
  static constexpr std::uint64_t kGrainNumbers = 15;
  FewNumbersTest() {
    machine_ = StepMachine(Config(), Layout({{0, 4096}}, 4 * 2048, sizeof(float),
                                            Layout::Copies::kBuckets, Compression{.kept = 10}));
  }
};

TEST_F(FewNumbersTest, PiecesOfContributionsAndSumsAreWhereTheyLie) {
  Begin(1);
  Compute(All<action::StartWork>()[0].work);
  const auto ready = Said<PartReady>();
  ASSERT_TRUE(ready);
  // Of each bucket of two grains either owner has one.
  PieceName piece;
  piece.kind = static_cast<std::uint32_t>(PieceKind::kContribution);
  piece.attempt = ready->tag;
  piece.bytes = 4 * kGrainNumbers;
  for (std::uint64_t grain = 0; grain < 4; ++grain) {
    piece.offset = grain * piece.bytes;
    EXPECT_TRUE(machine_.OnPieceAsked(kPeer, piece).have) << grain;
  }
  piece.offset = 4 * piece.bytes;
  EXPECT_FALSE(machine_.OnPieceAsked(kPeer, piece).have) << "beyond the end";

  PeerSays(PartReady{RoundId(0), PartIndex(0), 11, 0, 2, true, Attempt(0), {}});
  auto fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 2u);
  for (const auto& fetch : fetches) {
    EXPECT_EQ(fetch.to.range.count, kGrainNumbers);
    EXPECT_EQ(fetch.piece.offset, fetch.to.range.first * 4);
    EXPECT_EQ(fetch.piece.bytes, 4 * kGrainNumbers);
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  ASSERT_TRUE(Told<msg::Receipts>());

  Tell(MakeCommit(0, {{kSelf, PartIndex(0), 1, 4}, {kPeer, PartIndex(0), 1, 4}}));
  ASSERT_EQ(All<action::Reduce>().size(), 1u);
  const auto reduce = All<action::Reduce>()[0];
  EXPECT_EQ(reduce.slices[0].range.count, 1024u);
  Do(event::OpDone{reduce.op, false, 0, ""});
  PeerSays(SumsOf(0, 5));
  fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 2u);
  for (const auto& fetch : fetches) {
    EXPECT_EQ(fetch.to.range.count, 30u) << "20 numbers of two parts, and 10 for their places";
    EXPECT_EQ(fetch.to.range.first % 30, 0u);
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  const auto apply = All<action::Apply>()[0];
  EXPECT_EQ(apply.parts, 2u);
  std::uint64_t parameters = 0;
  for (const auto& slice : apply.slices) parameters += slice.range.count;
  EXPECT_EQ(parameters, 4096u);
}

TEST_F(FewNumbersTest, WhatRidesAlongBeyondAContributionClosesThePeer) {
  Begin(1);
  PartReady ready{RoundId(0), PartIndex(0), 11, 0, 2, true, Attempt(0), {}};
  ready.inlined.ranges = {{3 * kGrainNumbers, kGrainNumbers}};
  PeerSays(ready, kGrainNumbers);
  EXPECT_TRUE(All<action::ClosePeer>().empty());
  EXPECT_EQ(All<action::StoreInline>().size(), 1u);
  ready.tag = 12;
  ready.inlined.ranges = {{3 * kGrainNumbers + 1, kGrainNumbers}};
  PeerSays(ready, kGrainNumbers);
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
