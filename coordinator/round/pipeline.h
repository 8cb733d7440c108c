// The sequence of rounds: planned, open, committed, closed. Pipelined by one: while a round is
// published and applied, the next one is computed. Commit(r + 1) closes r, because whoever
// contributed to r + 1 holds r whole.
//
//   planner.h          who computes what, who owns
//   open_round.h       the round that is computed
//   committed_round.h  the round that is published and applied, or failed over
//   publication.h      which owners have published an attempt, and who stands in for which
//   commit_draft.h     what follows from the parts of a commit
//   broken_edges.h     members that do not reach each other
//
// In: what workers say, who is out, the time. Out: from Decide what is to be done next about a
// round. The pipeline never calls out: the coordinator carries a decision out, because other parts
// are concerned. A commit names who evaluates and who writes a checkpoint, and the next round may
// have another policy.
//
// Invariants:
//   -   at most two rounds live: the open one follows the committed one. Dropping a round drops all
//       that is known of it alone.
//   I1  no live member has more rounds in its parameters than were committed: its next round is at
//       most the open one's.
//   I2  the sampler has settled each committed round over exactly what its commit counts; while a
//       round is open its samples are out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/job/records.h"
#include "coordinator/round/audits.h"
#include "coordinator/round/broken_edges.h"
#include "coordinator/round/commit_draft.h"
#include "coordinator/round/committed_round.h"
#include "coordinator/round/digest_votes.h"
#include "coordinator/round/open_round.h"
#include "coordinator/round/planner.h"
#include "coordinator/round/sampler.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// The next action; see Coordinator::AdvanceRounds.
struct Decision {
  enum class Kind : std::uint8_t {
    kWait,
    kCommit,       // the open round, over `verdict`; that closes the committed one
    kClose,        // the last round: all have applied it
    kNextAttempt,  // nobody holds the sums, and parts are left
    kOpenAgain,    // nobody holds the sums, and no part is left
    kSendAgain,    // the open round is abandoned: the committed one was the last
  };
  Kind kind = Kind::kWait;
  policies::ClosingVerdict verdict = {};
};

// A round that is a fact from now on, as long as it stays (Pipeline::committed).
struct ClosedRound {
  const CommittedRound& round;
  std::optional<DigestRecord> digest;
  bool follows = false;             // what was left out will be served again
  std::uint32_t epochs = 0;         // finished
  std::uint64_t never_counted = 0;  // samples given back, where nothing follows
};

class Pipeline {
 public:
  explicit Pipeline(Job* job);

  // With optimizer.replicas, before Begin: who holds what the job goes on from (StateReplicas).
  void GoOnWith(std::vector<std::vector<MemberId>> holders) {
    planner_.replicas().GoOnWith(std::move(holders));
  }
  // All live members take part. `updates`: made before. `at_end`: nobody computes anything, as all
  // rounds of the job are done, and StopSoon follows.
  void Begin(Sampler sampler, RoundId first_round, std::uint64_t updates, StateSource source,
             bool at_end = false);

  // --- messages; an error is a violation of the protocol by the sender
  Status OnProgress(Member& from, const msg::Progress& message);
  Status OnSealed(Member& from, const msg::Sealed& message);
  Status OnReceipts(Member& from, const msg::Receipts& message);
  Status OnRevoked(Member& from, const msg::Revoked& message);
  Status OnPublished(Member& from, const msg::Published& message);
  Status OnApplied(Member& from, const msg::Applied& message);
  Status OnHoldAnswer(Member& from, const msg::HoldAnswer& message);
  Status OnHeld(Member& from, const msg::Held& message);
  Status OnNotFinite(Member& from, const msg::NotFinite& message);
  Status OnAudited(Member& from, const msg::Audited& message);
  Status OnCosts(const Member& from, const msg::Costs& message);
  void OnCopied(const Member& from, const msg::Copied& message) {
    if (from.live() && committed_) committed_->OnCopied(from, message);
  }
  Status OnUnreachable(Member& from, const msg::Unreachable& message);
  // How it reaches others may have changed.
  void OnReached(const Member& from, const msg::Reached& message);

  // The member takes no part any more: gone, or behind. The member is not live when this is called.
  void OnOut(const MemberId& member, const std::string& why);
  void OnLevel();                          // a member has become live
  void NoteAbsence(const Member& member);  // it goes away, or is back
  // A member that is live now has the committed round in its parameters, and nobody else does. The
  // open round has no work left, though that member may think that it has units of it.
  void OnReadmitted();
  // No live member has the committed round or can get it: the live ones compute it again.
  void GiveUpCommitted(const std::string& why);

