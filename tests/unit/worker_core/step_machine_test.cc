#include <cmath>
#include <limits>

#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

using StepMachineTest = MachineTest;

TEST_F(StepMachineTest, FormationIsReportedWhenAllIsSettled) {
  msg::Form form;
  form.formation = 3;
  form.transport = "tcp";
  form.connect_to = {{kPeer, "address", "", "elsewhere"}};
  Tell(form);
  EXPECT_EQ(All<action::UseTransport>().size(), 1u);
  ASSERT_EQ(All<action::ConnectPeer>().size(), 1u);
  EXPECT_FALSE(Told<msg::Reached>());
  Do(event::PeerUp{kPeer, "tcp"});
  EXPECT_FALSE(Told<msg::Reached>());  // what it says may be lost on the way
  PeerSays(MapState{false});
  const auto reached = Told<msg::Reached>();
  ASSERT_TRUE(reached);
  EXPECT_EQ(reached->formation, 3u);
  ASSERT_EQ(reached->peers.size(), 1u);
  EXPECT_TRUE(reached->peers[0].reached);
  EXPECT_FALSE(reached->peers[0].mapped);
}

TEST_F(StepMachineTest, TwoFormationsAtATimeAreBothAnswered) {
  const MemberId other{WorkerId(2), Incarnation(1)};
  Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "", ""}}});
  Tell(msg::Form{2, "tcp", {}, {{other, "b", "", ""}}});
  Do(event::PeerUp{kPeer, "tcp"});
  PeerSays(MapState{false});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_EQ(Told<msg::Reached>()->formation, 1u);
  Do(event::PeerUp{other, "tcp"});
  Do(event::FromPeer{other, EncodePeerMessage(MapState{false})});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_EQ(Told<msg::Reached>()->formation, 2u);
}

event::UnitAudited Came(const UnitQueue::Take& take, const Unit& unit) {
  event::UnitAudited audited{
      .work = take.work, .unit = unit, .counts = take.audited, .gradient = {}};
  audited.gradient.emplace().bits = {7, 8};
  return audited;
}

TEST_F(StepMachineTest, AnAuditedUnitOfAnotherWorkerCountsForNothing) {
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(0, 1);
  plan.audits = {{kPeer, {UnitIndex(9), {40, 44}}, {kSelf}}};
  Tell(msg::Start{StateSource::kSeed, plan, 0});
  const auto take = machine_.queue().TakeNext();
  ASSERT_EQ(take.kind, UnitQueue::TakeKind::kAudit);
  // It reads the parameters, so they must not change yet.
  Tell(MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}}));
  EXPECT_EQ(All<action::VoidWork>().size(), 1u);
  Do(Came(take, plan.audits[0].unit));
  EXPECT_FALSE(Told<msg::Audited>()) << "its round is over";
}

TEST_F(StepMachineTest, WhatCameOutOfAnAuditIsTold) {
  Do(event::PeerUp{kPeer, "test"});
  Plan plan = MakePlan(0, 2);
  plan.audits = {{kPeer, {UnitIndex(9), {40, 44}}, {kSelf}},
                 {kSelf, plan.assignments[0].units[0], {kPeer}}};
  Tell(msg::Start{StateSource::kSeed, plan, 0});
  auto take = machine_.queue().TakeNext();
  ASSERT_EQ(take.kind, UnitQueue::TakeKind::kAudit);
  Do(Came(take, plan.audits[0].unit));
  auto told = Told<msg::Audited>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->unit, plan.audits[0].unit);
  EXPECT_EQ(told->bits, (Digest128{7, 8}));

  const Run run = TakeRun();
  EXPECT_TRUE(run.audited);
  EXPECT_EQ(run.count, 1u);
  Do(Came(run, plan.audits[1].unit));
  told = Told<msg::Audited>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->unit, plan.audits[1].unit);
  Do(Done(1, run));
  Compute(1);
  EXPECT_TRUE(Told<msg::Sealed>());
}

TEST_F(StepMachineTest, WhoDoesNotComeIsNotReached) {
  Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "", ""}}});
  ASSERT_EQ(All<action::SetTimer>().size(), 1u);
  now_ = All<action::SetTimer>()[0].at;
  Do(event::TimerDue{});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_FALSE(Told<msg::Reached>()->peers[0].reached);
}

