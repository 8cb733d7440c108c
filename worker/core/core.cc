#include "worker/core/core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"
#include "base/sometimes.h"

namespace lockstep::worker {

Core::Core(MachineConfig config, Layout layout)
    : context_(std::move(config), std::move(layout)),
      check_(context_.config, context_.layout),
      buffers_(context_),
      fetcher_(context_, buffers_),
      peers_(context_),
      heartbeat_(context_),
      rounds_(context_),
      cost_report_(context_),
      own_(context_, buffers_, peers_, rounds_, cost_report_),
      inputs_(context_, buffers_, fetcher_, peers_, rounds_),
      sums_(context_, buffers_, fetcher_, peers_, rounds_, inputs_, own_),
      evaluation_(context_),
      upload_(context_),
      initial_broadcast_(context_),
      ending_(context_),
      epoch_ends_(context_),
      updates_((context_.config.shards > 0 ? MakeShardedUpdates : MakeReplicatedUpdates)(
          {context_, buffers_, fetcher_, peers_, rounds_, own_, inputs_, sums_, evaluation_,
           upload_, ending_, epoch_ends_, parameters_})) {}

// One event, then all that it has made possible. What is said to a peer counts as a sign of life
// there, so the heartbeat looks at the actions last.
Actions Core::Step(Time now, const Event& event) {
  LOCKSTEP_CHECK(now >= context_.now, "time went back");
  LOCKSTEP_CHECK(context_.actions.empty(), "actions of the last step are left");
  context_.now = now;
  if (!ending_.over()) {
    Dispatch(event);
    if (!ending_.over()) Proceed();
  }
  for (const Action& action : context_.actions) {
    if (const auto* said = std::get_if<action::ToPeer>(&action)) heartbeat_.OnSaid(said->peer);
  }
  if (!ending_.over()) CheckCheapInvariants();
  return std::move(context_.actions);
}

// The order matters: first what frees buffers, then what takes them.
void Core::Proceed() {
  // Rounds that are over give their buffers back first, so that what follows may take them.
  updates_->Prune();
  own_.Update();
  inputs_.Update();
  sums_.Update();
  updates_->ShowEpochEnd();
  updates_->Advance();
  TakeLastStateIfAsked();
  if (parameters_.level() && !parameters_.update() && !ending_.begun() && !orphaned_) {
    own_.BeginIfPossible(parameters_.next(), rounds_.SumsOf(parameters_.next()) != nullptr);
  }
  updates_->CopyState();
  evaluation_.Update(!own_.Computing());
  upload_.Update();
  initial_broadcast_.Update(HasFirstParameters());
  fetcher_.Pump();
  // An operation may read a dead peer's memory, which goes when the peer is forgotten.
  if (!buffers_.Operating()) {
    peers_.ForgetGone([&](const MemberId& peer) { return sums_.Reads(peer); });
  }
  const bool in_use = own_.UsesParameters() || epoch_ends_.shown();
  if (ending_.Due(Unapplied(), in_use)) ending_.Conclude(State());
  // No run is in hand: the compute thread is what has found it.
  if (detaching_ && updates_->Detached()) return Detach();
  SetTimer();
}

// --- events
// -----------------------------------------------------------------------------------------------

void Core::Dispatch(const Event& event) {
  std::visit(Overloaded{
                 [&](const event::FromCoordinator& e) { OnCoordinatorMessage(e); },
                 [&](const event::PeerUp& e) { OnPeerUp(e); },
                 [&](const event::PeerDown& e) { OnPeerDown(e); },
                 [&](const event::ConnectFailed& e) { peers_.OnConnectFailed(e); },
                 [&](const event::PeerMapped& e) { OnPeerMapped(e); },
                 [&](const event::FromPeer& e) { OnPeerMessage(e); },
                 [&](const event::FetchDone& e) { OnFetchDone(e); },
                 [&](const event::Served& e) { own_.OnServed(buffers_.Unserve(e.cookie)); },
                 [&](const event::RunDone& e) { own_.OnRunDone(e); },
                 [&](const event::UnitAudited& e) { own_.OnUnitAudited(e); },
                 [&](const event::BucketsFinal& e) { own_.OnBucketsFinal(e); },
                 [&](const event::PartSealed& e) { own_.OnPartSealed(e); },
                 [&](const event::ChunkEvaluated& e) { evaluation_.OnChunkEvaluated(e); },
                 [&](const event::OpDone& e) { OnOpDone(e); },
                 [&](const event::ChunkUploaded&) { upload_.OnChunkUploaded(); },
                 [&](const event::ChunkGiven&) { initial_broadcast_.OnChunkGiven(); },
                 [&](const event::EpochEndSeen&) { epoch_ends_.OnSeen(); },
                 [&](const event::CostsGiven& e) { cost_report_.OnGiven(e); },
                 [&](const event::LeaveAsked& e) { ending_.OnLeaveAsked(e.reason, State()); },
                 [&](const event::CoordinatorGone& e) { OnCoordinatorGone(e); },
                 [&](const event::CoordinatorFound& e) { OnCoordinatorFound(e); },
                 [&](const event::TimerDue& e) { OnTimerDue(e); },
             },
             event);
}

void Core::Dispatch(const msg::ToWorker& message) {
  std::visit(Overloaded{
                 [](const msg::Welcome&) {},  // see ProtocolCheck
                 [&](const msg::Refuse& m) { ending_.OnRefused(m, State()); },
                 [&](const msg::Form& m) { OnForm(m); },
                 [&](const msg::MemberLeft& m) { peers_.OnLeft(m); },
                 [&](const msg::Start& m) { OnStart(m); },
                 [&](const msg::Commit& m) { OnCommit(m); },
                 [&](const msg::Revoke& m) { own_.OnRevoke(m); },
                 [&](const msg::Assign& m) { own_.OnAssign(m); },
                 [&](const msg::FenceRound& m) { own_.OnFence(m); },
                 [&](const msg::NewOwners& m) { OnNewOwners(m); },
                 [&](const msg::FenceAttempt& m) { sums_.OnFenceAttempt(m); },
                 [&](const msg::Hedge& m) { updates_->OnHedge(m); },
                 [&](const msg::TakeSums& m) { OnTakeSums(m); },
                 [&](const msg::Decide& m) { OnDecide(m); },
                 [&](const msg::CatchUp& m) { OnCatchUp(m); },
                 [&](const msg::Evaluate& m) { OnEvaluate(m); },
                 [&](const msg::StateChunk& m) { OnStateChunk(m); },
                 [&](const msg::GiveParameters& m) {
                   initial_broadcast_.OnGive(m, parameters_.started());
                 },
                 [&](const msg::Finish& m) { OnFinish(m); },
                 [&](const msg::SetSlowdown& m) { context_.Emit(action::Slowdown{m.specs}); },
                 [&](const msg::AskToLeave& m) { ending_.OnLeaveAsked(m.reason, State()); },
                 [&](const msg::Ping& m) { OnPing(m); },
                 [](const msg::Standbys&) {},  // the search for a coordinator has them
                 [](const msg::Followed&) {},  // see ProtocolCheck
             },
             message);
}

Status Core::Dispatch(const MemberId& peer, const DecodedPeerMessage& decoded) {
  return std::visit(
      Overloaded{
          [&](const PartReady& m) { return inputs_.OnPartReady(peer, m, decoded.floats); },
          [&](const SumReady& m) { return sums_.OnSumReady(peer, m, decoded.floats); },
          [&](const SumWant& m) {
            sums_.OnSumWant(peer, m);
            return Status();
          },
          [&](const MapState& m) {
            OnMapState(peer, m);
            return Status();
          },
          [&](const StateWant& m) { return updates_->OnStateWant(peer, m); },
          [&](const StateReady& m) { return updates_->OnStateReady(peer, m); },
          [&](const StateTaken& m) { return updates_->OnStateTaken(peer, m); },
          [](const Alive&) { return Status(); },
          [&](const ParametersReady& m) { return updates_->OnParametersReady(peer, m); },
      },
      decoded.message);
}

// What the coordinator says is checked against what only this worker knows before anything is done
// about it. Where it cannot be, this worker leaves: it would not survive to follow half of it.
void Core::OnCoordinatorMessage(const event::FromCoordinator& e) {
  if (const Status status = check_.Take(e.message); !status)
    return ending_.OnBroken(status.error().message);
  Dispatch(e.message);
}

// What was announced to the peer's last connection may be lost with it, so all of it is said again:
// own_ forgets what it told when a peer goes, sums_ speaks up when it comes.
void Core::OnPeerUp(const event::PeerUp& e) {
  peers_.OnUp(e);
  heartbeat_.OnUp(e.peer);
  inputs_.OnPeerUp(e.peer);
  sums_.OnPeerUp(e.peer);
  updates_->OnPeerUp(e.peer);
}

// A connection that broke is no verdict: the coordinator hears of it and judges. Until then what
// the peer owes is missing, and what it owns is not announced to it.
void Core::OnPeerDown(const event::PeerDown& e) {
  const bool was_up = peers_.Up(e.peer);
  peers_.OnDown(e);
  heartbeat_.OnDown(e.peer);
  if (!was_up) return;
  for (const Want& want : fetcher_.OnPeerDown(e.peer)) {
    inputs_.OnDropped(want);
    sums_.OnDropped(want);
    updates_->OnDropped(want);
  }
  sums_.OnPeerDown(e.peer);
  own_.OnPeerDown(e.peer);
  updates_->OnPeerDown(e.peer);
  // Also before the start: it may have been reported as reached.
  if (!peers_.Left(e.peer)) context_.Tell(msg::Unreachable{e.peer, e.reason});
}

// From here on its parts may be read in place: what waits for fetches is looked at again.
void Core::OnPeerMapped(const event::PeerMapped& e) {
  peers_.OnMapped(e);
  inputs_.OnPeerUp(e.peer);
}

// Bytes of a peer: decoded, then taken by the part that they concern. Whatever cannot be, at either
// level, costs the peer its connection and nothing else.
void Core::OnPeerMessage(const event::FromPeer& e) {
  if (!peers_.Up(e.peer)) return;
  heartbeat_.OnHeard(e.peer);
  const auto decoded = DecodePeerMessage(e.bytes, context_.layout.number_bytes());
  const Status status = decoded.ok() ? Dispatch(e.peer, *decoded) : Status(decoded.error());
  if (!status) context_.Emit(action::ClosePeer{e.peer, status.error().message});
}

void Core::OnMapState(const MemberId& peer, const MapState& m) {
  peers_.OnMapState(peer, m);
  // What was waited for through the transport may be read in place now.
  inputs_.OnPeerUp(peer);
}

// Also of a piece that nobody waits for any more; only its sender knows, so the part decides. Who
// delivers is alive.
void Core::OnFetchDone(const event::FetchDone& e) {
  const Fetcher::Done done = fetcher_.OnFetchDone(e);
  if (done.status == FetchStatus::kOk || done.status == FetchStatus::kGone) {
    heartbeat_.OnHeard(done.want.peer);
  }
  switch (static_cast<PieceKind>(done.want.piece.kind)) {
    case PieceKind::kContribution:
      inputs_.OnFetchDone(done);
      break;
    case PieceKind::kSum:
    case PieceKind::kPartialSum:
      sums_.OnFetchDone(done);
      break;
    case PieceKind::kState:
    case PieceKind::kParameters:
    case PieceKind::kHeldState:
      updates_->OnFetchDone(done);
      break;
  }
}

// Each operation ends here once. Those on buffers give them back before anybody looks at the
// result, so that the step that follows finds them free.
void Core::OnOpDone(const event::OpDone& e) {
  if (ending_.OnOpDone(e, parameters_.next())) return;
  if (evaluation_.OnOpDone(e)) return;
  if (upload_.OnOpDone(e)) {
    // Of what was gathered it is an operation of the updates as well.
    if (updates_->OnOpDone(e)) buffers_.EndOp(e.op);
    return;
  }
  if (own_.OnOpDone(e)) return;
  buffers_.EndOp(e.op);
  // Of neither: a copy or a reduction that is wanted no longer.
  if (!sums_.OnOpDone(e)) updates_->OnOpDone(e);
}

// Nothing is decided any more, but what was decided is still done: sums that are on their way are
// applied, and peers may take those that this worker has.
void Core::OnCoordinatorGone(const event::CoordinatorGone& e) {
  if (ending_.begun() || !context_.config.reattaches) {
    return ending_.OnCoordinatorGone(e.reason, State());
  }
  if (std::exchange(orphaned_, true)) return;
  own_.StopAll();
  context_.Emit(action::Orphaned{e.reason});
}

void Core::OnCoordinatorFound(const event::CoordinatorFound& e) {
  if (!orphaned_ || std::exchange(detaching_, true)) return;
  updates_->BeginDetach(e.decided);
}

// Of sums that are only being fetched nothing is in the parameters yet. An update that the program
// makes has ended, or it would be under way.
void Core::Detach() {
  action::Detached detached;
  if (context_.config.shards > 0 && parameters_.started()) {
    updates_->Holds(&detached);
    if (!detached.held) detached.lack = "it held no part of the optimizer's state";
  } else if (parameters_.level()) {
    const auto& newest = parameters_.newest();
    detached.held = HeldParameters{context_.config.term, parameters_.next(),
                                   newest ? std::optional(newest->attempt) : std::nullopt};
  } else if (!parameters_.started() && checkpoint_bytes_ == 0 && context_.config.held) {
    Sometimes<"reattachment: the next coordinator died before it began">();
    // The next coordinator died before it had begun anything with them.
    detached.held = context_.config.held;
    detached.shards = context_.config.held_shards;
    detached.whole = context_.config.held_whole;
  } else {
    detached.lack = Lack();
  }
  detached.applied = own_.applied();
  detached.copied = own_.was_copied();
  detached.next_generation = context_.next_generation;
  detached.epochs_seen = epoch_ends_.seen();
  ending_.Detach();
  context_.Emit(std::move(detached));
}

void Core::OnTimerDue(const event::TimerDue& e) {
  timer_ = kNever;
  heartbeat_.OnTimer(e);
  peers_.OnTimer();
  own_.OnTimer();
}

// A coordinator that names ever more workers would make this one grow without a bound (I7).
void Core::OnForm(const msg::Form& m) {
  peers_.OnForm(m);
  if (peers_.known() > 2 * kMaxMembers || peers_.forming() > kMaxMembers) {
    ending_.OnBroken("it names more workers than a job can have");
  }
}

void Core::OnEvaluate(const msg::Evaluate& m) {
  if (!evaluation_.OnEvaluate(m)) {
    ending_.OnBroken("it lets evaluate more and more, without waiting for results");
  }
}

// The first one says where the state comes from and what is computed first. A later one is for who
// is about to catch up (CatchUp follows, which says from where), or says that the open round is
// planned anew; it never gives a state.
void Core::OnStart(const msg::Start& m) {
  if (parameters_.started()) {
    // Again, ahead of CatchUp or because the round is planned anew: the plan is what matters.
    if (m.source != StateSource::kPeers) return;
    plan_ = m.plan;
    const auto known = rounds_.PlanOf(m.plan.round);
    if (known && *known < m.plan.attempt) PlanAnew(m.plan);
    if (m.checkpoint_writer || m.evaluation != 0) {
      // Another writer may be named while this worker still takes that state.
      if (!last_) last_.emplace();
      last_->round = RoundId(m.plan.round.value - 1);
      last_->checkpoint_writer = m.checkpoint_writer;
      if (m.evaluation != 0) last_->evaluation = m.evaluation;
    }
    return;
  }
  const bool known = m.source != StateSource::kPeers;
  // What it holds is of some shards, and it takes the others from who has those.
  const bool takes =
      m.source == StateSource::kHeld && context_.config.shards > 0 && !context_.config.held_whole;
  parameters_.Start(m.plan.round, known && !takes);
  if (takes) parameters_.BeginCopies();
  rounds_.Expect(m.plan.round);
  // Of parameters that this worker had before nothing is left.
  if (m.source != StateSource::kHeld) epoch_ends_.OnNewest(std::nullopt);
  if (m.source == StateSource::kSeed) context_.Emit(action::InitializeState{});
  if (m.source == StateSource::kGiven && !initial_broadcast_.initialized()) {
    context_.Emit(action::InitializeState{.parameters = false});
  }
  if (known) updates_->OnStart(m);
  Adopt(m.plan);
}

// A commit of a round that is in the parameters already is heard in three cases: it is another
// attempt, which puts this worker back; it names another writer of a checkpoint; or it brings the
// next plan, which a worker that copied its state from someone who was ahead has not seen.
void Core::OnCommit(const msg::Commit& m) {
  if (parameters_.follows() && m.round < updates_->next()) {
    if (!Replaces(m)) {
      // What was copied may have been ahead of this commit; its plan is not.
      const bool void_by_now =
          parameters_.NewestIs(m.round) && m.attempt < parameters_.newest()->attempt;
      const bool newer = m.next && m.next->round == updates_->next() && !void_by_now &&
                         (!plan_ || std::pair(plan_->round, plan_->attempt) <
                                        std::pair(m.next->round, m.next->attempt));
      if (newer) Adopt(*m.next);
      WriteCheckpointIfAsked(m);
      return;
    }
    if (!GoBackFor(m)) return;
  }
  Follow(m);
}

// Only the open round gets new owners like this. After the commit owners change with the attempt.
void Core::OnNewOwners(const msg::NewOwners& m) {
  if (rounds_.SumsOf(m.round) != nullptr) return;
  const OwnerMap* known = rounds_.OwnersOf(m.round);
  if (known == nullptr || known->version >= m.owners.version) return;
  rounds_.SetOwners(m.round, m.owners);
  inputs_.OnMapChanged();
}

// The answer to "who holds it?": this attempt stands, everybody takes from a holder what is
// missing. It carries the commit, because who was away may not know it.
void Core::OnTakeSums(const msg::TakeSums& m) {
  // Others are told to take everything here, perhaps of a round that it has applied.
  if (m.holder == context_.config.self) {
    sums_.OnTakeSums(m);
  } else {
    Sometimes<"worker: it takes sums from a holder">();
  }
  if (parameters_.follows() && m.commit.round < updates_->next() &&
      (!Replaces(m.commit) || !GoBackFor(m.commit)))
    return;
  const RoundSums* sums = rounds_.SumsOf(m.commit.round);
  if (sums == nullptr || sums->commit().attempt != m.commit.attempt) {
    if (!Follow(m.commit)) return;
  }
  sums_.OnTakeSums(m);
}

// It would not wait for who holds nothing, and may not go on without who does.
void Core::OnDecide(const msg::Decide& m) {
  if (!updates_->OnDecide(m)) {
    ending_.OnBroken(fmt::format("it decides round {}, whose sums this worker lacks", m.round));
  }
}

// From the open round on it follows commits like everybody else; the rounds before it are in what
// it copies.
void Core::OnCatchUp(const msg::CatchUp& m) {
  if (!parameters_.started()) return;
  parameters_.BeginCopies();
  own_.StopAll();
  own_.OnCopied();
  rounds_.ReopenFrom(m.open_round);
  if (plan_ && plan_->round == m.open_round) {
    // What was planned for this worker in the open round has been given away; it may get other
    // units once it is level.
    plan_->assignments.clear();
    Adopt(*plan_);
  }
  rounds_.Expect(m.open_round);
  updates_->BeginCatchUp(m);
}

// A resumed job starts from a checkpoint, another one from a worker's parameters: the coordinator
// streams them ahead of Start.
void Core::OnStateChunk(const msg::StateChunk& m) {
  if (parameters_.started()) return;
  context_.Emit(action::StoreState{m.tensor, m.offset, m.bytes, m.round});
  // Behind the store: the coordinator sends on as this worker stores.
  checkpoint_bytes_ += m.bytes.size();
  context_.Tell(msg::CheckpointTaken{checkpoint_bytes_});
}

void Core::OnFinish(const msg::Finish& m) {
  ending_.OnFinish(m);
  own_.StopAll();
}

void Core::OnPing(const msg::Ping& m) {
  context_.Tell(msg::Pong{m.sequence, m.sent_ns, context_.now.time_since_epoch().count(), 0, {}});
}

// --- decisions
// -----------------------------------------------------------------------------------------------

// Takes note of a commit: which parts count (inputs, own), which owners sum them, which rounds are
// closed by it, and what is planned next. Commits come in order, and a worker cannot leave one out:
// its parameters would be those of nobody else (I1).
bool Core::Follow(const msg::Commit& commit) {
  const auto& members = commit.members;
  if (!parameters_.follows() || commit.term != context_.config.term ||
      commit.round < updates_->next() ||
      std::find(members.begin(), members.end(), context_.config.self) == members.end()) {
    return false;
  }
  if (commit.round > rounds_.expected()) {
    updates_->FallBehind(fmt::format("the commit of round {} did not come", rounds_.expected()));
    return false;
  }
  // An update cannot be stopped in its midst, nor undone.
  const auto& update = parameters_.update();
  if (update && !update->abandoned && update->round == commit.round &&
      update->attempt != commit.attempt) {
    updates_->FallBehind("another attempt than the one being applied was committed", false);
    return false;
  }
  if (!sums_.OnCommit(commit)) return false;
  rounds_.OnCommitted(commit.round);
  own_.OnCommit(commit);
  inputs_.OnCommit(commit);
  peers_.OnCommitted(commit.round);
  updates_->Prune();
  if (commit.next) Adopt(*commit.next);
  return true;
}

// Only of the last round in the parameters: those before it are closed, since its own commit closed
// them.
bool Core::Replaces(const msg::Commit& commit) const {
  if (parameters_.catching_up()) {
    return updates_->CopiesOlder(commit.round, commit.attempt);
  }
  return parameters_.NewestIs(commit.round) && parameters_.newest()->attempt < commit.attempt;
}

// Parameters are not taken back: they are copied anew from who has the attempt that stands.
bool Core::GoBackFor(const msg::Commit& commit) {
  if (parameters_.catching_up()) {
    RestartCatchUp(commit.round);
    return true;
  }
  // It was catching up when the attempt was fenced, so it was not asked and has promised nothing;
  // what it worked in, or copied, is not the attempt that counts.
  Sometimes<"worker: an attempt in its parameters was replaced">();
  updates_->FallBehind("the attempt that it has was replaced", false);
  return false;
}

// From here on the round has owners and this worker its units. A second plan of the same round
// makes void what was computed for the first one (OwnWork::OnPlan).
void Core::Adopt(const Plan& plan) {
  plan_ = plan;
  cost_report_.OnPlan(plan);
  // Nothing of it can count any more, or it is committed as it was planned before.
  if (plan.round < rounds_.first_not_closed() || rounds_.SumsOf(plan.round) != nullptr) return;
  rounds_.SetOwners(plan.round, plan.owners);
  Round& round = rounds_.At(plan.round);
  if (round.plan && round.plan != plan.attempt) round.parts_used = 0;
  round.plan = plan.attempt;
  round.epoch = plan.epoch;
  own_.OnPlan(plan);
  inputs_.OnMapChanged();
}

// The coordinator found nobody who holds the sums of the newest commit and too few of its parts
// left, so it opened that round again. Who promised not to apply it simply goes back to computing;
// who was not asked, because it was catching up, may have it in its parameters and goes back
// further.
void Core::PlanAnew(const Plan& plan) {
  const RoundId round = plan.round;
  if (rounds_.SumsOf(round) != nullptr) {
    if (round.Next() != rounds_.expected()) return;
    const bool worked_in =
        round < updates_->next() || (parameters_.update() && parameters_.update()->round == round);
    if (parameters_.catching_up() && worked_in) {
      RestartCatchUp(round);
    } else if (parameters_.level() && worked_in) {
      // It was catching up when the others were asked, and has promised nothing.
      return updates_->FallBehind(fmt::format("round {}, which it has, is computed again", round),
                                  false);
    }
    rounds_.Reopen(round);
    rounds_.Expect(round);
  }
  own_.Forget(round.Next());  // what was carried on is computed again, too
  Adopt(plan);
}

// Copied from the same donor: it was asked to hold the attempt, or knows its replacement.
void Core::RestartCatchUp(RoundId round) {
  Sometimes<"worker: it copies anew, as an attempt was replaced">();
  parameters_.BeginCopies();
  rounds_.ReopenFrom(round);
  rounds_.Expect(round);
  updates_->CatchUpFrom(round);
}

// The writer of a checkpoint was lost, and its commit came again with another one. The state is
// still that after the round, or it is too late for this worker.
void Core::WriteCheckpointIfAsked(const msg::Commit& commit) {
  if (!parameters_.NewestIs(commit.round) || parameters_.newest()->attempt != commit.attempt ||
      parameters_.update() || !commit.checkpoint_writer ||
      parameters_.newest()->writer == commit.checkpoint_writer) {
    return;
  }
  parameters_.NameWriter(*commit.checkpoint_writer);
  updates_->BeginCheckpoint(commit);
}

// A worker that holds a part of that state takes the rest first.
void Core::TakeLastStateIfAsked() {
  if (!last_ || !parameters_.level() || parameters_.update()) return;
  const msg::Commit last = *std::exchange(last_, std::nullopt);
  if (last.round.Next() != parameters_.next()) return;
  evaluation_.OnApplied(last);
  updates_->BeginCheckpoint(last);
}

// Why the parameters are not those after all that is committed; empty: they are.
std::string Core::Lack() const {
  switch (parameters_.standing()) {
    case Parameters::Standing::kNotStarted:
      return "it had not begun";
    case Parameters::Standing::kBehind:
      return fmt::format("it was behind since before round {}: {}", parameters_.next(),
                         parameters_.behind_why());
    case Parameters::Standing::kCatching:
      return "it was catching up" + updates_->Copied();
    case Parameters::Standing::kLevel:
      break;
  }
  if (parameters_.update())
    return fmt::format("its update with round {} had not ended", parameters_.update()->round);
  if (parameters_.next() < rounds_.expected())
    return "it had not got " + sums_.Missing(parameters_.next());
  return "";
}

void Core::SetTimer() {
  const Time next = std::min(
      {peers_.next_timer(), own_.next_timer(), heartbeat_.next_timer(), ending_.next_timer()});
  // A timer that comes too early is set again then.
  if (next >= timer_) return;
  timer_ = next;
  context_.Emit(action::SetTimer{next});
}

// A peer names a piece; whoever made it says where it lies, if it is still there. From here until
// Served the buffer is pinned (I4).
Serve Core::OnPieceAsked(const MemberId& peer, const PieceName& piece) {
  heartbeat_.OnHeard(peer);
  const auto kind = static_cast<PieceKind>(piece.kind);
  const bool exchanged =
      kind == PieceKind::kContribution || kind == PieceKind::kSum || kind == PieceKind::kPartialSum;
  const std::uint64_t number = exchanged ? context_.layout.number_bytes() : sizeof(float);
  if (piece.bytes == 0 || piece.bytes % number != 0 || piece.offset % number != 0) return {};
  std::optional<BufferRange> from;
  switch (kind) {
    case PieceKind::kContribution:
      from = own_.FindPiece(piece);
      break;
    case PieceKind::kSum:
    case PieceKind::kPartialSum:
      from = sums_.FindPiece(piece);
      break;
    case PieceKind::kState:
    case PieceKind::kParameters:
    case PieceKind::kHeldState:
      from = updates_->FindPiece(peer, piece);
      break;
  }
  if (!from) return {};
  LOCKSTEP_CHECK(from->range.count * number == piece.bytes, "a piece of {} bytes, not {}",
                 from->range.count * number, piece.bytes);
  return {true, *from, buffers_.Serve(peer, *from)};
}

StepMachine::View Core::view() const {
  StepMachine::View view;
  view.started = parameters_.started();
  view.level = parameters_.level();
  view.next = updates_->next();
  if (parameters_.newest()) view.newest = parameters_.newest()->attempt;
  view.computing = own_.Computing();
  view.fetches = fetcher_.under_way();
  view.queued = fetcher_.queued();
  view.pins = buffers_.pins();
  view.peers = peers_.known();
  view.heard = sums_.heard();
  view.exited = ending_.over();
  if (parameters_.update()) {
    view.waiting_for = fmt::format("the update of round {}", parameters_.update()->round);
  } else if (view.computing) {
    view.waiting_for = "its units";
  } else if (parameters_.behind()) {
    view.waiting_for = "the order to catch up";
  } else if (epoch_ends_.shown()) {
    view.waiting_for = "its program, between two epochs";
  } else if (sums_.MayApply(updates_->next())) {
    view.waiting_for = "its compute thread";
  } else if (view.started) {
    view.waiting_for = sums_.Missing(updates_->next()) + updates_->Missing();
  }
  return view;
}

void Core::CheckCheapInvariants() const {
  const auto& update = parameters_.update();
  parameters_.CheckInvariants();
  rounds_.CheckInvariants();
  own_.CheckInvariants();
  evaluation_.CheckInvariants();
  upload_.CheckInvariants();
  LOCKSTEP_CHECK(!update || !own_.UsesParameters(),
                 "I1: the parameters change under a unit that reads them");
  LOCKSTEP_CHECK(!update || !epoch_ends_.shown(),
                 "the parameters change while the program looks at those of an epoch's end");
  LOCKSTEP_CHECK(!parameters_.level() || parameters_.next() <= rounds_.expected(),
                 "I1: round {} was applied before it was committed", rounds_.expected());
  LOCKSTEP_CHECK(parameters_.started() || (rounds_.all().empty() && !update),
                 "a round lives before the start");
  ending_.CheckInvariants();
  updates_->CheckCheapInvariants();
}

void Core::CheckInvariants() const {
  if (ending_.over()) return;
  CheckCheapInvariants();
  buffers_.CheckInvariants();
  fetcher_.CheckInvariants();
  peers_.CheckInvariants();
  heartbeat_.CheckInvariants();
  inputs_.CheckInvariants();
  sums_.CheckInvariants();
  updates_->CheckInvariants();
}

// --- the interface
// -----------------------------------------------------------------------------------------------

struct StepMachine::Impl : Core {
  using Core::Core;
};

StepMachine::StepMachine(MachineConfig config, Layout layout)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(layout))) {}
StepMachine::~StepMachine() = default;
StepMachine::StepMachine(StepMachine&&) noexcept = default;
StepMachine& StepMachine::operator=(StepMachine&&) noexcept = default;

Actions StepMachine::Step(Time now, const Event& event) { return impl_->Step(now, event); }
Serve StepMachine::OnPieceAsked(const MemberId& peer, const PieceName& piece) {
  return impl_->OnPieceAsked(peer, piece);
}
UnitQueue& StepMachine::queue() { return impl_->queue(); }
const Layout& StepMachine::layout() const { return impl_->layout(); }
void StepMachine::CheckInvariants() const { impl_->CheckInvariants(); }
StepMachine::View StepMachine::view() const { return impl_->view(); }

}  // namespace lockstep::worker