  // Does all that can be done now within the rounds. Says what is to be done about them; when that
  // is done it is asked again.
  Decision Decide();
  Time NextDeadline() const;

  // --- what a decision is carried out by
  // kCommit. An error is why the job cannot go on, and nobody has heard of the commit.
  Result<CommitDraft> DraftCommit(policies::ClosingVerdict verdict) const;
  Result<CommitDraft> DraftNextAttempt();  // kNextAttempt; likewise
  // Plans the next round under the policy that is in force now, opens it, and sends both.
  void MakeCommit(CommitDraft draft);
  ClosedRound CloseCommitted();
  void OpenAgain();
  // The last commit, with another checkpoint writer. Without `next`, if there was one.
  void SendAgain(const std::optional<MemberId>& checkpoint_writer);

  // The open round is to be the last; at `until` it is abandoned.
  void StopSoon(Time until);

  bool begun() const { return sampler_.has_value(); }
  bool done() const { return done_; }  // the last round is closed
  // The first round whose commit a newcomer will get; nothing while it is undecided.
  std::optional<RoundId> JoinAt() const;
  const Plan& JoinPlan() const;
  // The first round that nobody can have applied.
  RoundId first_uncommitted() const {
    return open_ ? open_->round() : committed_ ? committed_->round().Next() : abandoned_;
  }
  // The first round that was never committed. A round that is open again was committed before, so
  // members may speak of it as committed for a while, and of the next one as open.
  RoundId never_committed() const { return never_committed_; }
  // Every round before it is closed; also while it is open again, and none is committed.
  RoundId first_not_closed() const {
    return committed_ ? committed_->round() : first_uncommitted();
  }
  const OpenRound* open() const { return open_ ? &*open_ : nullptr; }
  // Once closed it stays until the next commit.
  const CommittedRound* committed() const { return committed_ ? &*committed_ : nullptr; }
  const Sampler& sampler() const { return *sampler_; }
  // The replicas of the optimizer's state (optimizer.replicas).
  const StateReplicas& replicas() const { return planner_.replicas(); }
  // Names the part of the optimizer's state that is lost, and why; empty: nothing is lost.
  const std::string& lost_state() const { return lost_state_; }
  const AlgorithmChoice& algorithm() const { return planner_.algorithm(); }
  const AuditRecord& audits() const { return audits_.record(); }
  std::uint64_t updates() const { return updates_; }
  std::string Waiting() const;  // who is waited for and why; for people

  // The cheap ones, after each step: O(1).
  void CheckSequence() const;
  // Checks all invariants, also those of the rounds: O(units).
  void CheckInvariants() const;

 private:
  // I1: nobody holds the committed round, nor has it in its parameters.
  void CheckMayTryAgain() const;
  Status CheckRound(RoundId round) const;
  CommittedRound* CommittedAt(RoundId round);  // null: another one, or it is closed
  bool failing_over() const { return committed_ && committed_->failing_over(); }
  // The committed round may get another attempt, and its plan with it.
  bool unsettled() const {
    return committed_ && (committed_->failing_over() || committed_->undecided());
  }
  void Vote(const Member& from, const msg::Applied& message);
  void AvoidBrokenEdges();
  Decision CheckCommitted();
  Decision Abandon();
  Time MayCloseFrom() const;

  bool IsLastRound(RoundId round) const;  // whatever is counted
  void NoteExchange();
  void OrderAudits(Plan* plan);
  void Report(const std::vector<Audits::Finding>& findings);
  void SendCommit(const msg::Commit& commit, const std::vector<MemberId>& to);

  Job* job_;
  Planner planner_;
  BrokenEdges edges_;
  Audits audits_;
  std::optional<Sampler> sampler_;
  std::optional<OpenRound> open_;
  std::optional<CommittedRound> committed_;
  DigestVotes votes_;             // of the two latest rounds
  std::uint64_t updates_ = 0;     // committed
  Duration usual_application_{};  // from the last commit to the first who had applied it
  RoundId never_committed_;
  // The member that gathers the state of the committed round for a checkpoint, and whether one does
  // so of the round before.
  std::optional<MemberId> gathers_;
  bool gathering_ = false;
  std::string lost_state_;

  bool stopping_ = false;
  Time stop_at_ = kNever;
  bool done_ = false;
  bool at_end_ = false;  // from the begin
  RoundId abandoned_;  // the job stopped in it, and no round is committed: the first, or one again
};

}  // namespace lockstep::coordinator
