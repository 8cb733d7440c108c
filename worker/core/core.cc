// What the parts cannot decide alone.
#include "worker/core/core.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

Core::Core(MachineConfig config, Layout layout)
    : context_(std::move(config), std::move(layout)),
      check_(context_.config, context_.layout),
      buffers_(context_),
      fetcher_(context_, buffers_),
      peers_(context_),
      heartbeat_(context_),
      maps_(context_),
      own_(context_, buffers_, peers_, maps_),
      inputs_(context_, buffers_, fetcher_, peers_, maps_),
      sums_(context_, buffers_, fetcher_, peers_, inputs_, own_),
      catch_up_(context_, buffers_, fetcher_, peers_),
      donor_(context_, buffers_),
      side_(context_) {}

Actions Core::Step(Time now, const Event& event) {
  LOCKSTEP_CHECK(now >= context_.now, "time went back");
  context_.now = now;
  context_.actions.clear();
  if (!exited_) {
    std::visit([&](const auto& e) { On(e); }, event);
    if (!exited_) Settle();
  }
  for (const Action& action : context_.actions) {
    if (const auto* said = std::get_if<action::ToPeer>(&action)) heartbeat_.OnSaid(said->peer);
  }
  return std::move(context_.actions);
}

// The order matters: first what frees buffers, then what takes them.
void Core::Settle() {
  own_.Update();
  inputs_.Update();
  sums_.Update();
  LookForLoss();
  if (standing_ == Standing::kCatching) WorkInWhileCatchingUp();
  ApplyIfPossible();
  if (standing_ == Standing::kLevel && !applying_ && !finish_) {
    own_.BeginIfPossible(next_, sums_.Committed(next_));
  }
  if (!applying_) {
    donor_.Update(standing_ == Standing::kLevel ? std::optional(next_) : std::nullopt,
                  newest_ ? newest_->attempt : Attempt());
  }
  catch_up_.Update(!applying_ && !own_.UsesParameters() && !side_.ReadsState());
  side_.Update(!own_.Computing());
  fetcher_.Pump();
  if (!buffers_.Operating()) {
    peers_.ForgetGone([&](const MemberId& peer) { return sums_.Reads(peer); });
  }
  FinishIfPossible();
  SetTimer();
}

bool Core::Follow(const Commit& commit) {
  const auto& members = commit.members;
  if (!Follows() || commit.term != context_.config.term || commit.round < next() ||
      std::find(members.begin(), members.end(), context_.config.self) == members.end()) {
    return false;
  }
  if (commit.round > expected_) {
    FallBehind(fmt::format("the commit of round {} did not come", expected_));
    return false;
  }
  if (applying_ && !applying_->abandoned && applying_->round == commit.round &&
      applying_->attempt != commit.attempt) {
    FallBehind("another attempt than the one being applied was committed", false);
    return false;
  }
  if (!sums_.OnCommit(commit)) return false;
  expected_ = std::max(expected_, commit.round.Next());
  closed_before_ = std::max(closed_before_, commit.round);
  const bool carries = commit.next && commit.next->carries;
  if (carries) {
    own_.CarryOver(commit);
  } else {
    own_.Stop(commit.round.Next());  // what an attempt before had carried on is void as well
  }
  maps_.Set(commit.round, commit.owners);
  inputs_.OnCommit(commit, carries);
  // The round before is closed: no attempt at it will be made.
  own_.ReleaseBefore(commit.round);
  inputs_.DropBefore(commit.round);
  maps_.DropBefore(commit.round);
  peers_.OnCommitted(commit.round);
  DropOldSums();
  if (commit.next) Adopt(*commit.next);
  return true;
}

bool Core::Replaces(const Commit& commit) const {
  if (standing_ == Standing::kCatching) {
    return catch_up_.ContainsOlder(commit.round, commit.attempt);
  }
  return newest_ && newest_->round == commit.round && newest_->attempt < commit.attempt;
}

bool Core::GoBackFor(const Commit& commit) {
  if (standing_ == Standing::kCatching) {
    RestartCatchUp(commit.round);
    return true;
  }
  // It was catching up when the attempt was fenced, so it was not asked and has promised nothing;
  // what it worked in, or copied, is not the attempt that counts.
  FallBehind("the attempt that it has was replaced", false);
  return false;
}

void Core::Adopt(const Plan& plan) {
  plan_ = plan;
  maps_.Set(plan.round, plan.owners);
  maps_.SetPlan(plan.round, plan.attempt);
  own_.OnPlan(plan);
  inputs_.OnMapChanged();
}