TEST_F(StepMachineTest, WhoIsConnectedAndNotHeardIsNotReached) {
  Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "", ""}}});
  now_ = All<action::SetTimer>().at(0).at;
  Do(event::PeerUp{kPeer, "tcp"});
  Do(event::TimerDue{});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_FALSE(Told<msg::Reached>()->peers[0].reached);
  EXPECT_EQ(Told<msg::Reached>()->peers[0].error, "nothing was heard from it in time");
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
}

class MappingTest : public MachineTest {
 protected:
  MappingTest() : MachineTest(4096, Mapping()) {}
  static MachineConfig Mapping() {
    MachineConfig config = Config();
    config.mapping = true;
    config.host_id = "host";
    return config;
  }
  void Meet() {
    Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "arena", "host"}}});
    Do(event::PeerUp{kPeer, "tcp"});
    EXPECT_EQ(All<action::MapPeer>().size(), 1u);
  }
};

TEST_F(MappingTest, WhoCannotBeMappedIsReachedOverTheTransportAndTheLogSaysWhy) {
  Meet();
  Do(event::PeerMapped{kPeer, false, "its arena takes no more connections"});
  ASSERT_EQ(All<action::Log>().size(), 1u);
  EXPECT_NE(All<action::Log>()[0].line.find("not mapped: its arena takes no more connections"),
            std::string::npos)
      << All<action::Log>()[0].line;
  EXPECT_EQ(Said<MapState>(), MapState{false});
  PeerSays(MapState{true});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_TRUE(Told<msg::Reached>()->peers[0].reached);
  EXPECT_FALSE(Told<msg::Reached>()->peers[0].mapped);
  EXPECT_EQ(Told<msg::Reached>()->peers[0].path, "tcp");
}

TEST_F(MappingTest, OnlyThoseWhoMapEachOtherAreMapped) {
  Meet();
  Do(event::PeerMapped{kPeer, true, ""});
  EXPECT_FALSE(Told<msg::Reached>());
  PeerSays(MapState{true});
  ASSERT_TRUE(Told<msg::Reached>());
  EXPECT_TRUE(Told<msg::Reached>()->peers[0].mapped);
}

TEST_F(MappingTest, WhatIsFinalEarlyIsForNobodyWhereAllAreMapped) {
  Meet();
  Do(event::PeerMapped{kPeer, true, ""});
  PeerSays(MapState{true});
  Tell(msg::Start{StateSource::kSeed, MakePlan(0, 2), 0});
  ASSERT_EQ(All<action::StartWork>().size(), 1u);
  EXPECT_FALSE(All<action::StartWork>()[0].sends_early);
}

TEST_F(MappingTest, WhatIsFinalEarlyIsForWhoeverFetchesIt) {
  Meet();
  Do(event::PeerMapped{kPeer, false, "its arena takes no more connections"});
  PeerSays(MapState{true});
  Tell(msg::Start{StateSource::kSeed, MakePlan(0, 2), 0});
  ASSERT_EQ(All<action::StartWork>().size(), 1u);
  EXPECT_TRUE(All<action::StartWork>()[0].sends_early);
}

TEST_F(StepMachineTest, WhoIsLostBeforeTheStartIsUnreachable) {
  Tell(msg::Form{1, "tcp", {}, {{kPeer, "a", "", ""}}});
  Do(event::PeerUp{kPeer, "tcp"});
  PeerSays(MapState{false});
  ASSERT_TRUE(Told<msg::Reached>());
  Do(event::PeerDown{kPeer, "connection reset"});
  ASSERT_TRUE(Told<msg::Unreachable>());
  EXPECT_EQ(Told<msg::Unreachable>()->peer, kPeer);
}

TEST_F(StepMachineTest, APartIsSealedAndAnnounced) {
  Begin(2);
  EXPECT_EQ(All<action::InitializeState>().size(), 1u);
  ASSERT_EQ(All<action::StartWork>().size(), 1u);
  const auto work = All<action::StartWork>()[0];
  Compute(work.work);
  EXPECT_EQ(Told<msg::Progress>()->units_done, 1u);
  Compute(work.work);
  const auto sealed = Told<msg::Sealed>();
  ASSERT_TRUE(sealed);
  EXPECT_EQ(sealed->samples, 8u);
  EXPECT_EQ(sealed->units.size(), 2u);
  const auto ready = Said<PartReady>();
  ASSERT_TRUE(ready);
  EXPECT_TRUE(ready->sealed);

  PieceName piece;
  piece.kind = static_cast<std::uint32_t>(PieceKind::kContribution);
  piece.attempt = ready->tag;
  piece.bytes = 4096;
  const Serve serve = machine_.OnPieceAsked(kPeer, piece);
  ASSERT_TRUE(serve.have);
  EXPECT_EQ(serve.from.buffer, work.parts[0]);
  EXPECT_EQ(machine_.view().pins, 1u);
  Do(event::Served{serve.cookie});
  EXPECT_EQ(machine_.view().pins, 0u);
  piece.attempt = ready->tag + 100;
  EXPECT_FALSE(machine_.OnPieceAsked(kPeer, piece).have);
}

