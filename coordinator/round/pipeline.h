// The heart: rounds are planned, closed by the policy, committed, carried through failures and
// closed for good. Pipelined by one: `provisional` is committed and perhaps not applied everywhere,
// `open` is computed. Commit(r + 1) closes r, because whoever contributed to r + 1 holds r whole.
//
//   pipeline.cc     what workers say, who is out, the timer
//   planner.cc      who computes what, who owns
//   moves.cc        work that moves within a round: revoked, fenced, orphaned
//   commit.cc       judging, committing, closing
//   owner_watch.cc  silent owners before the commit, broken edges
//   failover.cc     silent or lost owners after the commit: fence, holder, next attempt
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/core/context.h"
#include "coordinator/record/records.h"
#include "coordinator/round/digest_votes.h"
#include "coordinator/round/open_round.h"
#include "coordinator/round/owner_weights.h"
#include "coordinator/round/sampler.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// A committed round that no later commit has closed yet.
struct ProvisionalRound {
  enum class Asked : std::uint8_t { kUnasked, kWaiting, kNo, kYes };

  explicit ProvisionalRound(Sampler sampler) : before_settle(std::move(sampler)) {}

  Sampler before_settle;  // to settle the round anew in a further attempt
  OpenRound books;
  Plan plan;
  std::vector<policies::PartChoice> parts;  // by worker, then part
  // Who has been out since the first commit: even if it is live again, it has lost what it had of
  // this round, and knows of no parts of it.
  std::vector<MemberId> been_out;
  Commit commit;  // of the current attempt
  std::string verdict;
  std::string policy;  // that gave it
  std::vector<AttemptRecord> attempts;
  std::vector<MoveRecord> moved;
  std::vector<WorkerId> carried;  // their work goes on in the next round
  Time first_committed_at;
  Duration delivery{};  // the longest that a committed part took from sealed to delivered
  bool closed = false;

  // Of this attempt; vectors by slot.
  Time committed_at;
  Time moved_at;                                   // somebody has published or applied it
  std::vector<bool> applied;                       // said so
  std::uint32_t to_apply = 0;                      // live members of the commit that have not
  std::optional<Time> applied_at;                  // by the last of them
  std::optional<Time> first_applied_at;            // by the first one
  std::vector<std::optional<Duration>> published;  // owners: after this long
  std::uint32_t unpublished = 0;
  Time published_from;  // the deadline for publication counts from here
  Duration patience{};
  std::optional<Time> pinged_at;
  std::uint32_t extensions = 0;

  // Fail-over.
  bool fencing = false;  // answers are awaited
  bool stalled = false;  // nobody holds the sums, and there is no quorum for the next attempt
  Time fence_until;
  std::vector<Asked> asked;
  std::vector<std::uint32_t> asked_order;  // by slot; of the last question
  std::uint32_t answers_missing = 0;
  std::vector<MemberId> holders;                    // the others take the sums from these
  std::vector<std::optional<MemberId>> takes_from;  // by slot: who was told to, and from whom
};

class Pipeline {
 public:
  // What others must do when a commit is made, a round is closed, a member has applied.
  struct Hooks {
    // May set commit->evaluation and commit->checkpoint_writer. `after`: the sampler after it.
    std::function<void(Commit* commit, const Sampler& after, bool epoch_ended, bool last)>
        on_commit;
    // The last commit is sent again. May set commit->checkpoint_writer.
    std::function<void(Commit* commit, const Sampler& after)> on_resend;
    std::function<void(const RoundRecord& record)> on_closed;
    std::function<void(Member& member, RoundId round)> on_applied;
  };

  Pipeline(Job* job, Hooks hooks);

  // All members that are live take part. `updates`: made before.
  void Begin(Sampler sampler, RoundId first_round, std::uint64_t updates, StateSource source);

  // --- messages; an error is a violation of the protocol by the sender
  Status On(Member& from, const Progress& message);
  Status On(Member& from, const Sealed& message);
  Status On(Member& from, const Receipts& message);
  Status On(Member& from, const Revoked& message);
  Status On(Member& from, const Published& message);
  Status On(Member& from, const Applied& message);
  Status On(Member& from, const HoldAnswer& message);
  Status On(Member& from, const Unreachable& message);

  // The member takes no part any more: gone, or behind. It is not live when this is called.
  void OnOut(const MemberId& member, const std::string& why);
  void OnLevel();  // a member has become live

  // An edge also breaks when an end of it dies; who has been heard since the last one broke has
  // not.
  bool HeardSinceEdgeBroke(WorkerId worker) const {
    return job_->members.at(worker).last_heard > edge_broke_at_;
  }

  // Does all that can be done now: judges, commits, fails over. After each event.
  void Advance();
  Time NextDeadline() const;

  // The open round is to be the last; at `until` it is abandoned.
  void StopSoon(Time until);
  // Sends the last commit once more, for another checkpoint writer.
  void Recommit();

