// The work of one round: who has which unit, what is sealed, what is delivered to whom. It decides
// nothing: it keeps account, refuses what cannot be, and shows the round as policies see it
// (round_view.h). The open round decides (open_round.h). The work outlives the commit, for the
// record and for a further attempt, and goes back to an open round when no contribution is left.
//
// In: what workers say of their units and parts; what the open round gives, revokes and fences.
// Out: views for the policy, the account for the record. A message that contradicts the account is
// an error, a violation of the protocol by its sender.
//
// Invariants:
//   I2  each unit is at each time with exactly one of: one share's queue, the unassigned ones, the
//       ones that are left out (UnitTable). Skipped units stay in their share's queue, and nobody
//       computes them again.
//   -   an order (Revoke, Assign, FenceRound) has a number above all earlier ones; an answer to any
//       but the one that is awaited is stale and changes nothing.
//   -   the running counts (with units, finished, undelivered, pending revokes) are what a recount
//       of the shares gives; CheckInvariants recounts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/interval_set.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/members.h"
#include "coordinator/job/records.h"
#include "coordinator/round/delivery.h"
#include "coordinator/round/round_view.h"
#include "coordinator/round/unit_table.h"
#include "coordinator/round/worker_share.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class RoundWork {
 public:
  // `costs`: of PlannedRound.
  RoundWork(Plan plan, bool exact, const std::vector<float>& costs, const Members& members,
            Time now);

  // Work of a relaxed round that is in no part of its commit goes on in this one.
  void Carry(const RoundWork& before, const std::vector<WorkerId>& workers, const Members& members,
             Time now);
  // True if the member's message about `round` concerns the work that it has here.
  bool Concerns(const MemberId& member, RoundId round, Attempt plan) const;

  // --- what workers say; an error is a violation of the protocol by the sender
  Status OnSealed(const Member& from, const msg::Sealed& sealed, Time now);
  // The part that it has sealed just now is not finite: the round does without it.
  void Skip(WorkerId worker, PartIndex part);
  Status OnProgress(const MemberId& from, const msg::Progress& progress, Time now);
  // The two have mapped each other (Delivery).
  void NoteMapped(const MemberId& a, const MemberId& b, Time now);
  Status OnReceipts(const MemberId& from, const msg::Receipts& receipts, Time now);
  // Units given back or refused: with nobody until Unassign, LeaveOut or Give. A stale answer has
  // none.
  struct GivenBack {
    std::vector<UnitIndex> units;
    std::vector<PendingRevoke::Taker> takers;  // for whom they were revoked
    bool left_out = false;                     // revoked for nobody
  };
  Result<GivenBack> OnRevoked(const MemberId& from, const msg::Revoked& revoked);

  // --- what the open round decides
  void SetOwners(OwnerMap map, const Members& members, Time now);
  // Notes as moved what comes from another worker.
  void Give(const Member& to, const std::vector<UnassignedUnit>& units, std::uint32_t order,
            const Members& members, Time now);
  void BeginRevoke(WorkerId worker, PendingRevoke revoke);
  void ExtendRevoke(WorkerId worker, Time now);  // as if it were asked only now
  void AddUnassigned(UnassignedUnit unit) { units_.Unassign(unit); }
  void AddLeftOut(UnassignedUnit unit) { units_.LeaveOut(unit); }
  std::vector<UnassignedUnit> TakeUnassigned() { return units_.TakeUnassigned(); }
  void LeaveUnassignedOut() { units_.LeaveUnassignedOut(); }
  // The worker's contribution is void, and its units are unassigned. It is out of the round.
  void Remove(WorkerId worker);
  // The same, but it stays in the policy's view as fenced.
  void Fence(WorkerId worker, std::uint32_t order);
  // The worker knows of the fence: units that it gets from now on start afresh.
  void NoteFenceAnswer(const MemberId& from, std::uint32_t order);
  // The fence has been answered and a part is left.
  bool CanBeginAnew(WorkerId worker) const;
  // Of one without a share: it was in the round, perhaps, and has not used up both of its parts.
  bool HasPartsFor(const MemberId& member) const;
  void Unfence(WorkerId worker, Time now);
  // Units that were left out become unassigned again when there is nothing else: a round needs a
  // part to close over.
  void TakeBackLeftOut();
  // All that was given is done, and no part of it counts: each is void, or there is none.
  bool NothingCounts() const;
  std::optional<Time> OldestRevoke() const;
  std::vector<WorkerId> RevokesBefore(Time t) const;
  // Makes all contributions void and all units unassigned, under a new plan without assignments.
  // Every worker that gets units begins with its first part.
  void PlanAnew(OwnerMap owners, std::vector<MemberId> members, const Members& table, Time now);
  // The member's unit times and when it was last heard, for the policies.
  void SyncHistory(const Member& member);
  // Notes whether the member is away: then it gets no more units.
  void NoteAbsence(const Member& member, Time now);
  // The member has applied the rounds before its `next`.
  void NoteApplied(const Member& member, Time now);

  // --- what is
  RoundId round() const { return plan_.round; }
  Epoch epoch() const { return plan_.epoch; }
  bool relaxed() const { return plan_.relaxed; }
  bool exact() const { return exact_; }
  bool knows_costs() const { return knows_costs_; }
  Time started() const { return started_; }
  const Plan& plan() const { return plan_; }
  const OwnerMap& owners() const { return plan_.owners; }
  const Delivery& delivery() const { return delivery_; }
  const std::vector<UnassignedUnit>& unassigned() const { return units_.unassigned(); }
  std::optional<Time> last_sealed() const { return last_sealed_; }
  std::uint32_t undelivered() const { return undelivered_; }
  std::uint32_t pending_revokes() const { return pending_revokes_; }
  const std::vector<MoveRecord>& moved() const { return moved_; }
  // The samples that a whole round counts.
  std::uint64_t SamplesWanted() const;

  // Costs O(1).
  policies::RoundView View(Time now, std::uint32_t configured_workers) const;
  // For an owner: the time from the first part of each contributor, unless that is mapped, until
  // its receipt came.
  const std::vector<Duration>& ReceiptDelays(WorkerId owner) const {
    return receipts_late_[owner.value];
  }

  const WorkerShare* Share(WorkerId worker) const;
  const policies::WorkerView* WorkerViewOf(WorkerId worker) const;
  const SealedPart* Part(WorkerId worker, PartIndex part) const;  // null: none, or a void one
  // The samples that are not in the commit, merged to ranges.
  std::vector<SampleRange> RangesLess(const IntervalSet& counted) const {
    return units_.RangesLess(counted);
  }
  // The ranges of all units of these workers, and their numbers.
  std::vector<SampleRange> RangesOf(const std::vector<WorkerId>& workers) const;
  std::vector<UnitIndex> UnitsOf(const std::vector<WorkerId>& workers) const;
  SampleRange RangeOf(UnitIndex unit) const { return units_.RangeOf(unit); }
  // In usual units; 1 where it is not known.
  double CostOf(UnitIndex unit) const { return units_.CostOf(unit); }
  std::size_t slots() const { return index_.size(); }
  const std::vector<policies::WorkerView>& workers() const { return views_; }
  const policies::ViewChanges& changes() const { return changes_; }  // of workers()
  const std::vector<WorkerShare>& shares() const { return shares_; }
  // Parts that are not finite: the round does without them, and nobody computes them again.
  struct Skipped {
    WorkerId worker;
    SampleRange range;
  };
  const std::vector<Skipped>& skipped() const { return skipped_; }
  // The first that was one more than kMaxMetrics of all workers together.
  const std::optional<std::string>& metric_left_out() const { return metric_left_out_; }

  // Recounts all of the above: O(units). For tests and the simulator.
  void CheckInvariants() const;

 private:
  WorkerShare* Find(const MemberId& member);     // null: not in the round, or fenced
  WorkerShare* FindAny(const MemberId& member);  // null: not in the round
  std::size_t AddWorker(const Member& member, Time now);
  policies::WorkerView& WorkerViewAt(const WorkerShare& share) {
    return views_[static_cast<std::size_t>(index_[share.member.worker.value])];
  }
  void NoteLatePart(const MemberId& from);
  void Unassign(WorkerShare* share);  // all that it has; its contribution is void
  void DropAnsweredRevokes();
  void CountReceiptsAnew(const Members& members, Time now);
  void UpdateDelivered(WorkerShare* share, Time now);
  Status CheckMetrics(const msg::Sealed& sealed) const;
  std::vector<Metric> KeepMetrics(const std::vector<Metric>& metrics);
  // Its view is another one; and all are, or stand in other places.
  void NoteChange(WorkerId worker);
  void NoteAllChange();
  // Renews its view and the running counts after a change of the share.
  void RenewView(const WorkerShare& share, Time now);
  void Reindex();

  // The plan as it was sent, but with the present owner map, also after NewOwners. The one owner
  // map and the one attempt of the plan that the round has.
  Plan plan_;
  bool exact_;  // the last one of its epoch
  Time started_;
  Delivery delivery_;  // under plan_.owners

  UnitTable units_;
  bool knows_costs_;  // of its units
  std::vector<Skipped> skipped_;
  std::uint64_t skipped_samples_ = 0;  // of all of them
  std::vector<MoveRecord> moved_;
  std::vector<WorkerShare> shares_;  // parallel to views_
  // By slot, of a member that is out of the round or was: how many parts it has sealed, as far as
  // is known. They are void, and stay used (SealedPart) if it is back after it was only behind.
  std::map<WorkerId, std::pair<MemberId, std::size_t>> out_parts_;
  std::vector<policies::WorkerView> views_;  // ascending
  std::vector<std::int64_t> index_;          // by slot: position in these two, or -1
  policies::ViewChanges changes_;            // of views_
  // The times of questions and who was asked, ascending. The first one waits for its answer; of the
  // others some may not, or may have been given more time.
  std::deque<std::pair<Time, WorkerId>> asked_;
  std::vector<std::vector<Duration>> receipts_late_;  // by slot; see ReceiptDelays
  std::optional<Time> last_sealed_;
  std::vector<Metric> metrics_seen_;  // in sealed parts, of whatever became of them; for the names
  std::optional<std::string> metric_left_out_;
  // Counted along with each change of a share, so that judging a round costs no pass over them.
  std::uint32_t undelivered_ = 0;      // sealed parts that are not delivered
  std::uint32_t pending_revokes_ = 0;  // that wait for their answer
  std::uint32_t planned_workers_ = 0;
  std::uint32_t planned_units_ = 0;  // those of the plan, and their samples
  std::uint64_t planned_samples_ = 0;
  std::uint32_t with_units_ = 0;
  std::uint32_t finished_ = 0;
};

}  // namespace lockstep::coordinator