// Four buckets, of which the peer owns the first and the third.
class SentEarlyTest : public MachineTest {
 protected:
  SentEarlyTest() : SentEarlyTest(Config()) {}
  explicit SentEarlyTest(const MachineConfig& config) : MachineTest(1024, config) {
    Begin(1);
    run_ = TakeRun();
  }

  // The peer asks for half a bucket.
  std::uint64_t Ask(std::uint64_t offset) {
    PieceName piece;
    piece.kind = static_cast<std::uint32_t>(PieceKind::kContribution);
    piece.attempt = ready_.tag;
    piece.offset = offset;
    piece.bytes = 2048;
    const Serve serve = machine_.OnPieceAsked(kPeer, piece);
    EXPECT_TRUE(serve.have);
    return serve.cookie;
  }
  void Final(std::uint32_t buckets) {
    Do(event::BucketsFinal{1, PartIndex(0), buckets});
    if (const auto ready = Said<PartReady>()) ready_ = *ready;
  }
  msg::SentBytes Seal(Time at) {
    Do(Done(1, run_));
    Do(event::PartSealed{1, PartIndex(0), at.time_since_epoch().count()});
    return Told<msg::Sealed>().value().sent;
  }

  Run run_;
  PartReady ready_;
};

TEST_F(SentEarlyTest, IsWhatTheTransportHasTakenBeforeTheSeal) {
  Final(2);
  const Time first = now_;
  const auto one = Ask(0);
  Do(event::Served{one});
  // What ends before the seal's time counts, whenever that is heard; not what ends after it.
  const auto two = Ask(2048);
  Do(event::Served{two});
  EXPECT_EQ(Seal(now_), (msg::SentBytes{8192, 2048, first.time_since_epoch().count()}));
}

TEST_F(SentEarlyTest, IsNothingWhereAllComesWithTheSeal) {
  EXPECT_EQ(Seal(now_), (msg::SentBytes{8192, 0, 0}));
}

TEST_F(SentEarlyTest, WhatAPeerThatGoesWasSentIsNotCounted) {
  Final(2);
  const auto one = Ask(0);
  Do(event::Served{one});
  Do(event::PeerDown{kPeer, "test"});
  EXPECT_EQ(Seal(now_ + Duration(1)), (msg::SentBytes{8192, 0, 0}));
}

TEST_F(SentEarlyTest, IsNeverMoreThanTheContribution) {
  Final(1);
  for (int i = 0; i < 5000; ++i) {
    const auto again = Ask(0);
    Do(event::Served{again});
  }
  EXPECT_EQ(Seal(now_ + Duration(1)).early, 8192u);
}

class SentAlongTest : public SentEarlyTest {
 protected:
  SentAlongTest() : SentEarlyTest(Inlining()) {}
  static MachineConfig Inlining() {
    MachineConfig config = Config();
    config.inline_bytes = 1u << 20;
    return config;
  }
};

TEST_F(SentAlongTest, CountsWhenItIsSaid) {
  Final(2);
  const Time said = now_;
  EXPECT_EQ(Seal(said + Duration(1)),
            (msg::SentBytes{8192, 4096, said.time_since_epoch().count()}));
}

// A bucket of the peer's rides along, and no more of the part.
class SentAlongInPartTest : public SentEarlyTest {
 protected:
  SentAlongInPartTest() : SentEarlyTest(Inlining()) {}
  static MachineConfig Inlining() {
    MachineConfig config = Config();
    config.inline_bytes = 4096;
    config.part_inline_bytes = 6000;
    return config;
  }
};

