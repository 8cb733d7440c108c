// Where each event goes.
#include <algorithm>
#include <utility>

#include "worker/core/core.h"

namespace lockstep::worker {

void Core::On(const event::FromCoordinator& e) {
  if (const Status status = check_.Take(e.message); !status) return Break(status.error().message);
  std::visit([&](const auto& message) { On(message); }, e.message);
}

void Core::On(const event::PeerUp& e) {
  peers_.OnUp(e);
  heartbeat_.OnUp(e.peer);
  inputs_.OnPeerUp(e.peer);
  sums_.OnPeerUp(e.peer);
}

void Core::On(const event::PeerDown& e) {
  const bool was_up = peers_.Up(e.peer);
  peers_.OnDown(e);
  heartbeat_.OnDown(e.peer);
  if (!was_up) return;
  for (const Want& want : fetcher_.OnPeerDown(e.peer)) {
    inputs_.OnDropped(want);
    sums_.OnDropped(want);
  }
  own_.OnPeerDown(e.peer);
  donor_.OnPeerDown(e.peer);
  catch_up_.OnPeerDown(e.peer);
  // Also before the start: it may have been reported as reached.
  if (!peers_.Left(e.peer)) context_.Tell(Unreachable{e.peer, e.reason});
}

void Core::On(const event::PeerMapped& e) {
  peers_.OnMapped(e);
  inputs_.OnPeerUp(e.peer);
}

void Core::On(const event::FromPeer& e) {
  if (!peers_.Up(e.peer)) return;
  heartbeat_.OnHeard(e.peer);
  const auto decoded = DecodePeerMessage(e.bytes);
  Status status =
      !decoded.ok()
          ? Status(decoded.error())
          : std::visit([&](const auto& message) { return On(e.peer, message, decoded->floats); },
                       decoded->message);
  if (!status) context_.Emit(action::ClosePeer{e.peer, status.error().message});
}

Status Core::On(const MemberId& peer, const MapState& m, std::span<const std::byte>) {
  peers_.OnMapState(peer, m);
  // What was waited for through the transport may be read in place now.
  inputs_.OnPeerUp(peer);
  return {};
}

Status Core::On(const MemberId& peer, const StateReady& m, std::span<const std::byte>) {
  bool gone = false;
  Status status = catch_up_.OnStateReady(peer, m, gone);
  if (gone) {
    context_.Tell(Behind{next_, false, fmt::format("{} has no state to give", Name(peer)),
                         catch_up_.order()});
  }
  return status;
}

void Core::On(const event::FetchDone& e) {
  const Fetcher::Done done = fetcher_.OnFetchDone(e);
  if (done.status == FetchStatus::kOk || done.status == FetchStatus::kGone) {
    heartbeat_.OnHeard(done.want.peer);
  }
  switch (static_cast<PieceKind>(done.want.piece.kind)) {
    case PieceKind::kContribution:
      inputs_.OnFetchDone(done);
      break;
    case PieceKind::kSum:
      sums_.OnFetchDone(done);
      break;
    case PieceKind::kState:
      catch_up_.OnFetchDone(done);
      break;
  }
}

void Core::On(const event::OpDone& e) {
  if (digest_op_ == e.op) {
    context_.Tell(Final{RoundId(next_.value == 0 ? 0 : next_.value - 1), e.text});
    End({finish_->reason, false, false, e.text, ""});
    return;
  }
  if (side_.OnOpDone(e) || own_.OnOpDone(e)) return;
  buffers_.EndOp(e.op);
  if (applying_ && applying_->op == e.op) {
    OnApplied(e);
  } else if (!sums_.OnOpDone(e)) {
    // Neither of the two: a copy or a reduction that is wanted no longer.
    donor_.OnOpDone(e);
  }
}

void Core::On(const event::LeaveAsked& e) {
  End({e.reason, false, true, "", NotFinal()});
  context_.Tell(Leave{e.reason});
}

void Core::On(const event::CoordinatorGone& e) {
  if (!finish_) return End({e.reason, true, false, "", NotFinal()});
  // Its last word was heard: it need not be there for the rest.
  if (digest_op_) End({finish_->reason, false, false, "", ""});
}

void Core::On(const Refuse& m) {
  End({fmt::format("the coordinator refuses this worker: {}", m.reason), true, false, "",
       NotFinal()});
}

void Core::On(const event::TimerDue& e) {
  timer_ = kNever;
  heartbeat_.OnTimer(e);
  peers_.OnTimer();
  own_.OnTimer();
}

void Core::On(const Form& m) {
  peers_.OnForm(m);
  if (peers_.known() > 2 * kMaxMembers || peers_.forming() > kMaxMembers) {
    Break("it names more workers than a job can have");
  }
}

void Core::On(const MemberLeft& m) { peers_.OnLeft(m); }

void Core::On(const Evaluate& m) {
  if (!side_.OnEvaluate(m)) Break("it lets evaluate more and more, without waiting for results");
}

void Core::On(const Start& m) {
  if (standing_ != Standing::kNotStarted) {
    // Again, ahead of CatchUp or because the round is planned anew: the plan is what matters.
    if (m.source != StateSource::kPeers) return;
    plan_ = m.plan;
    const auto known = maps_.PlanOf(m.plan.round);
    if (known && *known < m.plan.attempt) PlanAnew(m.plan);
    return;
  }
  expected_ = next_ = m.plan.round;
  switch (m.source) {
    case StateSource::kSeed:
      context_.Emit(action::InitializeState{});
      standing_ = Standing::kLevel;
      break;
    case StateSource::kCheckpoint:
      standing_ = Standing::kLevel;
      break;
    case StateSource::kPeers:
      standing_ = Standing::kBehind;
      break;
  }
  Adopt(m.plan);
}

void Core::On(const Commit& m) {
  if (Follows() && m.round < next()) {
    if (!Replaces(m)) {
      // What was copied may have been ahead of this commit; its plan is not.
      const bool void_by_now = newest_ && newest_->round == m.round && m.attempt < newest_->attempt;
      const bool newer = m.next && m.next->round == next() && !void_by_now &&
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

void Core::On(const NewOwners& m) {
  if (sums_.Committed(m.round)) return;
  const OwnerMap* known = maps_.Find(m.round);
  if (known == nullptr || known->version >= m.owners.version) return;
  maps_.Set(m.round, m.owners);
  inputs_.OnMapChanged();
}

void Core::On(const TakeSums& m) {
  if (Follows() && m.commit.round < next() && (!Replaces(m.commit) || !GoBackFor(m.commit))) return;
  if (!sums_.Committed(m.commit.round) || sums_.Find(m.commit.round)->attempt != m.commit.attempt) {
    if (!Follow(m.commit)) return;
  }
  sums_.OnTakeSums(m);
}

void Core::On(const CatchUp& m) {
  if (standing_ == Standing::kNotStarted) return;
  standing_ = Standing::kCatching;
  if (applying_) applying_->abandoned = true;
  own_.StopAll();
  sums_.DropFrom(m.open_round);
  if (plan_ && plan_->round == m.open_round) {
    // What was planned for this worker in the open round has been given away; it may get other
    // units once it is level.
    plan_->assignments.clear();
    Adopt(*plan_);
  }
  newest_.reset();
  expected_ = m.open_round;
  catch_up_.Begin(m);
}

void Core::On(const StateChunk& m) {
  if (standing_ != Standing::kNotStarted) return;
  context_.Emit(action::StoreState{m.tensor, m.offset, m.bytes});
  // Behind the store: the coordinator sends on as this worker stores.
  checkpoint_bytes_ += m.bytes.size();
  context_.Tell(CheckpointTaken{checkpoint_bytes_});
}

void Core::On(const Finish& m) {
  finish_ = m;
  finish_until_ = context_.now + context_.config.finish_timeout;
  own_.StopAll();
}

void Core::On(const Ping& m) {
  context_.Tell(Pong{m.sequence, m.sent_ns, context_.now.time_since_epoch().count()});
}

}  // namespace lockstep::worker
