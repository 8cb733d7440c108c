// The round that is being computed: work is given, taken back and moved, receipts are awaited, and
// the policy says when to close it over which parts. Work moves in unit_moves.h.
//
// In: what workers say of the round's units and parts, and the time. Out: messages to workers
// (Revoke, Assign, FenceRound, NewOwners), and from Advance the verdict over which the round is to
// be committed, once there is one that can be carried out. A policy proposes; what would break an
// invariant is not done.
//
// Facts about this round alone stand here and end with it. The work (round_work.h) goes over into
// the committed round.
//
// Invariants:
//   I2  units are given only when nobody has them: their holder has answered a revoke, was fenced,
//       or is out (RoundWork::Give).
//   I5  a verdict is returned only with a quorum.
//   I6  whoever owes something has a deadline: an answer to a revoke (Bounds::Answer), receipts
//       (ReceiptWatch). After it the others go on without.
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
#include "coordinator/round/unit_moves.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class OpenRound {
 public:
  OpenRound(Job* job, Planner* planner, PlannedRound planned);
  // A committed round without a contribution left is computed again by the live members; all are
  // informed. `attempts`: at it, the last one is that of its next commit. `owners`: of the last
  // one.
  OpenRound(Job* job, Planner* planner, RoundWork work, std::vector<AttemptRecord> attempts,
            std::uint32_t owners_version);
  OpenRound(const OpenRound&) = delete;  // its moves point at its work
  OpenRound& operator=(const OpenRound&) = delete;

  // Work of the relaxed round before goes on in this one.
  void Carry(const CarriedWork& carried) {
    work_.Carry(*carried.work, *carried.workers, job_->members, job_->now());
  }

  // --- messages; an error is a violation of the protocol by the sender
  Status OnProgress(Member& from, const msg::Progress& message);
  Status OnSealed(Member& from, const msg::Sealed& message);
  // The two have mapped each other (Delivery).
  void NoteMapped(const MemberId& a, const MemberId& b) { work_.NoteMapped(a, b, job_->now()); }
  Status OnReceipts(const Member& from, const msg::Receipts& message);
  Status OnRevoked(const Member& from, const msg::Revoked& message);

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
  // The attempt of its next commit.
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
  Time GivenAt(WorkerId worker) const;
  void NoteNotFinite(const Member& from, const msg::Sealed& message);
  void PlaceUnassigned();

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
  UnitMoves moves_;                      // of work_
  ReceiptWatch receipts_;
  bool owners_stale_ = false;         // an owner is out, and nobody could take its place yet
  Time look_again_ = kNever;          // the policy's
  bool said_weight_refused_ = false;  // a policy's; said once
};

}  // namespace lockstep::coordinator