TEST_F(SentAlongInPartTest, WhatIsBeyondTheBoundIsThereToBeFetched) {
  Final(1);
  ASSERT_EQ(All<action::ToPeer>().size(), 1u);
  EXPECT_EQ(All<action::ToPeer>()[0].payload.size(), 1u);
  Final(3);
  ASSERT_EQ(All<action::ToPeer>().size(), 1u);
  EXPECT_TRUE(All<action::ToPeer>()[0].payload.empty());
  EXPECT_EQ(ready_.buckets, 3u);
  Ask(8192);
}

TEST_F(StepMachineTest, APartSaysHowLongItsRunsWaitedForTheirSamples) {
  Begin(3);
  const std::uint32_t work = All<action::StartWork>().at(0).work;
  for (const auto& reading :
       {msg::Reading{std::uint64_t{20}, std::uint64_t{9}}, msg::Reading{std::uint64_t{300}, {}}}) {
    event::RunDone done = Done(work, TakeRun());
    done.units[0].end_ns = 100;
    done.reading = reading;
    Do(done);
  }
  Compute(work);  // says nothing
  ASSERT_TRUE(Told<msg::Sealed>());
  const msg::Reading together{std::uint64_t{120}, std::uint64_t{9}};
  EXPECT_EQ(Told<msg::Sealed>()->reading, together) << "no longer than the runs took";
}

TEST_F(StepMachineTest, APartThatIsNotFiniteIsSealedAndKeptByNobody) {
  for (const bool by_loss : {true, false}) {
    MachineConfig config = Config();
    machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
    Begin(1);
    const auto run = TakeRun();
    const double loss = by_loss ? std::numeric_limits<double>::infinity() : 1.0;
    Do(Done(1, run, loss));
    Do(event::PartSealed{1, run.part, 2, by_loss});
    const auto sealed = Told<msg::Sealed>();
    ASSERT_TRUE(sealed);
    EXPECT_FALSE(std::isfinite(sealed->loss_sum));
    EXPECT_EQ(sealed->samples, 4u);
    EXPECT_FALSE(Said<PartReady>());
  }
}

TEST_F(StepMachineTest, RevokeIsAnsweredInTheMiddleOfARun) {
  Begin(4);
  const auto run = TakeRun();
  ASSERT_EQ(run.position, 0u);
  Tell(msg::Revoke{RoundId(0), 0});
  ASSERT_TRUE(Told<msg::Revoked>());
  EXPECT_EQ(Told<msg::Revoked>()->from, 1u);
}

TEST_F(StepMachineTest, AnAssignBehindTheSecondPartIsRefusedAsAWhole) {
  Begin(1);
  const Unit one{UnitIndex(7), {70, 74}};
  EXPECT_TRUE(TakeRun().last);
  Tell(msg::Assign{RoundId(0), {one}, 3});
  EXPECT_FALSE(Told<msg::Revoked>());
  EXPECT_TRUE(TakeRun().last);
  Tell(msg::Assign{RoundId(0), {one, one}, 4});
  EXPECT_EQ(Told<msg::Revoked>(), (msg::Revoked{RoundId(0), 2, 4, false}));
  Tell(msg::Revoke{RoundId(0), 0, 5});
  EXPECT_EQ(Told<msg::Revoked>(), (msg::Revoked{RoundId(0), 2, 5, false}));
}

// As where a round is planned anew and all of its units are given out afterwards.
TEST_F(StepMachineTest, LocalStepsAreOfSingleUnitsAlsoWhereTheyComeLater) {
  Begin(1);
  Plan again = MakePlan(0, 0);
  again.attempt = Attempt(2);
  again.owners.version = 2;
  again.local_rate = 0.1f;
  Tell(msg::Start{StateSource::kPeers, again, 0});
  ASSERT_EQ(All<action::StartWork>().size(), 1u);
  Tell(msg::Assign{RoundId(0), Units(4), 1});
  EXPECT_EQ(TakeRun().units.size(), 1u);
}

TEST_F(StepMachineTest, AFencedRoundIsNotSealed) {
  Begin(1);
  const auto work = All<action::StartWork>()[0].work;
  const auto run = TakeRun();
  Tell(msg::FenceRound{RoundId(0)});
  EXPECT_EQ(All<action::VoidWork>().size(), 1u);
  Do(Done(work, run));
  Do(event::PartSealed{work, run.part, 2});
  EXPECT_FALSE(Told<msg::Sealed>());
  EXPECT_FALSE(Said<PartReady>());
}

