// The books of one round: who holds which unit, what is sealed and delivered. No decisions; those
// are the round machine's. It outlives the commit, for a further attempt and for the record.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/interval_set.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/membership/members.h"
#include "coordinator/round/delivery.h"
#include "coordinator/round/owner_weights.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

struct SealedPart {
  bool is_void = false;  // of a member that was fenced since: its number is used up
  std::uint64_t samples = 0;
  double loss_sum = 0;
  std::vector<UnitTiming> units;
  ClockOffset clock;  // of the worker, for its units' times
  Time ready_at;
  std::optional<Time> delivered_at;
};

// A revoke that waits for its answer.
struct PendingRevoke {
  struct Taker {
    MemberId member;
    std::uint32_t units = 0;
  };
  std::vector<Taker> takers;  // none: the round does without the units
  std::uint32_t from = 0;     // position
  std::uint32_t order = 0;
  Time asked;
};

// Units that came to a member by one order, one behind the other in its queue.
struct GivenUnits {
  std::uint32_t order = 0;  // 0: the plan
  std::uint32_t units = 0;  // > 0
};

// What one member has to do with the round.
struct WorkerShare {
  MemberId member;
  std::vector<UnitIndex> queue;    // what it was given, less what it gave back
  std::vector<GivenUnits> given;   // the queue, by order
  std::vector<SealedPart> parts;   // sealed, at most kMaxParts
  std::uint32_t sealed_units = 0;  // of the queue
  std::uint32_t fence_order = 0;
  bool fence_answered = false;  // fenced, and it has said that it holds nothing any more
  bool refused = false;         // an Assign: both of its parts are being sealed
  Attempt plan;                 // Plan::attempt of the round in which it was given its work
  std::optional<PendingRevoke> revoke;

  // Takes positions [first, last) out of the queue.
  std::vector<UnitIndex> Cut(std::size_t first, std::size_t last);
  // Behind the second part nothing can be appended. Whether the worker has begun to seal it is not
  // known here: what comes too late is refused, and goes elsewhere.
  bool HasRoom() const { return parts.size() < kMaxParts && !refused && !revoke; }
};

// A unit in nobody's hands, and who had it.
struct Orphan {
  UnitIndex unit;
  WorkerId from;
};

class OpenRound {
 public:
  OpenRound() = default;
  OpenRound(const Plan& plan, bool exact, Members& members, Time now);

  // Work of a relaxed round that is in no part of its commit goes on in this one.
  void Carry(const OpenRound& before, const std::vector<WorkerId>& workers, const Members& members,
             Time now);
  // What the member says of `round` is about the work that it has here.
  bool Concerns(const MemberId& member, RoundId round, Attempt plan) const;

  // --- what workers say; an error is a violation of the protocol by the sender
  Status OnSealed(const Member& from, const Sealed& sealed, Time now);
  // The part that it has sealed just now is not finite: the round does without it.
  void Skip(WorkerId worker, PartIndex part);
  Status OnProgress(const MemberId& from, const Progress& progress, Time now);
  Status OnReceipts(const MemberId& from, const Receipts& receipts, Time now);
  // The units given back, or refused; they are nobody's now, and not among the orphans. An answer
  // to an order that is of no matter any more gives none.
  struct GivenBack {
    std::vector<UnitIndex> units;
    std::vector<PendingRevoke::Taker> takers;  // for whom they were revoked
    bool left_out = false;                     // revoked for nobody
  };
  Result<GivenBack> OnRevoked(const MemberId& from, const Revoked& revoked);

  // --- what the machine decides
  void SetOwners(OwnerMap map, const Members& members, Time now);
  void Give(const Member& to, const std::vector<UnitIndex>& units, std::uint32_t order,
            const Members& members, Time now);
  void BeginRevoke(WorkerId worker, PendingRevoke revoke);
  void ExtendRevoke(WorkerId worker, Time now);  // as if it were asked only now
  // Its contribution is void; all units it held become orphans. It is out of the round.
  void Remove(WorkerId worker);
  // The same, but it stays in the policy's view as fenced.
  void Fence(WorkerId worker, std::uint32_t order);
  // It knows: units that it is given from now on are a new beginning.
  void NoteFenceAnswer(const MemberId& from, std::uint32_t order);
  // The fence has been answered and a part is left.
  bool CanBeginAnew(WorkerId worker) const;
  void Unfence(WorkerId worker, Time now);
  // What was left out are orphans again when nobody has anything else: a round closes over
  // something.
  void TakeBackLeftOut();
  std::optional<Time> OldestRevoke() const;
  std::vector<WorkerId> RevokesBefore(Time t) const;
  // All contributions are void and all units orphans; whoever gets some begins with its first part.
  void PlanAnew(Attempt plan, Time now);
  // The member's unit times and when it was last heard, for the policies.
  void SyncHistory(const Member& member);
  // It has applied the rounds before its `next`.
  void NoteApplied(const Member& member, Time now);

