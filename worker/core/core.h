// The worker as a value: takes each event to the parts that it concerns, then does what the event
// has made possible.
//
// In: events (step_io.h). Out: actions. Each part decides what it can decide alone: what is
// computed (own_work.h), which contributions are fetched (inputs.h), how sums are made and taken
// (sums.h), how they get into the parameters (updates.h), who is reached (peers.h). What takes more
// than one of them is decided here:
// - which commit is followed, and which one puts this worker behind;
// - when the next round's work may begin;
// - what the parameters lack of the job's last ones, at its end (ending.h).
//
// What a round's state is stands in live_rounds.h, and dies there with the round. Why the parts are
// not one object for each round: contributions and staging buffers outlive or change their round
// where work is carried over, so they would move from object to object by hand (live_rounds.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/core/checkpoint_upload.h"
#include "worker/core/ending.h"
#include "worker/core/evaluation.h"
#include "worker/core/heartbeat.h"
#include "worker/core/initial_broadcast.h"
#include "worker/core/inputs.h"
#include "worker/core/live_rounds.h"
#include "worker/core/own_work.h"
#include "worker/core/parameters.h"
#include "worker/core/peers.h"
#include "worker/core/protocol_check.h"
#include "worker/core/sums.h"
#include "worker/core/updates.h"

namespace lockstep::worker {

class Core {
 public:
  Core(MachineConfig config, Layout layout);

  Actions Step(Time now, const Event& event);
  Serve OnPieceAsked(const MemberId& peer, const PieceName& piece);
  UnitQueue& queue() { return own_.queue(); }
  const Layout& layout() const { return context_.layout; }
  StepMachine::View view() const;
  // All of them. The cheap ones hold at the end of each Step, also in release.
  void CheckInvariants() const;

 private:
  // One for each kind of event.
  void On(const event::FromCoordinator& e);
  void On(const event::PeerUp& e);
  void On(const event::PeerDown& e);
  void On(const event::ConnectFailed& e) { peers_.OnConnectFailed(e); }
  void On(const event::PeerMapped& e);
  void On(const event::FromPeer& e);
  void On(const event::FetchDone& e);
  void On(const event::Served& e) { own_.OnServed(buffers_.Unserve(e.cookie)); }
  void On(const event::RunDone& e) { own_.OnRunDone(e); }
  void On(const event::BucketsFinal& e) { own_.OnBucketsFinal(e); }
  void On(const event::PartSealed& e) { own_.OnPartSealed(e); }
  void On(const event::ChunkEvaluated& e) { evaluation_.OnChunkEvaluated(e); }
  void On(const event::OpDone& e);
  void On(const event::ChunkUploaded&) { upload_.OnChunkUploaded(); }
  void On(const event::ChunkGiven&) { initial_broadcast_.OnChunkGiven(); }
  void On(const event::LeaveAsked& e) { ending_.OnLeaveAsked(e.reason, State()); }
  void On(const event::CoordinatorGone& e);
  void On(const event::CoordinatorFound&) { detaching_ = orphaned_; }
  void On(const event::TimerDue& e);

  // Messages of the coordinator.
  void On(const msg::Welcome&) {}  // see ProtocolCheck
  void On(const msg::Refuse& m) { ending_.OnRefused(m, State()); }
  void On(const msg::Form& m);
  void On(const msg::MemberLeft& m) { peers_.OnLeft(m); }
  void On(const msg::Start& m);
  void On(const msg::Commit& m);
  void On(const msg::Revoke& m) { own_.OnRevoke(m); }
  void On(const msg::Assign& m) { own_.OnAssign(m); }
  void On(const msg::FenceRound& m) { own_.OnFence(m); }
  void On(const msg::NewOwners& m);
  void On(const msg::FenceAttempt& m) { sums_.OnFenceAttempt(m); }
  void On(const msg::Hedge& m) { updates_->OnHedge(m); }
  void On(const msg::TakeSums& m);
  void On(const msg::Decide& m);
  void On(const msg::CatchUp& m);
  void On(const msg::Evaluate& m);
  void On(const msg::StateChunk& m);
  void On(const msg::GiveParameters& m) { initial_broadcast_.OnGive(m, parameters_.started()); }
  void On(const msg::Finish& m);
  void On(const msg::SetSlowdown& m) { context_.Emit(action::Slowdown{m.specs}); }
  void On(const msg::AskToLeave& m) { ending_.OnLeaveAsked(m.reason, State()); }
  void On(const msg::Ping& m);