TEST_F(StepMachineTest, ARoundFromEndToEnd) {
  Begin(1);
  const auto buffers = All<action::StartWork>()[0].parts;
  Compute(All<action::StartWork>()[0].work);
  PeerSays(PartReady{RoundId(0), PartIndex(0), 11, 0, 1, true, Attempt(0), {}});
  auto fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].to.range, (FloatRange{0, 2048}));
  Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  ASSERT_TRUE(Told<msg::Receipts>());
  EXPECT_EQ(Told<msg::Receipts>()->parts, (std::vector<ReceivedPart>{{kPeer, PartIndex(0)}}));

  Tell(MakeCommit(0, {{kSelf, PartIndex(0), 1, 4}, {kPeer, PartIndex(0), 1, 4}}));
  ASSERT_EQ(All<action::Reduce>().size(), 1u);
  const auto reduce = All<action::Reduce>()[0];
  ASSERT_EQ(reduce.inputs.size(), 2u);
  EXPECT_EQ(reduce.inputs[0].source.buffer.kind, BufferKind::kContribution);
  EXPECT_EQ(reduce.inputs[1].source.buffer.kind, BufferKind::kStaging);
  Do(event::OpDone{reduce.op, false, 0, ""});
  EXPECT_TRUE(Told<msg::Published>());
  EXPECT_TRUE(Said<SumReady>());

  PeerSays(SumsOf(0, 5));
  fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  Do(event::FetchDone{fetches[0].fetch, FetchStatus::kOk});
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  EXPECT_EQ(All<action::StartWork>().size(), 0u);
  Do(event::OpDone{All<action::Apply>()[0].op, false, 42, ""});
  ASSERT_TRUE(Told<msg::Applied>());
  EXPECT_EQ(Told<msg::Applied>()->digest, 42u);
  ASSERT_EQ(All<action::StartWork>().size(), 1u);
  EXPECT_EQ(All<action::StartWork>()[0].round, RoundId(1));
  // Nobody needs what was contributed to a round that is applied, neither here nor there.
  EXPECT_EQ(All<action::StartWork>()[0].parts, buffers);
  PeerSays(PartReady{RoundId(1), PartIndex(0), 12, 0, 1, true, Attempt(0), {}});
  fetches = All<action::Fetch>();
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].to.buffer, reduce.inputs[1].source.buffer);
}

TEST_F(StepMachineTest, NoIsAPromise) {
  Begin(1);
  Compute(All<action::StartWork>()[0].work);
  Tell(MakeCommit(0, {{kSelf, PartIndex(0), 1, 4}}));
  const auto reduce = All<action::Reduce>();
  ASSERT_EQ(reduce.size(), 1u);
  Tell(msg::FenceAttempt{Term(1), RoundId(0), Attempt(0)});
  ASSERT_TRUE(Told<msg::HoldAnswer>());
  EXPECT_FALSE(Told<msg::HoldAnswer>()->holds_all);
  Do(event::OpDone{reduce[0].op, false, 0, ""});
  PeerSays(SumsOf(0, 5));
  EXPECT_TRUE(All<action::Fetch>().empty());
  EXPECT_TRUE(All<action::Apply>().empty());
}

TEST_F(StepMachineTest, ARoundThatBeginsOnceMoreHasItsFirstPartAgain) {
  Begin(1);
  Compute(All<action::StartWork>()[0].work);
  ASSERT_TRUE(Told<msg::Sealed>());
  Plan again = MakePlan(0, 0);
  again.attempt = Attempt(2);
  again.owners.version = 2;
  Tell(msg::Start{StateSource::kPeers, again, 0});
  const auto start = All<action::StartWork>();
  ASSERT_EQ(start.size(), 1u);
  Tell(msg::Assign{RoundId(0), Units(1), 1});
  Compute(start[0].work);
  ASSERT_TRUE(Told<msg::Sealed>());
  EXPECT_EQ(Told<msg::Sealed>()->part, PartIndex(0));
  EXPECT_EQ(Told<msg::Sealed>()->plan, Attempt(2));
  // Of the plan before, and of this one.
  PeerSays(PartReady{RoundId(0), PartIndex(0), 11, 0, 1, true, Attempt(0), {}});
  EXPECT_TRUE(All<action::Fetch>().empty());
  PeerSays(PartReady{RoundId(0), PartIndex(0), 12, 1, 1, true, Attempt(2), {}});
  ASSERT_EQ(All<action::Fetch>().size(), 1u);
  Do(event::FetchDone{All<action::Fetch>()[0].fetch, FetchStatus::kOk});
  ASSERT_TRUE(Told<msg::Receipts>());
  EXPECT_EQ(Told<msg::Receipts>()->map_version, 2u);
}

