// What this worker computes: the units given to it, the compute thread's work on the open round,
// and the contributions that come out of it, until their round is closed.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "worker/core/buffer_leases.h"
#include "worker/core/live_rounds.h"
#include "worker/core/peers.h"
#include "worker/core/unit_queue.h"

namespace lockstep::worker {

class OwnWork {
 public:
  OwnWork(Context& context, Buffers& buffers, const Peers& peers, RoundMaps& maps)
      : context_(context),
        buffers_(buffers),
        peers_(peers),
        maps_(maps),
        queue_(context.config.queue_capacity) {}

  // The units of a round that is not begun yet; what was computed for an earlier plan of it is
  // void.
  void OnPlan(const Plan& plan);
  void OnRevoke(const Revoke& revoke);
  void OnAssign(const Assign& assign);
  // What was computed for the round is void. Says so; units of it that are given to this worker
  // after that are a new beginning, in the parts that are not used up.
  void OnFence(const FenceRound& fence);
  // The round is committed and the next one carries its work on: as Stop, unless this worker is in
  // no part of the commit; then what it has belongs to the next round.
  void CarryOver(const Commit& commit);
  void OnUnitDone(const event::UnitDone& done);
  void OnBucketsFinal(const event::BucketsFinal& final);
  void OnPartSealed(const event::PartSealed& sealed);
  void OnPeerDown(const MemberId& peer);
  void OnTimer();
  Time next_timer() const;

  // Starts work when it is planned, nothing else is under way and there are buffers. `level`: the
  // first round that is not applied. Its work, unless it is `committed`; relaxed work as soon as
  // the parameters are those of the round in which it was given or later ones.
  void BeginIfPossible(RoundId level, bool committed);
  // True when the operation was the copy of the parameters that work waits for.
  bool OnOpDone(const event::OpDone& done);
  // The round is committed: what is not sealed does not count any more. Its sealed parts stay.
  void Stop(RoundId round);
  // This worker does not take part for now; its sealed parts stay.
  void StopAll() { Stop(RoundId(~std::uint64_t{0})); }
  // Nothing computed for this round counts.
  void Forget(RoundId round);
  // No attempt at a round before this one will be made: its contributions are needed no longer.
  void ReleaseBefore(RoundId round);
  // Tells owners what they do not know yet; frees what was dropped.
  void Update();

  // The compute thread is in a unit or seals a part.
  bool Busy() const;
  // And does so with the parameters themselves, or they are being copied: they must not change.
  bool UsesParameters() const;
  // The open round's work is not finished.
  bool Computing() const;
  // A sealed part of this worker.
  std::optional<BufferId> Sealed(RoundId round, PartIndex part) const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;
  UnitQueue& queue() { return queue_; }

 private:
  // Of a round, as its plan says.
  struct Kind {
    bool relaxed = false;
    float local_rate = 0;
    Attempt plan;
  };
  struct Pending {
    Epoch epoch;
    std::vector<Unit> units;
    PartIndex first_part;
    RoundId base;  // in which it was given
    Kind kind;
    Attempt plan;  // of the round that it belongs to now
  };
  struct Work {
    std::uint32_t id = 0;
    RoundId round;
    Epoch epoch;
    RoundId base;
    Kind kind;
    Attempt plan;
    std::uint32_t units_done = 0;
    std::uint32_t parts_sealed = 0;  // or used up before
    std::uint8_t parts_told = 0;     // the coordinator knows of them
    bool is_void = false;
  };
  struct Told {
    RoundId round;
    std::uint32_t buckets = 0;
    bool sealed = false;
  };
  struct Contribution {
    std::uint32_t work = 0;
    RoundId round;
    Attempt plan;
    PartIndex part;
    std::uint32_t tag = 0;
    BufferId buffer;
    std::uint32_t buckets = 0;  // final
    bool sealed = false;
    bool dropped = false;
    std::uint64_t samples = 0;
    double loss_sum = 0;  // of a contribution that is not finite: not a number
    std::vector<UnitTiming> units;
    std::map<MemberId, Told> told;
    std::optional<std::uint32_t> all_told;  // under this version of the map: nothing is left to say
  };

  Contribution* Find(std::uint32_t work, PartIndex part);
  void TellProgress();
  // False: there is something to say that cannot be said yet.
  bool Announce(Contribution& contribution, const MemberId& owner);

  Context& context_;
  Buffers& buffers_;
  const Peers& peers_;
  RoundMaps& maps_;
  UnitQueue queue_;
  std::map<RoundId, Pending> pending_;
  std::map<RoundId, Pending> fenced_;  // what a new beginning would start from
  std::optional<Work> work_;
  std::uint32_t next_work_ = 1;
  std::map<RoundId, Kind> kinds_;         // of the rounds that are not closed
  std::optional<std::uint64_t> copy_op_;  // of the parameters, for work that is about to begin
  std::optional<RoundId> copy_for_;       // its base; none when it is needed no longer
  bool copied_ = false;                   // the copy for copy_for_ is there
  std::vector<Contribution> contributions_;
  Time progress_due_;
};

}  // namespace lockstep::worker
