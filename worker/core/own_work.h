// The work of this worker: the units given to it, the compute thread's work on the open round, and
// the contributions that come out of it. They stay until their round is closed.
//
// In: plans, and orders to give units back, take more, or forget a round; what the compute thread
// reports. Out: work for the compute thread; Progress, Sealed and Revoked to the coordinator;
// PartReady to the owners. It decides when work begins, which round it counts for, and when a
// contribution's buffer is free again.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "worker/core/buffer_leases.h"
#include "worker/core/cost_report.h"
#include "worker/core/live_rounds.h"
#include "worker/core/peers.h"
#include "worker/core/unit_queue.h"

namespace lockstep::worker {

// The life of a unit here: it is given with a plan (GivenUnits of its Round), or assigned later. It
// is put into the queue when work begins, and taken by the compute thread. Then it is done, and in
// the part that was open when it was taken. On its way it can be given back until it is taken, and
// made void until its part is sealed. It is in one of these places at a time, so it counts at most
// once (I2).
//
// The life of a part: it is open while units are added, and sealed with the last one of them. It is
// told to the coordinator and announced to the owners, and kept until its round is applied here, or
// closed. Two parts are all that a worker has in a round: whatever is given to it after the first
// seal goes into the second.
//
// Threads: all of this runs on the data thread; the compute thread touches the queue alone, and the
// buffers that StartWork names.
class OwnWork {
 public:
  OwnWork(Context& context, Buffers& buffers, const Peers& peers, LiveRounds& rounds,
          const CostReport& costs)
      : context_(context),
        buffers_(buffers),
        peers_(peers),
        rounds_(rounds),
        costs_(costs),
        queue_(context.config.queue_capacity, context.config.run_bound,
               context.config.most_run_cost) {}

  // The units of a round that is not begun yet; what was computed for an earlier plan of it is
  // void.
  void OnPlan(const Plan& plan);
  void OnRevoke(const msg::Revoke& revoke);
  void OnAssign(const msg::Assign& assign);
  // All that was computed for the round is void. Says so; units of it that are given to this worker
  // after that are a new beginning, in the parts that are not used up.
  void OnFence(const msg::FenceRound& fence);
  // The round is committed: of its work only what is sealed counts, and nothing of the rounds
  // before it is needed. Unless the next round carries its work on, and this worker is in no part
  // of the commit: then what it has belongs to the next round.
  void OnCommit(const msg::Commit& commit);
  // The round is in the parameters, out of all sums of an attempt. While this worker lives it is
  // the holder of that attempt, and no other one is made; if it goes, so do its parts, which no
  // other attempt takes then. So nobody will ask for them again. `parts`: of the attempt.
  void OnApplied(RoundId round, std::span<const CommittedPart> parts);
  // The parameters are copied from somebody: whether a part of this worker is in them, it does not
  // hear.
  void OnCopied();
  void OnRunDone(const event::RunDone& done);
  void OnUnitAudited(const event::UnitAudited& audited);
  const msg::RunTotals& runs() const { return runs_; }  // all of them, so far
  void OnBucketsFinal(const event::BucketsFinal& final);
  void OnPartSealed(const event::PartSealed& sealed);
  // Any send that a peer had asked for has ended.
  void OnServed(const Buffers::Served& ended);
  void OnPeerDown(const MemberId& peer);
  void OnTimer();
  Time next_timer() const;

  // Starts work when it is planned, nothing else is under way and there are buffers. `level`: the
  // first round that is not applied. Its work, unless it is `committed`; relaxed work as soon as
  // the parameters are those of the round in which it was given or later ones.
  void BeginIfPossible(RoundId level, bool committed);
  // True when the operation was the copy of the parameters that work waits for.
  bool OnOpDone(const event::OpDone& done);
  // This worker does not take part for now; its sealed parts stay.
  void StopAll() { Stop(RoundId(~std::uint64_t{0})); }
  // Nothing computed for this round counts.
  void Forget(RoundId round);
  // Tells owners what they do not know yet; frees what was dropped.
  void Update();

  // The compute thread is in a unit or seals a part.
  bool Busy() const;
  // See action::StartWork.
  const std::vector<SealedPart>& applied() const { return applied_; }
  bool was_copied() const { return was_copied_; }
  // And does so with the parameters themselves, or they are being copied: they must not change.
  bool UsesParameters() const;
  // The open round's work is not finished.
  bool Computing() const;
  // A sealed part of this worker.
  std::optional<BufferId> Sealed(RoundId round, PartIndex part) const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;
  UnitQueue& queue() { return queue_; }

  void CheckInvariants() const;