// Round 0 is closed by the commit of round 1, of which the peer alone held the sums of both.
TEST_F(StepMachineTest, SumsOfAClosedRoundThatAreLostPutItBehindWhileTheNextIsOpenAgain) {
  Begin(1);
  for (const std::uint64_t round : {0, 1}) {
    msg::Commit commit = MakeCommit(round, {{kPeer, PartIndex(0), 1, 4}});
    commit.owners = {1, {{kPeer, 1}}};
    Tell(commit);
  }
  Tell(msg::FenceAttempt{Term(1), RoundId(1), Attempt(0)});
  ASSERT_TRUE(Told<msg::HoldAnswer>());
  EXPECT_FALSE(Told<msg::HoldAnswer>()->holds_all);
  Plan again = MakePlan(1, 0);
  again.attempt = Attempt(2);
  Tell(msg::Start{StateSource::kPeers, again, 0});
  EXPECT_FALSE(Told<msg::Behind>());
  Tell(msg::MemberLeft{kPeer, "no message for 2.0 s"});
  Do(event::PeerDown{kPeer, "it has left"});
  ASSERT_TRUE(Told<msg::Behind>());
  EXPECT_FALSE(Told<msg::Behind>()->has_any);
}

TEST_F(StepMachineTest, AnUpdateWaitsForTheRunUnderWay) {
  Begin(1);
  const auto work = All<action::StartWork>()[0].work;
  const auto run = TakeRun();
  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = {1, {{kPeer, 1}}};
  Tell(commit);
  PeerSays(SumsOf(0, 5));
  for (const auto& fetch : All<action::Fetch>()) {
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  EXPECT_TRUE(All<action::Apply>().empty());
  Do(Done(work, run));
  Do(event::PartSealed{work, run.part, 2});
  EXPECT_EQ(All<action::Apply>().size(), 1u);
}

TEST_F(StepMachineTest, WhatCannotBeClosesThePeer) {
  Begin(1);
  const std::vector<std::byte> junk(5, std::byte{0xff});
  Do(event::FromPeer{kPeer, junk});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  PeerSays(PartReady{RoundId(0), PartIndex(2), 1, 0, 1, true, Attempt(0), {}});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  PeerSays(PartReady{RoundId(0), PartIndex(0), 1, 0, 99, false, Attempt(0), {}});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  PeerSays(PartReady{RoundId(0), PartIndex(0), 4, 0, 1, true, Attempt(0), {}});
  EXPECT_TRUE(All<action::ClosePeer>().empty());
  PeerSays(PartReady{RoundId(0), PartIndex(0), 4, 0, 0, false, Attempt(0), {}});  // takes it back
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
  PeerSays(StateWant{77, 0});
  EXPECT_EQ(All<action::ClosePeer>().size(), 1u);
}

TEST_F(StepMachineTest, ADonorCopiesForAJoiner) {
  Begin(0);
  PeerSays(StateWant{0, 0});
  ASSERT_EQ(All<action::CopyState>().size(), 1u);
  Do(event::OpDone{All<action::CopyState>()[0].op, false, 0, ""});
  const auto ready = Said<StateReady>();
  ASSERT_TRUE(ready);
  PieceName piece;
  piece.kind = static_cast<std::uint32_t>(PieceKind::kState);
  piece.attempt = ready->tag;
  piece.bytes = 4 * 4096;
  const Serve serve = machine_.OnPieceAsked(kPeer, piece);
  ASSERT_TRUE(serve.have);
  Do(event::Served{serve.cookie});
  PeerSays(StateTaken{ready->tag});
  EXPECT_FALSE(machine_.OnPieceAsked(kPeer, piece).have);
  PeerSays(StateWant{0, 1});  // after a round that is not applied yet
  EXPECT_TRUE(All<action::CopyState>().empty());
}

TEST_F(StepMachineTest, EachChunkOfACheckpointIsAnsweredBehindItsStore) {
  Do(event::PeerUp{kPeer, "test"});
  std::uint64_t taken = 0;
  for (const std::uint64_t offset : {0u, 12u}) {
    Tell(msg::StateChunk{RoundId(4), 0, offset, false, std::vector<std::byte>(12)});
    taken += 12;
    ASSERT_EQ(actions_.size(), 2u);
    EXPECT_TRUE(std::holds_alternative<action::StoreState>(actions_[0]));
    ASSERT_TRUE(Told<msg::CheckpointTaken>());
    EXPECT_EQ(Told<msg::CheckpointTaken>()->bytes, taken);
  }
}

TEST_F(StepMachineTest, WhoeverWritesACheckpointEachTellsItsDigestOfTheState) {
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::Start{StateSource::kSeed, MakePlan(0, 0), 0});
  msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
  commit.owners = {1, {{kPeer, 1}}};
  commit.next->owners = commit.owners;
  commit.checkpoint_writer = kPeer;
  Tell(commit);
  PeerSays(SumsOf(0, 5));
  for (const auto& fetch : All<action::Fetch>()) {
    Do(event::FetchDone{fetch.fetch, FetchStatus::kOk});
  }
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  Do(event::OpDone{All<action::Apply>()[0].op, false, 42, ""});
  ASSERT_EQ(All<action::DigestReplica>().size(), 1u);
  EXPECT_EQ(All<action::TakeSnapshot>().size(), 0u);
  Do(event::OpDone{All<action::DigestReplica>()[0].op, false, 0, "", {1, 2}});
  EXPECT_EQ(Told<msg::ReplicaDigest>(), (msg::ReplicaDigest{RoundId(0), Attempt(0), {1, 2}}));
  // Sent again for another writer: the digest is told again, and this one writes.
  commit.checkpoint_writer = kSelf;
  Tell(commit);
  EXPECT_EQ(All<action::DigestReplica>().size(), 1u);
  EXPECT_EQ(All<action::TakeSnapshot>().size(), 1u);
}