  policies::RoundView View(Time now, std::uint32_t configured_workers) const;
  // As if every sealed part were delivered; costs a copy.
  struct Hypothetical {
    std::vector<policies::WorkerView> workers;
    policies::RoundView view;
  };
  void ViewIfDelivered(Time now, std::uint32_t configured_workers, Hypothetical* out) const;

  // Of all that have sealed a part or own; `control` is left open.
  std::vector<LinkResponse> Responses(Time now) const;

  const WorkerShare* Share(WorkerId worker) const;
  const policies::WorkerView* WorkerViewOf(WorkerId worker) const;
  const SealedPart* Part(WorkerId worker, PartIndex part) const;
  std::vector<SampleRange> RangesLess(const IntervalSet& counted) const;
  // Of all units that the workers have, and their numbers.
  std::vector<SampleRange> RangesOf(const std::vector<WorkerId>& workers) const;
  std::vector<UnitIndex> UnitsOf(const std::vector<WorkerId>& workers) const;
  SampleRange RangeOf(UnitIndex unit) const { return units_[unit.value]; }
  const std::vector<policies::WorkerView>& workers() const { return views_; }
  const std::vector<WorkerShare>& shares() const { return shares_; }

  RoundId round;
  Epoch epoch;
  Attempt attempt;  // of its next commit
  bool exact = false;
  bool relaxed = false;
  Attempt plan;  // Plan::attempt
  Time started;
  std::uint64_t samples = 0;
  OwnerMap owners;
  Delivery delivery;
  std::vector<Orphan> orphans;
  std::vector<Orphan> left_out;  // orphans that the round does without
  // Of parts that are not finite: the round does without them, and nobody computes them again.
  struct Skipped {
    WorkerId worker;
    SampleRange range;
  };
  std::vector<Skipped> skipped;
  // What is to be counted for the round to be whole.
  std::uint64_t SamplesWanted() const;
  std::optional<Time> last_sealed;
  std::uint32_t undelivered = 0;      // sealed parts that are not delivered
  std::uint32_t pending_revokes = 0;  // that wait for their answer

 private:
  WorkerShare* Find(const MemberId& member);     // null: not in the round, or fenced
  WorkerShare* FindAny(const MemberId& member);  // null: not in the round
  std::size_t AddWorker(const Member& member, Time now);
  void AddUnit(UnitIndex unit, SampleRange range);
  policies::WorkerView& WorkerViewAt(const WorkerShare& share) {
    return views_[static_cast<std::size_t>(index_[share.member.worker.value])];
  }
  static void NotePace(policies::WorkerView* view, std::uint32_t units, Time now);
  void NoteLatePart(const MemberId& from);
  void MakeOrphans(WorkerShare* share);
  void DropAnsweredRevokes();
  void UpdateDelivered(WorkerShare* share, Time now);
  // Renews its view and the running counts after a change of the share.
  void Refresh(const WorkerShare& share, Time now);
  void Reindex();

  std::vector<SampleRange> units_;           // by UnitIndex; empty: there is no such unit
  std::vector<std::int64_t> holder_;         // by UnitIndex: slot, or -1
  std::vector<bool> unit_sealed_;            // by UnitIndex
  std::vector<WorkerShare> shares_;          // parallel to views_
  std::vector<policies::WorkerView> views_;  // ascending
  std::vector<std::int64_t> index_;          // by slot: position in these two, or -1
  // When who was asked, ascending. The first one waits for its answer; of the others some may not,
  // or may have been given more time.
  std::deque<std::pair<Time, WorkerId>> asked_;
  // By slot: of each owner, how long after the first part of each contributor that is not mapped
  // with it was ready its receipt came.
  std::vector<std::vector<Duration>> receipts_late_;
  std::uint32_t planned_workers_ = 0;
  std::uint32_t with_units_ = 0;
  std::uint32_t finished_ = 0;
};

}  // namespace lockstep::coordinator
