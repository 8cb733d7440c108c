// The worker as a value: takes each event to the parts that it concerns, then does what the event
// has made possible.
//
// In: events (step_io.h). Out: actions. Each part decides what it can decide alone. own_work.h
// decides what is computed, inputs.h which contributions are fetched, and sums.h how sums are made
// and taken. In the same way updates.h decides how they get into the parameters, and peers.h who
// is reached. The core decides what takes more than one of them:
// - which commit is followed, and which one puts this worker behind;
// - when the next round's work may begin;
// - what the parameters lack of the job's last ones, at its end (ending.h).
//
// The state of a round stands in live_rounds.h, and dies there with the round. The parts are not
// one object for each round, because contributions and staging buffers outlive or change their
// round where work is carried over. They would move from object to object by hand (live_rounds.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/core/checkpoint_upload.h"
#include "worker/core/cost_report.h"
#include "worker/core/ending.h"
#include "worker/core/epoch_ends.h"
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
  // Each event and message goes to the parts that it concerns, or to a handler below.
  void Dispatch(const Event& event);
  void Dispatch(const msg::ToWorker& message);
  Status Dispatch(const MemberId& peer, const DecodedPeerMessage& decoded);

  void OnCoordinatorMessage(const event::FromCoordinator& e);
  void OnPeerUp(const event::PeerUp& e);
  void OnPeerDown(const event::PeerDown& e);
  void OnPeerMapped(const event::PeerMapped& e);
  void OnPeerMessage(const event::FromPeer& e);
  void OnFetchDone(const event::FetchDone& e);
  void OnOpDone(const event::OpDone& e);
  void OnCoordinatorGone(const event::CoordinatorGone& e);
  void OnTimerDue(const event::TimerDue& e);

  void OnForm(const msg::Form& m);
  void OnStart(const msg::Start& m);
  void OnCommit(const msg::Commit& m);
  void OnNewOwners(const msg::NewOwners& m);
  void OnTakeSums(const msg::TakeSums& m);
  void OnDecide(const msg::Decide& m);
  void OnCatchUp(const msg::CatchUp& m);
  void OnEvaluate(const msg::Evaluate& m);
  void OnStateChunk(const msg::StateChunk& m);
  void OnFinish(const msg::Finish& m);
  void OnPing(const msg::Ping& m);

  void OnMapState(const MemberId& peer, const MapState& m);

  // Decisions.
  // False when the commit is none that this worker can follow now: it is of another time, this
  // worker is not among its members, or it is known.
  bool Follow(const msg::Commit& commit);
  // The parameters contain an older attempt at its round than this one.
  bool Replaces(const msg::Commit& commit) const;
  // Catches up anew for such an attempt, or falls behind. True when the commit is to be followed.
  bool GoBackFor(const msg::Commit& commit);
  void Adopt(const Plan& plan);
  // The open round, or the newest one that was committed, is computed again from the beginning.
  void PlanAnew(const Plan& plan);
  void RestartCatchUp(RoundId round);
  // Only the next coordinator knows what the parameters are.
  void OnCoordinatorFound(const event::CoordinatorFound& e);
  void Detach();
  void WriteCheckpointIfAsked(const msg::Commit& commit);
  // The same, and to evaluate, of the job's last state, which an earlier coordinator committed.
  void TakeLastStateIfAsked();
  // Rounds are committed that are not in the parameters, and can be brought there.
  bool Unapplied() const {
    return parameters_.level() && (parameters_.update() || parameters_.next() < rounds_.expected());
  }
  // The parameters are those that the job began with, or this worker has not begun.
  bool HasFirstParameters() const {
    if (!parameters_.started()) return true;
    return parameters_.level() && !parameters_.update() && parameters_.next() == RoundId(0);
  }
  LastState State() const {
    return {Lack(), parameters_.next(), own_.applied(), own_.was_copied()};
  }
  std::string Lack() const;
  // Does what the event has made possible.
  void Proceed();
  // One timer for all parts, for the earliest of theirs.
  void SetTimer();
  void CheckCheapInvariants() const;

  // In the order of use: a later part may use an earlier one, never the other way round. So no part
  // is called in the midst of its own change.
  Context context_;
  ProtocolCheck check_;
  Buffers buffers_;
  Fetcher fetcher_;
  Peers peers_;
  Heartbeat heartbeat_;
  LiveRounds rounds_;
  CostReport cost_report_;
  OwnWork own_;
  Inputs inputs_;
  Sums sums_;
  Evaluation evaluation_;
  CheckpointUpload upload_;
  InitialBroadcast initial_broadcast_;
  Ending ending_;
  EpochEnds epoch_ends_;

  // Invariants, beside those of the parts (CheckCheapInvariants): an update under way that is not
  // abandoned is of round next(), of the attempt that stands. No unit reads the parameters
  // meanwhile.
  Parameters parameters_;
  const std::unique_ptr<Updates> updates_;
  // The last one that was heard of, perhaps not followed: who is about to catch up hears of the
  // open round's plan before it hears from where on.
  std::optional<Plan> plan_;
  std::optional<msg::Commit> last_;     // of whose state something is wanted, once it is here
  bool orphaned_ = false;               // the coordinator is gone, and the next one is looked for
  bool detaching_ = false;              // it is there
  std::uint64_t checkpoint_bytes_ = 0;  // received and stored
  Time timer_ = kNever;
};

}  // namespace lockstep::worker
