// Where each event goes.
#include <algorithm>

#include "worker/machine/core.h"

namespace lockstep::worker {

void Core::On(const event::FromCoordinator& e) {
  std::visit([&](const auto& message) { On(message); }, e.message);
}

void Core::On(const event::PeerUp& e) {
  peers_.OnUp(e);
  inputs_.OnPeerUp(e.peer);
  sums_.OnPeerUp(e.peer);
}

void Core::On(const event::PeerDown& e) {
  const bool was_up = peers_.Up(e.peer);
  peers_.OnDown(e);
  if (!was_up) return;
  for (const Want& want : fetcher_.OnPeerDown(e.peer)) {
    inputs_.OnDropped(want);
    sums_.OnDropped(want);
  }
  own_.OnPeerDown(e.peer);
  donor_.OnPeerDown(e.peer);
  catch_up_.OnPeerDown(e.peer);
  // Also before the start: it may have been reported as reached.
  if (!left_.contains(e.peer)) context_.Tell(Unreachable{e.peer, e.reason});
}

void Core::On(const event::PeerMapped& e) {
  peers_.OnMapped(e);
  inputs_.OnPeerUp(e.peer);
}

void Core::On(const event::FromPeer& e) {
  if (!peers_.Up(e.peer)) return;
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
    context_.Tell(Behind{next_, false, fmt::format("{} has no state to give", Name(peer))});
  }
  return status;
}

void Core::On(const event::FetchDone& e) {
  const Fetcher::Done done = fetcher_.OnFetchDone(e);
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
    context_.Emit(action::Exit{finish_->reason, false});
    exited_ = true;
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
  context_.Tell(Leave{e.reason});
  context_.Emit(action::Exit{e.reason, false});
  exited_ = true;
}

void Core::On(const event::TimerDue&) {
  timer_ = kNever;
  peers_.OnTimer();
  own_.OnTimer();
}

void Core::On(const MemberLeft& m) {
  left_.insert(m.member);
  peers_.OnLeft(m);
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
  if (standing_ == Standing::kLevel && m.round < next_) {
    if (m.round.Next() == expected_ && m.attempt > last_attempt_) {
      // It was catching up when the attempt was fenced, so it was not asked and has promised
      // nothing; what it worked in is not the attempt that counts.
      FallBehind("the attempt that it has was replaced", false);
      return;
    }
    // A donor's state may have been ahead of this commit; its plan is not.
    if (m.next && m.next->round == next_ && (!plan_ || plan_->round < next_)) Adopt(*m.next);
    WriteCheckpointIfAsked(m);
    return;
  }
  if (standing_ == Standing::kCatching && m.round < next() && m.round.Next() == expected_ &&
      m.attempt > last_attempt_) {
    // The attempt that was worked in is not the one that counts.
    RestartCatchUp(m.round);
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
  if (m.commit.round < next() && Follows()) return;
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
  last_applied_.reset();
  expected_ = m.open_round;
  catch_up_.Begin(m);
}

void Core::On(const StateChunk& m) {
  if (standing_ != Standing::kNotStarted) return;
  context_.Emit(action::StoreState{m.tensor, m.offset, m.bytes});
}

void Core::On(const Finish& m) {
  finish_ = m;
  own_.StopAll();
}

void Core::On(const Ping& m) {
  context_.Tell(Pong{m.sequence, m.sent_ns, context_.now.time_since_epoch().count()});
}

}  // namespace lockstep::worker