void Core::PlanAnew(const Plan& plan) {
  const RoundId round = plan.round;
  if (sums_.Committed(round)) {
    if (round.Next() != expected_) return;
    const bool worked_in = round < next() || (applying_ && applying_->round == round);
    if (standing_ == Standing::kCatching && worked_in) {
      RestartCatchUp(round);
    } else if (standing_ == Standing::kLevel && worked_in) {
      // It was catching up when the others were asked, and has promised nothing.
      return FallBehind(fmt::format("round {}, which it has, is computed again", round), false);
    }
    sums_.Drop(round);
    expected_ = round;
  }
  own_.Forget(round.Next());  // what was carried on is computed again, too
  inputs_.OnReopened(round);
  Adopt(plan);
}

void Core::RestartCatchUp(RoundId round) {
  if (applying_) applying_->abandoned = true;
  sums_.DropFrom(round);
  expected_ = round;
  catch_up_.Restart(round);
}

void Core::WriteCheckpointIfAsked(const Commit& commit) {
  if (standing_ != Standing::kLevel || !newest_ || newest_->round != commit.round ||
      newest_->attempt != commit.attempt || applying_ || !commit.checkpoint_writer ||
      newest_->writer == commit.checkpoint_writer) {
    return;
  }
  newest_->writer = commit.checkpoint_writer;
  side_.OnCheckpoint(commit);
}

void Core::FallBehind(const std::string& reason, bool clean) {
  standing_ = Standing::kBehind;
  behind_why_ = reason;
  newest_.reset();
  catch_up_.End();
  own_.StopAll();
  context_.Log(fmt::format("behind at round {}: {}", next_, reason));
  if (applying_) applying_->abandoned = true;
  const bool has_any = clean && next_.value > 0;
  context_.Tell(Behind{RoundId(has_any ? next_.value - 1 : 0), has_any, reason, catch_up_.order()});
}

void Core::LookForLoss() {
  if (standing_ != Standing::kLevel || applying_) return;
  if (!Closed(next_) && !sums_.HolderFailed(next_)) return;
  if (const auto reason = sums_.Lost(next_)) {
    FallBehind(fmt::format("round {}: {}", next_, *reason));
  } else if (expected_.value - next_.value > kSumBuffers) {
    FallBehind(fmt::format("{} rounds wait to be applied", expected_.value - next_.value));
  }
}

void Core::ApplyIfPossible() {
  if (standing_ != Standing::kLevel || applying_ || own_.UsesParameters() ||
      side_.WaitsForSnapshot() || !sums_.MayApply(next_)) {
    return;
  }
  action::Apply apply = sums_.Apply(next_, [](std::uint32_t) { return true; });
  applying_ = Applying{apply.op, next_, apply.attempt};
  context_.Emit(std::move(apply));
}

void Core::WorkInWhileCatchingUp() {
  while (!applying_) {
    // Of rounds before the last one there is no other attempt.
    const Commit* last = expected_.value > 0 ? sums_.Find(RoundId(expected_.value - 1)) : nullptr;
    if (last != nullptr) catch_up_.LoseOlder(last->round, last->attempt);
    if (const auto level = catch_up_.LevelAt()) {
      catch_up_.End();
      standing_ = Standing::kLevel;
      next_ = level->next;
      newest_ = Newest{RoundId(next_.value - 1), level->attempt};
      expected_ = std::max(expected_, next_);
      context_.Tell(Level{RoundId(next_.value - 1), catch_up_.order()});
      DropOldSums();
      return;
    }
    const RoundId round = catch_up_.next();
    if (round >= expected_) return;
    // No more rounds can be kept waiting than there are buffers for.
    const bool pressed = expected_.value - round.value >= kSumBuffers;
    if (catch_up_.NeededByCopy(round) && !pressed) return;
    if (!catch_up_.AnyAt(round)) {
      catch_up_.Advance(Attempt());
    } else if (sums_.MayApply(round)) {
      if (own_.UsesParameters()) return;
      action::Apply apply =
          sums_.Apply(round, [&](std::uint32_t bucket) { return catch_up_.At(bucket, round); });
      catch_up_.BeginApply(round);
      applying_ = Applying{apply.op, round, apply.attempt};
      context_.Emit(std::move(apply));
    } else if (Closed(round) && (pressed || sums_.Lost(round))) {
      catch_up_.Lose(round);
    } else {
      return;
    }
    DropOldSums();
  }
}