  bool begun() const { return sampler_.has_value(); }
  bool done() const { return done_; }  // the last round is closed
  // The first round whose commit a newcomer will get; nothing while it is undecided.
  std::optional<RoundId> JoinAt() const;
  const Plan& JoinPlan() const;
  // The first round that nobody can have applied.
  // The first round that was never committed: of one that is open again, members may speak for a
  // while as of one that is committed, and of the round after it as of an open one.
  RoundId never_committed() const { return never_committed_; }
  RoundId first_uncommitted() const {
    return open_ ? open_->round : provisional_ ? provisional_->commit.round.Next() : RoundId(0);
  }
  // Every round before it is closed; also while it is open again, and none is provisional.
  RoundId first_not_closed() const {
    return provisional_ ? provisional_->commit.round : first_uncommitted();
  }
  const OpenRound* open() const { return open_ ? &*open_ : nullptr; }
  const ProvisionalRound* provisional() const { return provisional_ ? &*provisional_ : nullptr; }
  const Sampler& sampler() const { return *sampler_; }
  std::uint64_t updates() const { return updates_; }
  std::string Waiting() const;  // who is waited for and why; for people

 private:
  // pipeline.cc
  Status CheckRound(RoundId round) const;
  void NoteMap(RoundId round, std::uint32_t version);
  bool IsProvisional(RoundId round) const;
  void Vote(const Member& from, const Applied& message);
  void OnNotFinite(const Member& from, const Sealed& message);

  // planner.cc
  std::vector<MemberId> EligibleFor(RoundId round, bool exact) const;
  std::vector<MemberId> Responsive(const std::vector<MemberId>& members) const;
  std::vector<std::uint32_t> ShareUnits(const std::vector<MemberId>& members, std::uint32_t units);
  std::vector<WorkerId> Carried(const ProvisionalRound& round) const;
  PlannedUnits PlanUnits(const ProvisionalRound* before, std::size_t eligible);
  // `before`: the round whose work is carried on, if it is.
  Plan MakePlan(RoundId round, std::uint32_t map_version, const ProvisionalRound* before,
                bool* exact);
  void PlanAnew();
  void OpenPlanned(Plan plan, bool exact);

  // moves.cc
  void CarryOut(const policies::WorkVerdict& verdict);
  void Cut();
  void HandOn(WorkerId from, const OpenRound::GivenBack& back);
  bool OthersRemain(WorkerId worker) const;
  void FenceWorker(WorkerId worker, const std::string& why);
  void FenceUnanswered();
  bool CanTake(const Member& member) const;
  void GiveTo(Member& taker, const std::vector<Orphan>& units);
  void PlaceOrphans();
  void SpreadOrphans(const std::vector<Member*>& takers);

  // commit.cc
  void Judge();
  Time MayCloseFrom() const;
  bool HasQuorum();
  std::string QuorumText() const;
  bool TryCommit(const policies::ClosingVerdict& verdict);
  bool IsLastRound(RoundId round) const;  // whatever is counted
  bool IsLast(RoundId round, const Sampler& after) const;
  double Rate(double position) const;
  void SetSteps(ProvisionalRound* round) const;
  void MakeCommit(ProvisionalRound round, bool first);
  void CloseProvisional();
  void Abandon();

  // owner_watch.cc
  bool HeardSince(WorkerId worker, Time t) const;
  void PingAll(const std::vector<WorkerId>& workers);
  void ResetReceiptCheck();
  Time NextReceiptCheck() const;
  void CheckReceipts();
  std::vector<WorkerId> BlameForReceipts(Time pinged_at) const;
  void ReplaceOwners(const std::vector<WorkerId>& silent, const std::string& why);
  void AvoidBrokenEdges();
  void NoteResponses();

  // failover.cc
  bool HasLost(const ProvisionalRound& round, const MemberId& member) const;
  bool MustApply(const Member& member) const;
  void CountToApply();
  Time PublicationCheck() const;
  Duration ApplyPatience() const;
  Time NextProvisionalCheck() const;
  void CheckProvisional();
  void CheckPublication();
  Time LateFrom() const;
  bool failing_over() const {
    return provisional_ && !provisional_->closed &&
           (provisional_->fencing || provisional_->stalled);
  }
  void BeginFailover(const std::string& why);
  bool AskWhoHolds();
  std::vector<MemberId> Holders() const;
  bool TakeFromHolders();
  void SendToHolder(Member& member, const MemberId& holder);
  void AvoidBrokenHolders();
  bool StandsInParameters();
  void ResolveFailover();
  void NextAttempt();
  void ReopenRound(ProvisionalRound round);

  Job* job_;
  Hooks hooks_;
  std::optional<Sampler> sampler_;
  std::uint64_t updates_ = 0;  // committed

  std::optional<OpenRound> open_;
  Plan open_plan_;
  std::vector<MoveRecord> moved_;                // in the open round
  std::vector<AttemptRecord> earlier_attempts_;  // when the open round was re-opened
  std::optional<ProvisionalRound> provisional_;  // once closed it stays until the next commit
  DigestVotes votes_;
  std::optional<RoundId> newest_;     // that was ever open
  std::uint32_t newest_version_ = 0;  // of its owner maps
  RoundId never_committed_;

  OwnerWeights weights_;
  bool owners_stale_ = false;  // an owner of the open round is out
  Time look_again_ = kNever;   // the policy's
  Time receipts_from_;
  Duration receipt_patience_{};
  std::optional<Time> receipt_pinged_at_;

  Time edge_broke_at_;  // the latest
  std::string failover_why_;
  bool waits_for_quorum_ = false;
  std::optional<RoundId> refused_weight_in_;  // of a policy; said once a round
  bool stopping_ = false;
  Time stop_at_ = kNever;
  bool done_ = false;
};

}  // namespace lockstep::coordinator