// The coordinator that committed the last round is gone, and nobody commits another one.
TEST_F(StepMachineTest, OfTheLastStateThatItHoldsItTakesWhatIsWanted) {
  MachineConfig config = Config();
  config.held = HeldParameters{Term(1), RoundId(7), Attempt(0)};
  machine_ = StepMachine(config, Layout({{0, 4096}}, 4 * 4096));
  Do(event::PeerUp{kPeer, "test"});
  Tell(msg::Start{StateSource::kHeld, MakePlan(7, 0), 0});
  EXPECT_TRUE(All<action::TakeSnapshot>().empty());
  msg::Start start{StateSource::kPeers, MakePlan(7, 0), 0};
  start.checkpoint_writer = kPeer;
  start.evaluation = 3;
  Tell(start);
  ASSERT_EQ(All<action::DigestReplica>().size(), 1u);
  ASSERT_EQ(All<action::TakeSnapshot>().size(), 1u);
  EXPECT_EQ(All<action::TakeSnapshot>()[0].kind, action::SnapshotKind::kEvaluation);
  const auto snapshot = All<action::TakeSnapshot>()[0].op;
  Do(event::OpDone{All<action::DigestReplica>()[0].op, false, 0, "", {1, 2}});
  EXPECT_EQ(Told<msg::ReplicaDigest>(), (msg::ReplicaDigest{RoundId(6), Attempt(0), {1, 2}}));
  Do(event::OpDone{snapshot, false, 0, ""});
  // That one is lost, and this one writes.
  start.checkpoint_writer = kSelf;
  start.evaluation = 0;
  Tell(start);
  EXPECT_EQ(All<action::DigestReplica>().size(), 1u);
  ASSERT_EQ(All<action::TakeSnapshot>().size(), 1u);
  EXPECT_EQ(All<action::TakeSnapshot>()[0].kind, action::SnapshotKind::kCheckpoint);
  Tell(msg::Evaluate{3, RoundId(6), {0, 4}});
  EXPECT_EQ(All<action::EvaluateChunk>().size(), 1u);
}

TEST_F(StepMachineTest, FinishReportsTheDigest) {
  Begin(0);
  Tell(msg::Finish{"done", false});
  ASSERT_EQ(All<action::DigestState>().size(), 1u);
  Do(event::OpDone{All<action::DigestState>()[0].op, false, 0, "abc"});
  ASSERT_TRUE(Told<msg::Final>());
  EXPECT_EQ(Told<msg::Final>()->params_digest, "abc");
  EXPECT_EQ(All<action::Exit>().size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