void Core::OnApplied(const event::OpDone& done) {
  const RoundId round = applying_->round;
  const Attempt attempt = applying_->attempt;
  const bool abandoned = applying_->abandoned;
  applying_.reset();
  if (done.torn) sums_.OnTornApply(round);
  if (abandoned) return;
  if (standing_ == Standing::kCatching) {
    if (done.torn) catch_up_.Lose(round);
    catch_up_.Advance(attempt);
    DropOldSums();
    return;
  }
  if (done.torn) {
    FallBehind(fmt::format("round {}: a mapped sum changed while it was applied", round), false);
    return;
  }
  const Commit* commit = sums_.Find(round);
  LOCKSTEP_CHECK(commit != nullptr, "round {} was applied without a commit", round);
  next_ = round.Next();
  newest_ = Newest{round, attempt, commit->checkpoint_writer};
  context_.Tell(Applied{round, attempt,
                        static_cast<std::uint32_t>(round.value % context_.layout.bucket_count()),
                        done.digest, context_.now.time_since_epoch().count()});
  side_.OnApplied(*commit);
  DropOldSums();
}

void Core::DropOldSums() {
  // Closed rounds keep their sums for one round more.
  const std::uint64_t kept = expected_.value < 3 ? 0 : expected_.value - 3;
  sums_.DropApplied(next(), RoundId(kept));
}

void Core::FinishIfPossible() {
  if (!finish_ || digest_op_) return;
  if (standing_ == Standing::kLevel && !finish_->failed && (applying_ || next_ < expected_)) {
    // All that was committed is applied first; what cannot be had puts this worker behind. The unit
    // under way may take its time.
    if (own_.UsesParameters()) finish_until_ = context_.now + context_.config.finish_timeout;
    if (context_.now < finish_until_) return;
  }
  if (std::string why = NotFinal(); !why.empty()) {
    return End({finish_->reason, finish_->failed, false, "", std::move(why)});
  }
  digest_op_ = context_.NewOp();
  context_.Emit(action::DigestState{*digest_op_});
}

std::string Core::NotFinal() const {
  if (finish_ && finish_->failed) return "the job failed";
  switch (standing_) {
    case Standing::kNotStarted:
      return "it had not begun";
    case Standing::kBehind:
      return fmt::format("it was behind since before round {}: {}", next_, behind_why_);
    case Standing::kCatching:
      return fmt::format("it was catching up: {} of {} buckets were copied",
                         catch_up_.buckets_copied(), context_.layout.bucket_count());
    case Standing::kLevel:
      break;
  }
  if (applying_) return fmt::format("its update with round {} had not ended", applying_->round);
  if (next_ < expected_) return "it had not got " + sums_.Missing(next_);
  return finish_ ? "" : fmt::format("it left before round {}", next_);
}

void Core::End(action::Exit exit) {
  context_.Emit(std::move(exit));
  exited_ = true;
}

void Core::Break(const std::string& what) {
  const std::string reason = fmt::format("the coordinator broke the protocol: {}", what);
  // First, so that the end of the connection that follows on Leave is not taken for the reason.
  End({reason, true, false, "", reason});
  context_.Tell(Leave{reason});
}

void Core::SetTimer() {
  const Time finish = finish_ && !digest_op_ ? finish_until_ : kNever;
  const Time next =
      std::min({peers_.next_timer(), own_.next_timer(), heartbeat_.next_timer(), finish});
  // A timer that comes too early is set again then.
  if (next >= timer_) return;
  timer_ = next;
  context_.Emit(action::SetTimer{next});
}

Serve Core::OnPieceAsked(const MemberId& peer, const PieceName& piece) {
  heartbeat_.OnHeard(peer);
  if (piece.bytes == 0 || piece.bytes % sizeof(float) != 0 || piece.offset % sizeof(float) != 0) {
    return {};
  }
  std::optional<BufferRange> from;
  switch (static_cast<PieceKind>(piece.kind)) {
    case PieceKind::kContribution:
      from = own_.FindPiece(piece);
      break;
    case PieceKind::kSum:
      from = sums_.FindPiece(piece);
      break;
    case PieceKind::kState:
      from = donor_.FindPiece(peer, piece);
      break;
  }
  if (!from) return {};
  return {true, *from, buffers_.Serve(peer, from->buffer)};
}

StepMachine::View Core::view() const {
  StepMachine::View view;
  view.started = standing_ != Standing::kNotStarted;
  view.level = standing_ == Standing::kLevel;
  view.next = next();
  view.computing = own_.Computing();
  view.fetches = fetcher_.under_way();
  view.queued = fetcher_.queued();
  view.pins = buffers_.pins();
  view.peers = peers_.known();
  view.exited = exited_;
  if (applying_) {
    view.waiting_for = fmt::format("the update of round {}", applying_->round);
  } else if (view.computing) {
    view.waiting_for = "its units";
  } else if (standing_ == Standing::kBehind) {
    view.waiting_for = "the order to catch up";
  } else if (sums_.MayApply(next())) {
    view.waiting_for = "its compute thread";
  } else if (view.started) {
    view.waiting_for = sums_.Missing(next());
  }
  return view;
}

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
StepMachine::View StepMachine::view() const { return impl_->view(); }

}  // namespace lockstep::worker