 private:
  // The work that the compute thread was given last. The queue's counts run ahead of these, by the
  // run that is being computed and the part that is being sealed; where they are equal the thread
  // holds nothing (Busy).
  struct Work {
    std::uint32_t id = 0;  // grows: what is reported of an earlier work is not counted
    RoundId round;         // that it counts for; a later one than `base` once it was carried over
    Epoch epoch;
    RoundId base;  // the round in which it was given
    bool relaxed = false;
    float local_rate = 0;
    double position = 0;  // of the schedule
    RunLimit runs;
    std::uint32_t units_done = 0;
    std::uint32_t parts_sealed = 0;  // or used up before
    std::uint8_t parts_told = 0;     // the coordinator knows of them
    bool is_void = false;            // nothing more of it counts; the thread may still be in it
    bool audit_done = false;         // of a unit that counts for nothing
  };
  // The transport has taken it; by `now` of the step that has heard so.
  struct SentPiece {
    Time asked;
    Time taken;
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t kMostSentPieces = 1024;
  static void NoteSent(const SentPiece& piece, std::vector<SentPiece>* sent);
  // The last that an owner was told of a contribution. `buckets` is never more than are final.
  // `round` is another one than the contribution's when that was carried over since, which the
  // owner has to hear of even if no bucket is new.
  struct Told {
    RoundId round;
    std::uint32_t buckets = 0;
    bool sealed = false;
    std::uint64_t inlined = 0;         // bytes that rode along
    std::vector<SentPiece> sent = {};  // before it was sealed
  };
  // One part, in a buffer of its own. It is written by the compute thread until it is sealed, then
  // read by owners until its round is applied here, or closed. It keeps its buffer while it is
  // dropped and the compute thread may still be adding to it.
  struct Contribution {
    std::uint32_t work = 0;
    RoundId round;
    PartIndex part;
    std::uint32_t tag = 0;
    BufferId buffer;
    std::uint32_t buckets = 0;  // final; never fewer
    bool sealed = false;
    bool dropped = false;  // for good; nobody is told of it, and no piece of it is served
    std::uint64_t samples = 0;
    std::uint64_t divisor = 0;
    double loss_sum = 0;  // of a contribution that is not finite: not a number
    std::vector<UnitTiming> units;
    std::vector<std::uint64_t> runs;  // of how many of them each
    std::vector<Metric> metrics;
    msg::Reading reading;
    std::map<MemberId, Told> told;
    std::optional<std::uint32_t> all_told;  // under this version of the map: nothing is left to say
  };

  // A part that is sealed, and what becomes of it is not known.
  struct Open {
    RoundId round;
    SealedPart part;
  };

  bool WorksOn(RoundId round) const { return work_ && work_->round == round && !work_->is_void; }
  // Returns what was given of the round and is waited for: not what is fenced.
  GivenUnits* Given(RoundId round);
  GivenUnits* Next(RoundId level, bool committed, RoundId& round);
  void DropGiven(RoundId last);
  // Of this round and those before it nothing more is computed. Sealed parts stay.
  void Stop(RoundId round);
  // False: there was nothing to carry over.
  bool CarryOver(const msg::Commit& commit);
  void Begin(RoundId round, const GivenUnits& given, const std::array<BufferId, kMaxParts>& parts);
  Contribution* Find(std::uint32_t work, PartIndex part);
  void TellProgress();
  // While the thread still computes it, and how much of it goes to other workers at all.
  msg::SentBytes SentBefore(Time sealed, const Contribution& contribution);
  // False: there is something to say that cannot be said yet.
  bool Announce(Contribution& contribution, const MemberId& owner);

  Context& context_;
  Buffers& buffers_;
  const Peers& peers_;
  LiveRounds& rounds_;
  const CostReport& costs_;
  UnitQueue queue_;
  std::optional<Work> work_;
  msg::RunTotals runs_;
  std::uint32_t next_work_ = 1;
  // Relaxed work reads a copy of the parameters. It is taken before the work begins, by the
  // reduction thread, while no unit is computed; it stays good for the round that it was taken for.
  std::optional<std::uint64_t> copy_op_;  // of the parameters, for work that is about to begin
  std::optional<RoundId> copy_for_;       // its base; none when it is needed no longer
  bool copied_ = false;                   // the copy for copy_for_ is there
  std::vector<Contribution> contributions_;
  // For the next StartWork; contributions go earlier, where this worker is late. At most two rounds
  // are open, and a round has two parts (I7).
  std::vector<Open> open_;
  std::vector<SealedPart> applied_;
  bool was_copied_ = false;
  std::uint32_t told_in_ = 0;  // the first work that began with all of them; 0: none so far
  Time progress_due_;
};

}  // namespace lockstep::worker
