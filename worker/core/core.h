// The worker as a value: takes each event to the parts that it concerns, then does what the event
// has made possible.
//
// In: events (step_io.h). Out: actions. Each part decides what it can decide alone: what is
// computed (own_work.h), which contributions are fetched (inputs.h), how sums are made and taken
// (sums.h), who is reached (peers.h). What takes more than one of them is decided here:
// - which commit is followed, and when this worker is behind;
// - which round is applied next: all shards of one attempt are held, and no unit reads the
//   parameters (I1);
// - when the next round's work may begin;
// - when all of that has ended, and whether the parameters are the job's last ones.
//
// What a round's state is stands in live_rounds.h, and dies there with the round. Why the parts are
// not one object for each round: contributions and staging buffers outlive or change their round
// where work is carried over, so they would move from object to object by hand (live_rounds.h).
#pragma once

#include <optional>
#include <string>

#include "worker/core/catch_up.h"
#include "worker/core/checkpoint_upload.h"
#include "worker/core/donor.h"
#include "worker/core/evaluation.h"
#include "worker/core/heartbeat.h"
#include "worker/core/inputs.h"
#include "worker/core/live_rounds.h"
#include "worker/core/own_work.h"
#include "worker/core/peers.h"
#include "worker/core/protocol_check.h"
#include "worker/core/sums.h"

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
  // What the parameters are worth.
  enum class Standing : std::uint8_t {
    // Nothing yet. Peers are reached, a checkpoint is stored. Start ends it: with the seed's state
    // or
    // a checkpoint's this worker is level, without one it is behind.
    kNotStarted,
    // They are those before round next_, bit for bit as everywhere (I1). Only a worker that is
    // level
    // computes, applies in order, gives its state to joiners and takes part in checkpoints.
    kLevel,
    // They are doubtful or too old, and the coordinator was told. This worker still serves what it
    // has, its contributions and sums, and follows no commit. CatchUp ends it.
    kBehind,
    // They are being copied from a donor, bucket by bucket. Commits are followed, because their
    // sums
    // are what the copies lack. It ends as level, or, where sums were missed, as behind again.
    kCatching,
  };
  // The update under way. While there is one, nothing else reads or writes the state.
  struct Applying {
    std::uint64_t op = 0;
    RoundId round;
    Attempt attempt;
    bool abandoned = false;  // the state is doubtful since: it will be copied anew
  };
  // The last round in the parameters, however it came there.
  struct Newest {
    RoundId round;
    Attempt attempt;
    std::optional<MemberId> writer = std::nullopt;  // that was asked last for its checkpoint
  };

  // One for each kind of event.
  void On(const event::FromCoordinator& e);
  void On(const event::PeerUp& e);
  void On(const event::PeerDown& e);
  void On(const event::ConnectFailed& e) { peers_.OnConnectFailed(e); }
  void On(const event::PeerMapped& e);
  void On(const event::FromPeer& e);
  void On(const event::FetchDone& e);
  void On(const event::Served& e) { buffers_.Unserve(e.cookie); }
  void On(const event::RunDone& e) { own_.OnRunDone(e); }
  void On(const event::BucketsFinal& e) { own_.OnBucketsFinal(e); }
  void On(const event::PartSealed& e) { own_.OnPartSealed(e); }
  void On(const event::ChunkEvaluated& e) { evaluation_.OnChunkEvaluated(e); }
  void On(const event::OpDone& e);
  void On(const event::ChunkUploaded&) { upload_.OnChunkUploaded(); }
  void On(const event::LeaveAsked& e);
  void On(const event::CoordinatorGone& e);
  void On(const event::TimerDue& e);

  // Messages of the coordinator.
  void On(const msg::Welcome&) {}  // see ProtocolCheck
  void On(const msg::Refuse& m);
  void On(const msg::Form& m);
  void On(const msg::MemberLeft& m);
  void On(const msg::Start& m);
  void On(const msg::Commit& m);
  void On(const msg::Revoke& m) { own_.OnRevoke(m); }
  void On(const msg::Assign& m) { own_.OnAssign(m); }
  void On(const msg::FenceRound& m) { own_.OnFence(m); }
  void On(const msg::NewOwners& m);
  void On(const msg::FenceAttempt& m) { sums_.OnFenceAttempt(m); }
  void On(const msg::Hedge& m);
  void On(const msg::TakeSums& m);
  void On(const msg::CatchUp& m);
  void On(const msg::Evaluate& m);
  void On(const msg::StateChunk& m);
  void On(const msg::Finish& m);
  void On(const msg::SetSlowdown& m) { context_.Emit(action::Slowdown{m.specs}); }
  void On(const msg::AskToLeave& m) { On(event::LeaveAsked{m.reason}); }
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
    return donor_.OnStateWant(peer, m);
  }
  Status On(const MemberId& peer, const StateReady& m, std::span<const std::byte>);
  Status On(const MemberId& peer, const StateTaken& m, std::span<const std::byte>) {
    donor_.OnStateTaken(peer, m);
    return {};
  }
  Status On(const MemberId&, const Alive&, std::span<const std::byte>) { return {}; }

  // Decisions.
  // No other attempt at the round will be made: the commit of the round after it says so, or, at
  // the job's end, that the coordinator has finished. The newest one that was committed may be
  // tried again, or computed again; those before it stay closed then.
  bool Closed(RoundId round) const {
    const RoundId expected = rounds_.expected();
    return round.Next() < expected || round < rounds_.first_not_closed() ||
           (finish_ && round < expected);
  }
  // Commits are taken note of.
  bool Follows() const { return standing_ == Standing::kLevel || standing_ == Standing::kCatching; }
  // The first round that is not in the parameters, or not in all of the copies.
  RoundId next() const { return standing_ == Standing::kCatching ? catch_up_.next() : next_; }
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
  void WriteCheckpointIfAsked(const msg::Commit& commit);
  // `clean`: the parameters are those before round next_, so a donor need not be asked for what
  // they contain already.
  void FallBehind(const std::string& reason, bool clean = true);
  // Whether something that the next round needs cannot be had by anybody's doing any more.
  void LookForLoss();
  void ApplyIfPossible();
  void Apply(const msg::Commit& commit);
  void OnApplied(const event::OpDone& done);
  void WorkInWhileCatchingUp();
  // After Finish: ends once all that was committed is applied, or cannot be in time.
  void FinishIfPossible();
  // The coordinator did what cannot be: this worker leaves, with the reason in its last line.
  void Break(const std::string& what);
  void End(action::Exit exit);
  // Why the parameters are not the job's last ones; empty: they are.
  std::string NotFinal() const;
  // Drops the rounds that are over, and all that is theirs.
  void Prune();
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
  CatchUpJob catch_up_;
  Donor donor_;
  Evaluation evaluation_;
  CheckpointUpload upload_;

  // Invariants, beside those of the parts (CheckCheapInvariants): newest_ is known only to a worker
  // that is level, and is the round before next_; an update under way that is not abandoned is of
  // round next(), of the attempt that stands, and no unit reads the parameters meanwhile.
  Standing standing_ = Standing::kNotStarted;
  RoundId next_;  // first round that is not applied
  // The last one that was heard of, perhaps not followed: who is about to catch up hears of the
  // open round's plan before it hears from where on.
  std::optional<Plan> plan_;
  std::optional<Newest> newest_;  // while level; none: those of the start
  std::string behind_why_;
  std::optional<Applying> applying_;
  std::optional<msg::Finish> finish_;
  Time finish_until_ = kNever;  // the last sums are waited for
  std::optional<std::uint64_t> digest_op_;
  std::uint64_t checkpoint_bytes_ = 0;  // received and stored
  Time timer_ = kNever;
  bool exited_ = false;
};

}  // namespace lockstep::worker