  // Messages of peers.
  Status On(const MemberId& peer, const PartReady& m, std::span<const std::byte> floats) {
    return inputs_.OnPartReady(peer, m, floats);
  }
  Status On(const MemberId& peer, const SumReady& m, std::span<const std::byte> floats) {
    return sums_.OnSumReady(peer, m, floats);
  }
  Status On(const MemberId& peer, const SumWant& m, std::span<const std::byte>) {
    sums_.OnSumWant(peer, m);
    return {};
  }
  Status On(const MemberId& peer, const MapState& m, std::span<const std::byte>);
  Status On(const MemberId& peer, const StateWant& m, std::span<const std::byte>) {
    return updates_->OnStateWant(peer, m);
  }
  Status On(const MemberId& peer, const StateReady& m, std::span<const std::byte>) {
    return updates_->OnStateReady(peer, m);
  }
  Status On(const MemberId& peer, const StateTaken& m, std::span<const std::byte>) {
    return updates_->OnStateTaken(peer, m);
  }
  Status On(const MemberId&, const Alive&, std::span<const std::byte>) { return {}; }
  Status On(const MemberId& peer, const ParametersReady& m, std::span<const std::byte>) {
    return updates_->OnParametersReady(peer, m);
  }

  // Decisions.
  // False when the commit is none that this worker can follow now: it is of another time, this
  // worker is not among its members, or it is known.
  bool Follow(const msg::Commit& commit);
  // The parameters contain an older attempt at its round than this one.
  bool Replaces(const msg::Commit& commit) const;
  // What is done then. True when the commit is to be followed.
  bool GoBackFor(const msg::Commit& commit);
  void Adopt(const Plan& plan);
  // The open round, or the newest one that was committed, is computed again from the beginning.
  void PlanAnew(const Plan& plan);
  void RestartCatchUp(RoundId round);
  // What the parameters are is the next coordinator's to know.
  void Detach();
  void WriteCheckpointIfAsked(const msg::Commit& commit);
  // Rounds are committed that are not in the parameters, and can be brought there.
  bool Unapplied() const {
    return parameters_.level() && (parameters_.update() || parameters_.next() < rounds_.expected());
  }
  // The parameters are those that the job began with, or this worker has not begun.
  bool HasFirstParameters() const {
    if (!parameters_.started()) return true;
    return parameters_.level() && !parameters_.update() && parameters_.next() == RoundId(0);
  }
  LastState State() const { return {Lack(), parameters_.next()}; }
  std::string Lack() const;
  // What the event has made possible.
  void Proceed();
  // One timer for all parts, for the earliest of theirs.
  void SetTimer();
  void CheckCheapInvariants() const;

  // In the order of use: who comes later may use who comes before, never the other way round, so
  // that no part is called in the midst of its own change.
  Context context_;
  ProtocolCheck check_;
  Buffers buffers_;
  Fetcher fetcher_;
  Peers peers_;
  Heartbeat heartbeat_;
  LiveRounds rounds_;
  OwnWork own_;
  Inputs inputs_;
  Sums sums_;
  Evaluation evaluation_;
  CheckpointUpload upload_;
  InitialBroadcast initial_broadcast_;
  Ending ending_;

  // Invariants, beside those of the parts (CheckCheapInvariants): an update under way that is not
  // abandoned is of round next(), of the attempt that stands, and no unit reads the parameters
  // meanwhile.
  Parameters parameters_;
  const std::unique_ptr<Updates> updates_;
  // The last one that was heard of, perhaps not followed: who is about to catch up hears of the
  // open round's plan before it hears from where on.
  std::optional<Plan> plan_;
  bool orphaned_ = false;               // the coordinator is gone, and the next one is looked for
  bool detaching_ = false;              // it is there
  std::uint64_t checkpoint_bytes_ = 0;  // received and stored
  Time timer_ = kNever;
};

}  // namespace lockstep::worker
