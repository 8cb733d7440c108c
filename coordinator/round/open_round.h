// The round that is being computed: work is given, taken back and moved, receipts are awaited, and
// the policy says when to close it over which parts.
//
// In: what workers say of the round's units and parts, and the time. Out: messages to workers
// (Revoke, Assign, FenceRound, NewOwners), and from Advance the verdict over which the round is to
// be committed, once there is one that can be carried out. A policy proposes; what would break an
// invariant is not done.
//
// All that is true of this round only stands in here and ends with it. The work (round_work.h) goes
// over into the committed round.
//
// Invariants:
//   I2  units are given only when nobody has them: their holder has answered a revoke, was fenced,
//       or is out (RoundWork::Give).
//   I5  a verdict is returned only with a quorum.
//   I6  whoever owes something has a deadline: an answer to a revoke (Bounds::Answer), receipts
//       (ReceiptWatch). After it others go on without.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/round/planner.h"
#include "coordinator/round/receipt_watch.h"
#include "coordinator/round/round_work.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class OpenRound {
 public:
  OpenRound(Job* job, Planner* planner, PlannedRound planned);
  // A committed round of which no contribution is left is computed again, by whoever is live; its
  // members are told. `attempts`: at it, the last one is that of its next commit. `owners`: of the
  // last one.
  OpenRound(Job* job, Planner* planner, RoundWork work, std::vector<AttemptRecord> attempts,
            std::uint32_t owners_version);

  // Work of the relaxed round before goes on in this one.
  void Carry(const CarriedWork& carried) {
    work_.Carry(*carried.work, *carried.workers, job_->members, job_->now());
  }

  // --- messages; an error is a violation of the protocol by the sender
  Status On(Member& from, const msg::Progress& message);
  Status On(Member& from, const msg::Sealed& message);
  Status On(const Member& from, const msg::Receipts& message);
  Status On(const Member& from, const msg::Revoked& message);

  void OnOut(const MemberId& member);
  void NoteAbsence(const Member& member) { work_.NoteAbsence(member, job_->now()); }
  void NoteApplied(const Member& member) { work_.NoteApplied(member, job_->now()); }
  // Some owners and other members do not reach each other: owners that reach all, if there are any.
  // `broken`: how many broken edges each member has, by slot.
  void AvoidBrokenEdges(std::span<const std::uint32_t> broken, const std::string& why);

  // Does all that can be done now. Returns the verdict over which the round is to be committed: its
  // parts are sorted, delivered and of members that may contribute. `may_close_from`: not before.
  std::optional<policies::ClosingVerdict> Advance(Time may_close_from);
  Time NextDeadline() const;

  const RoundWork& work() const { return work_; }
  RoundId round() const { return work_.round(); }
  // Of its next commit.
  Attempt attempt() const { return attempts_.empty() ? Attempt(0) : attempts_.back().attempt; }
  std::string Waiting() const;  // for what, for people

  // The round is committed: what outlives this object.
  std::vector<AttemptRecord> TakeAttempts(const std::string& verdict);
  RoundWork TakeWork() { return std::move(work_); }

  // It begins once more.
  void PlanAnew(std::uint32_t owners_version);
  void CheckInvariants() const;

 private:
  policies::RoundView View() const;
  void BoundTimes(const Member& from, msg::Sealed* sealed) const;
  static void NoteRuns(const msg::Sealed& sealed, RunCost* cost);
  static void NoteUnits(const msg::Sealed& sealed, Member* from);
  void NoteUnfinished(const policies::WorkerView& view);
  void NoteNotFinite(const Member& from, const msg::Sealed& message);

  // --- work that moves
  void CarryOut(const policies::WorkVerdict& verdict);
  void RevokeNotBegun();
  void HandOn(WorkerId from, const RoundWork::GivenBack& back);
  bool OthersRemain(WorkerId worker) const;
  void FenceWorker(WorkerId worker, const std::string& why);
  void FenceUnanswered();
  Time LetsGoOfAwayFrom() const;
  void LetGoOfAway();
  bool CanTake(const Member& member) const;
  bool GoneUnfinished(WorkerId worker) const;
  void GiveTo(Member& taker, const std::vector<UnassignedUnit>& units);
  // A stopped worker answers no fence, and what it would say is not worth more waiting (I6).
  Time FenceAnswersUntil() const { return fenced_at_ + job_->bounds.Answer(); }
  void PlaceUnassigned();
  void SpreadUnassigned(const std::vector<Member*>& takers);

  // --- closing
  std::optional<policies::ClosingVerdict> AskPolicy(Time may_close_from);
  bool CanCommit(policies::ClosingVerdict* verdict);

  // --- owners that do not send receipts
  void CheckReceipts();
  // `silent` are blamed; `avoided` cannot be taken either, for no fault of theirs.
  void ReplaceOwners(const std::vector<WorkerId>& silent, const std::string& why,
                     const std::vector<WorkerId>& avoided = {});

  Job* job_;
  Planner* planner_;
  RoundWork work_;
  const Duration stopped_before_;        // Job::stopped when this round was opened
  std::vector<AttemptRecord> attempts_;  // earlier ones, when the round is open again
  ReceiptWatch receipts_;
  std::vector<WorkerId> gone_unfinished_;  // were out with units that they had not finished
  bool owners_stale_ = false;              // an owner is out, and nobody could take its place yet
  Time look_again_ = kNever;               // the policy's
  Time fenced_at_;                         // a worker last; says nothing before the first time
  bool said_weight_refused_ = false;       // a policy's; said once
};

}  // namespace lockstep::coordinator
