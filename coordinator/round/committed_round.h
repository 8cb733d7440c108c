// A round from its commit until it is closed: its sums are published and applied, or, when owners
// are silent or lost, carried through by a fail-over.
//
// Decides: who is late with applying; whether somebody holds all sums of the attempt. publication.h
// decides who is late with publishing, and who stands in. If a member holds all sums, the attempt
// stands, and the others take the sums from there. If nobody does, another attempt is needed, once
// everybody has promised not to apply this one.
//
// In: Published, NotFinite, Applied and HoldAnswer, who is out, the time. Out: questions
// (FenceAttempt) and TakeSums to workers, members that are put behind or evicted, and from Check
// what the pipeline has to do about the round. The commit itself is made and sent by the pipeline.
//
//   publishing --owner silent or lost--> fencing --all answered, nobody has them--> stalled
//        |    \                        /        \                                     |
//        |     `----somebody has them-'----------> from holders <---somebody comes----'
//        |                                             |                       (quorum: next
//        attempt
//        `--- all have applied; Commit(r + 1) ---> closed                          or open again)
//
// Invariants:
//   I1  who has answered "no" does not apply the attempt, so nobody holds it when all have: only
//       then Check says kNobodyHolds, and only then a further attempt may be made. A live member
//       that is past the round rules a further attempt out.
//   I3  the parts of the commit ascend by worker, then part.
//   I6  each phase but stalled has a deadline: NextDeadline is never kNever while a member has to
//       apply the round. This holds also when all have published and nobody applies, or no owner
//       publishes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/round/barrier.h"
#include "coordinator/round/publication.h"
#include "coordinator/round/round_work.h"
#include "coordinator/round/sampler.h"
#include "coordinator/round/state_replicas.h"

namespace lockstep::coordinator {

class CommittedRound {
 public:
  enum class Phase : std::uint8_t {
    // Owners publish, members apply. Has the publication's deadline.
    kPublishing,
    // Members that may hold the sums were asked whether they do; answers are awaited.
    kFencing,
    // All have promised not to apply the attempt, and there is no quorum for the next one. Goes on
    // when somebody comes.
    kStalled,
    // A member holds all sums; the others were told to take them there.
    kFromHolders,
    // Commit(r + 1) was made, or this was the last round and all have applied it.
    kClosed,
  };
  // The consequence for the pipeline.
  enum class Outcome : std::uint8_t { kGoesOn, kApplied, kNobodyHolds };

  // The record of all attempts.
  struct History {
    std::string verdict;  // the policy's reason
    std::string policy;   // that gave it
    std::vector<AttemptRecord> attempts;
    std::vector<WorkerId> carried;  // ascending; their work goes on in the next round
    Time first_committed_at;
  };

  // `before`: the sampler before the round was settled, to settle it anew in a further attempt.
  CommittedRound(Job* job, RoundWork work, Sampler before, History history);

  // The commit of an attempt is sent now: everything of the one before is forgotten, but who has
  // been out.
  // `copies`: as in Barrier. `replicas` outlives this.
  void BeginAttempt(msg::Commit commit, bool copies, const StateReplicas& replicas);
  void AddAttempt(AttemptRecord attempt) { history_.attempts.push_back(std::move(attempt)); }
  void SetCarried(std::vector<WorkerId> workers) { history_.carried = std::move(workers); }

  // --- messages; an error is a violation of the protocol by the sender
  Status OnPublished(Member& from, const msg::Published& message);
  // Parts of it can be in no sum: another attempt does without them, or the job ends (job.on_nan).
  Status OnNotFinite(const Member& from, const msg::NotFinite& message);
  // True when the member has it now and had not before: its `next` is behind the round then.
  Result<bool> OnApplied(Member& from, const msg::Applied& message);
  Status OnHoldAnswer(const Member& from, const msg::HoldAnswer& message);
  void OnCopied(const Member& from, const msg::Copied& message) {
    if (undecided()) barrier_->OnCopied(from.id, message.values);
  }
  // True when the attempt is decided by it.
  Result<bool> OnHeld(const Member& from, const msg::Held& message);

  // The member is not live any more; even if it comes back, it has lost what it had of this round.
  void OnOut(const MemberId& member, const std::string& why);
  // A member is live now, or is not any more.
  void CountToApply();
  // A live member is past the round that was not: its attempt stands.
  void OnReadmitted();
  // All participants are out, and no live member has the round: there is nobody to ask.
  void GiveUp(const std::string& why);
  // Two do not reach each other. `broken`: how many broken edges each of `members` has, by slot.
  void AvoidBrokenEdges(const std::vector<MemberId>& members,
                        const std::vector<std::uint32_t>& broken);

  // Does all that can be done now. `last`: no later round is open. Not of a closed round, nor of a
  // stalled one without a quorum.
  Outcome Check(bool last);
  Time NextDeadline(bool last) const;

  void Close();
  // Before it is sent again: there is no next round, or another member writes the checkpoint.
  void DropNext() { commit_.next.reset(); }
  void SetCheckpointWriter(const std::optional<MemberId>& writer) {
    commit_.checkpoint_writer = writer;
  }
  // The round is computed again: these are taken over.
  RoundWork TakeWork() { return std::move(work_); }
  std::vector<AttemptRecord> TakeAttempts() { return std::move(history_.attempts); }

  // Called before another attempt: parts that are not finite are skipped.
  void LeaveOutNotFinite();

  // --- what is
  RoundId round() const { return commit_.round; }
  Phase phase() const { return phase_; }
  bool closed() const { return phase_ == Phase::kClosed; }
  // The replicas of its shards are awaited (optimizer.replicas): another attempt may be needed.
  bool decided() const { return barrier_ && barrier_->decided(); }
  bool undecided() const { return barrier_ && !barrier_->decided() && !closed(); }
  bool failing_over() const { return phase_ == Phase::kFencing || phase_ == Phase::kStalled; }
  const msg::Commit& commit() const { return commit_; }
  const RoundWork& work() const { return work_; }
  const Sampler& before() const { return before_; }
  const History& history() const { return history_; }
  Time committed_at() const { return committed_at_; }  // the present attempt
  // The time from the commit until the first member had applied it.
  std::optional<Duration> first_application() const {
    return first_applied_at_ ? std::optional(*first_applied_at_ - committed_at_) : std::nullopt;
  }
  std::optional<Time> applied_at() const { return applied_at_; }  // by the last who had to
  std::uint32_t to_apply() const { return to_apply_; }
  const Publication& publication() const { return publication_; }
  const std::optional<Barrier>& barrier() const { return barrier_; }
  // The members that are to apply it, in words; empty: nobody is.
  std::string Waiting() const;
  // The reason of the fail-over, for people.
  const std::string& failover_reason() const { return failover_reason_; }
  // Parts of it cannot be fetched any more.
  bool HasLost(const MemberId& member) const;
  // The part, of the present attempt, can be in no further one.
  bool HasLost(const CommittedPart& part) const;
  // Names the parts of the present attempt that are not finite; empty: none is known.
  std::string NotFinite() const;

  // The phase and the fields agree, counts are recounted; O(members). `settled`: all who are out
  // have been taken out.
  void CheckInvariants(bool settled) const;

 private:
  enum class Answer : std::uint8_t { kUnasked, kWaiting, kNo, kYes };
  // The state of a slot in this attempt. Invariants: an answer is kWaiting exactly while
  // answers_missing_ counts it; `applied` is of the incarnation that holds the slot now.
  struct Slot {
    bool applied = false;                // said so
    Answer answer = Answer::kUnasked;    // does it hold all sums?
    std::uint32_t order = 0;             // of the last question
    std::optional<MemberId> takes_from;  // it was told to, from there
  };
  Slot& SlotOf(const MemberId& id) { return slots_[id.worker.value]; }
  const Slot& SlotOf(const MemberId& id) const { return slots_[id.worker.value]; }

  bool MustApply(const Member& member) const;
  struct LiveCounts {
    std::uint32_t to_apply = 0;
    std::uint32_t past = 0;
  };
  LiveCounts Recount() const;
  // The time without a publication or application that the round may have.
  Duration ApplyPatience() const;
  Duration UnitPatience() const;
  Time HopelessFrom(Duration runs) const;
  bool OthersCouldOwn() const;
  bool TryOnceMore();
  void GiveUpOnLate(bool last);
  Time AwayDeadline() const;
  void PutAwayBehind();
  void EvictStuck(const char* what);
  Time LateFrom(bool last, Duration runs) const;
  Time LookAtLate(bool last) const;
  void OrderStandIns();
  void JudgeOwners();

  // --- with a barrier
  void TryAgain(const std::string& why);
  void JudgeReplicas();
  void PassOverSilentReplicas();
  void PutSilentContributorsBehind(const std::vector<WorkerId>& silent);
  // Others are to take what these have from whoever else has it.
  void TellSilent(const std::vector<WorkerId>& silent);
  // Members of the attempt that are still exchanging.
  std::vector<MemberId> Exchanging() const;

  // --- the fail-over
  void BeginFailover(const std::string& why);
  bool AskWhoHolds();
  std::vector<MemberId> SumHolders() const;
  bool TakeFromHolders();
  void SendToHolder(Member& member, const MemberId& holder);
  void AvoidBrokenHolders();
  bool IsInParameters();
  Outcome ResolveFailover();
  void Enter(Phase phase);

  Job* job_;
  RoundWork work_;
  Sampler before_;
  History history_;
  Duration delivery_{};  // the longest that a committed part took from sealed to delivered
  // Members that were out since the first commit. Even if one is live again, it has lost its sums
  // and parts of this round.
  std::vector<MemberId> been_out_;
  std::uint32_t hopeless_attempts_ = 0;  // that nobody published or applied though all lived

  // --- of the present attempt
  msg::Commit commit_;  // as it was sent
  Phase phase_ = Phase::kPublishing;
  std::vector<Slot> slots_;
  Time committed_at_;
  std::vector<std::size_t> not_finite_;  // of its parts, by their place; ascending
  Time moved_at_;                   // somebody has published or applied it, or is found to hold it
  std::uint32_t to_apply_ = 0;      // live members of the commit that have not
  std::uint32_t past_ = 0;          // live members that have the round in their parameters
  std::optional<Time> applied_at_;  // by the last of them
  std::optional<Time> first_applied_at_;  // by the first one
  Publication publication_;
  std::optional<Barrier> barrier_;

  std::string failover_reason_;
  Time fenced_at_;                                 // kFencing: since then
  Time fence_until_;                               // and answers are awaited until then
  std::uint32_t answers_missing_ = 0;              // slots whose answer is kWaiting
  const StateReplicas* state_replicas_ = nullptr;  // with barrier_
  std::vector<MemberId> sum_holders_;  // kFromHolders: the others take the sums from these
};

}  // namespace lockstep::coordinator
