#include "coordinator/round/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/sometimes.h"
#include "coordinator/round/part_times.h"

namespace lockstep::coordinator {

using Kind = Decision::Kind;
using Outcome = CommittedRound::Outcome;

Pipeline::Pipeline(Job* job)
    : job_(job),
      planner_(job),
      edges_(job),
      audits_({.share = job->start.config.audit.share,
               .tolerance = job->start.config.audit.tolerance,
               .seed = job->start.config.job.seed},
              job->start.journal.empty() ? AuditRecord() : job->start.journal.back().audit) {}

// The first round has no commit that its plan could ride on, so it goes out with Start.
void Pipeline::Begin(Sampler sampler, RoundId first_round, std::uint64_t updates,
                     StateSource source, bool at_end) {
  LOCKSTEP_CHECK(!begun() && job_->members.CountLive() > 0,
                 "the rounds begin twice, or for nobody");
  sampler_ = std::move(sampler);
  updates_ = updates;
  never_committed_ = first_round;
  for (Member& member : job_->members.all()) {
    if (member.live()) member.next = first_round;
  }
  PlannedRound planned = planner_.PlanRound(first_round, 0, updates_, std::nullopt, &*sampler_);
  OrderAudits(&planned.plan);
  msg::Start start{source, planned.plan, job_->closed().totals.samples_counted};
  at_end_ = at_end;
  if (at_end) start.plan.assignments.clear();
  job_->Send(planned.plan.members, std::move(start));
  open_.emplace(job_, &planner_, std::move(planned));
}

// A newcomer copies the state before this round and gets its commit and all later ones. While a
// fail-over is undecided nobody can say which round that is. When it is stalled for want of a
// quorum, it is the committed round itself, which a newcomer may complete.
std::optional<RoundId> Pipeline::JoinAt() const {
  if (!begun()) return std::nullopt;
  // No member gets in any more; one that is behind may still copy the job's final state.
  if (done_) return committed_ ? committed_->round().Next() : abandoned_;
  if (failing_over()) {
    if (committed_->phase() != CommittedRound::Phase::kStalled) return std::nullopt;
    return committed_->round();
  }
  if (!open_) return std::nullopt;
  return open_->round();
}

// The plan of the round that JoinAt names.
const Plan& Pipeline::JoinPlan() const {
  return failing_over() ? committed_->work().plan() : open_->work().plan();
}

// --- what workers say

// Rounds are numbered by the coordinator, so nobody can know a later one than the latest planned.
Status Pipeline::CheckRound(RoundId round) const {
  if (!begun()) return Violation("speaks of a round before the start");
  // While a round is open again, who has not heard of that yet speaks of the one after it.
  if (round > *planner_.newest()) {
    return Violation(
        fmt::format("speaks of round {} while {} is the latest", round, *planner_.newest()));
  }
  return {};
}

// A message about any other round is stale: that round is closed, or open again.
CommittedRound* Pipeline::CommittedAt(RoundId round) {
  return committed_ && !committed_->closed() && committed_->round() == round ? &*committed_
                                                                             : nullptr;
}

void Pipeline::OnReached(const Member& from, const msg::Reached& message) {
  if (!open_) return;
  for (const PeerPath& path : message.peers) {
    const Member* peer = job_->members.Find(path.peer);
    if (peer == nullptr || !job_->members.Mapped(from.id.worker, peer->id.worker)) continue;
    open_->NoteMapped(from.id, peer->id);
  }
}

// A message about the open round is stale when no round is open, or when its sender was taken out
// of the rounds since.
Status Pipeline::OnProgress(Member& from, const msg::Progress& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  return from.live() && open_ ? open_->OnProgress(from, message) : Status();
}

Status Pipeline::OnSealed(Member& from, const msg::Sealed& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  return from.live() && open_ ? open_->OnSealed(from, message) : Status();
}

Status Pipeline::OnReceipts(Member& from, const msg::Receipts& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  return from.live() && open_ ? open_->OnReceipts(from, message) : Status();
}

Status Pipeline::OnRevoked(Member& from, const msg::Revoked& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  return from.live() && open_ ? open_->OnRevoked(from, message) : Status();
}

Status Pipeline::OnPublished(Member& from, const msg::Published& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  CommittedRound* round = CommittedAt(message.round);
  if (!from.live() || round == nullptr) return {};
  return round->OnPublished(from, message);
}

// Closed rounds count too: a member that lags reports round by round, and that moves its `next` on.
// The open round is possible only when it was committed before and is open again. Then nobody else
// will have the sender's parameters (I1).
Status Pipeline::OnApplied(Member& from, const msg::Applied& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live()) {
    if (from.behind() && from.state != MemberState::kBehindInDoubt) {
      from.applied_behind = {message.round, message.attempt};
      job_->members.SetState(from, MemberState::kBehindApplied, job_->now());
    }
    return {};
  }
  if (open_ && message.round == open_->round()) {
    if (message.attempt >= open_->attempt()) return Violation("applied a round that is open");
    // It was catching up when the attempt was given up, so it was not asked.
    job_->PutInDoubt(from,
                     fmt::format("it has applied round {}, which is open again", open_->round()));
    return {};
  }
  if (CommittedRound* round = CommittedAt(message.round)) {
    const Result<bool> news = round->OnApplied(from, message);
    if (!news) return news.error();
    if (!*news) return {};
    usual_application_ = round->first_application().value_or(usual_application_);
  } else {
    if (from.next > message.round) return {};
    from.next = message.round.Next();
  }
  NoteEndOfRun(message.round, job_->now(), usual_application_, &from);
  if (open_) open_->NoteApplied(from);
  from.last_progress = job_->now();
  from.response.Add(job_->now() + job_->stopped() - from.clock.ToOurs(message.applied_ns));
  Vote(from, message);
  return {};
}

// I1, watched: a digest of a slice of the parameters after each round.
void Pipeline::Vote(const Member& from, const msg::Applied& message) {
  const auto outcome = votes_.Add(from.id, message.round, message.digest_slice, message.digest,
                                  job_->members.CountLive());
  if (outcome.no_majority) {
    job_->Fail(fmt::format("the members' parameters differ after round {} and no majority agrees",
                           message.round));
  }
  for (const MemberId& id : outcome.minority) {
    Member* member = job_->members.Find(id);
    if (member == nullptr || !member->live()) continue;
    job_->Log(LogLevel::kWarning,
              "worker {}: its parameters after round {} differ from the majority's, it catches up",
              id.worker, message.round);
    job_->PutInDoubt(*member, "its parameters differ from the majority's");
  }
}

// An answer of an earlier term was given to a coordinator that is gone: its promise holds, but
// nothing is counted on it.
Status Pipeline::OnHoldAnswer(Member& from, const msg::HoldAnswer& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (message.order > job_->orders()) return Violation("answered what it was not asked");
  if (from.state == MemberState::kBehindAsked && message.order == from.fence_order) {
    const bool asked =
        message.term == job_->start.term && committed_ && message.round == committed_->round();
    if (asked && !message.holds_all) {
      job_->members.SetState(from, MemberState::kBehindDenied, job_->now());
    }
    return {};
  }
  CommittedRound* round = CommittedAt(message.round);
  if (!from.live() || message.term != job_->start.term || round == nullptr) return {};
  return round->OnHoldAnswer(from, message);
}

Status Pipeline::OnHeld(Member& from, const msg::Held& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  CommittedRound* round = CommittedAt(message.round);
  if (!from.live() || round == nullptr) return {};
  const Result<bool> decided = round->OnHeld(from, message);
  if (!decided) return decided.error();
  if (*decided) planner_.replicas().OnDecided(round->commit().owners);
  return {};
}

Status Pipeline::OnAudited(Member& from, const msg::Audited& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (from.live()) Report(audits_.OnAudited(from.id, message));
  return {};
}

Status Pipeline::OnCosts(const Member& from, const msg::Costs& message) {
  if (!sampler_) return Error{ErrorCode::kInvalid, "told costs before the rounds began"};
  return from.live() ? planner_.OnCosts(from.id, message, *sampler_) : Status();
}

Status Pipeline::OnNotFinite(Member& from, const msg::NotFinite& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  CommittedRound* round = CommittedAt(message.round);
  if (!from.live() || round == nullptr) return {};
  return round->OnNotFinite(from, message);
}

Status Pipeline::OnUnreachable(Member& from, const msg::Unreachable& message) {
  if (message.peer.worker != from.id.worker && done_) return {};
  return edges_.OnUnreachable(from, message);
}

// The open round first: a fail-over that begins now finds its units with others already.
void Pipeline::OnOut(const MemberId& member, const std::string& why) {
  planner_.replicas().OnOut(member);
  if (const auto shard = planner_.replicas().Lost(); shard && lost_state_.empty()) {
    lost_state_ = fmt::format(
        "with worker {} the last copy of shard {} of the optimizer's state is lost "
        "(optimizer.replicas = {}): {}",
        member.worker, *shard, job_->start.config.optimizer.replicas, why);
    if (!done_) job_->Fail(lost_state_ + job_->ResumeText());
  }
  audits_.OnOut(member.worker);
  if (open_) open_->OnOut(member);
  if (committed_ && !committed_->closed()) committed_->OnOut(member, why);
}

void Pipeline::NoteAbsence(const Member& member) {
  if (open_) open_->NoteAbsence(member);
}

// It is waited for from now on, unless it has the committed round already.
void Pipeline::OnLevel() {
  if (committed_ && !committed_->closed()) committed_->CountToApply();
}

// The committed round stands, even if members were asked for its sums. A newcomer copies the state
// after it, and gets the plan of the next round. Work for its old plan is void, and its samples
// stay out.
void Pipeline::OnReadmitted() {
  if (committed_) committed_->OnReadmitted();
  if (open_) open_->PlanAnew(open_->work().owners().version + 1);
}

void Pipeline::GiveUpCommitted(const std::string& why) {
  LOCKSTEP_CHECK(committed_, "no round is committed that could be given up");
  committed_->GiveUp(why);
}

// --- what can be done now

// The committed round comes first: a further attempt, or a member put behind, changes the open
// round. While it fails over, the open round waits, as its plan may be replaced.
Decision Pipeline::Decide() {
  if (!begun() || done_ || job_->failure()) return {};
  AvoidBrokenEdges();
  if (!job_->leaving().empty() || !job_->behind().empty()) return {};
  if (Decision decision = CheckCommitted(); decision.kind != Kind::kWait) return decision;
  // Members that were evicted or put behind just now are taken out of the rounds first.
  if (!open_ || !job_->leaving().empty() || !job_->behind().empty()) return {};
  if (job_->now() >= stop_at_) return Abandon();
  if (unsettled()) return {};  // the open round may be planned anew
  if (auto verdict = open_->Advance(MayCloseFrom())) return {Kind::kCommit, std::move(*verdict)};
  return {};
}

// Only a quorum may try again or begin again (I5). With less the round is stalled until a member
// comes, which is asked first whether it holds the sums.
Decision Pipeline::CheckCommitted() {
  if (!committed_ || committed_->closed()) return {};
  if (committed_->phase() == CommittedRound::Phase::kStalled && !job_->HasQuorum()) return {};
  switch (committed_->Check(/*last=*/!open_)) {
    case Outcome::kGoesOn:
      return {};
    case Outcome::kApplied:
      return {open_ ? Kind::kWait : Kind::kClose};
    case Outcome::kNobodyHolds:
      break;
  }
  if (!job_->HasQuorum()) return {};
  // New owners fetch pieces anew: only a live contributor can serve them.
  const bool any_left =
      std::ranges::any_of(committed_->commit().parts,
                          [this](const CommittedPart& part) { return !committed_->HasLost(part); });
  if (const std::string what = committed_->NotFinite(); !any_left && !what.empty()) {
    job_->Fail(what + ", and no other contribution is left");
    return {};
  }
  return {any_left ? Kind::kNextAttempt : Kind::kOpenAgain};
}

// The job stops and the open round does not get done in time: what was computed for it is lost, and
// its samples go back. The committed round becomes the last one; everybody is told by its commit,
// sent again without a next plan.
Decision Pipeline::Abandon() {
  const RoundId round = open_->round();
  if (!at_end_) job_->Log(LogLevel::kInfo, "round {} is abandoned", round);
  open_.reset();
  if (!committed_) {
    abandoned_ = round;
    done_ = true;
    return {};
  }
  if (sampler_->round_is_out()) sampler_->Settle({});
  committed_->DropNext();
  return {Kind::kSendAgain};
}

// Relaxed rounds could follow each other faster than a member with little processor time applies
// them; it would have to catch up again and again. So the next one waits for it, a little.
Time Pipeline::MayCloseFrom() const {
  if (!open_->work().relaxed() || !committed_ || committed_->to_apply() == 0) return job_->now();
  const Duration usual = job_->bounds.UsualApplication().value_or(std::chrono::milliseconds(5));
  return committed_->committed_at() +
         std::min(std::max(4 * usual, Duration(std::chrono::milliseconds(2))), job_->timeout / 4);
}

// While a fail-over goes on nobody judges the open round, so its deadlines wait as well.
Time Pipeline::NextDeadline() const {
  if (!begun() || done_) return kNever;
  Time next = open_ ? stop_at_ : kNever;
  if (open_ && !unsettled()) next = std::min(next, open_->NextDeadline());
  if (committed_) next = std::min(next, committed_->NextDeadline(/*last=*/!open_));
  return next;
}

void Pipeline::AvoidBrokenEdges() {
  if (!job_->members.AnyBroken()) return;
  const std::vector<MemberId> members = job_->members.Exchanging();
  const auto found = edges_.Find(members, replicas());
  if (!found) return;
  const RoundId round = open_ ? open_->round() : committed_->round();
  if (edges_.Resolve(*found, planner_.EligibleFor(round, false), replicas())) return;
  if (open_ && !failing_over()) {
    open_->AvoidBrokenEdges(
        found->counts,
        fmt::format("worker {} and others cannot reach each other", found->worst.worker));
  }
  if (committed_ && !committed_->closed()) committed_->AvoidBrokenEdges(members, found->counts);
}

// --- a commit

bool Pipeline::IsLastRound(RoundId round) const {
  return stopping_ || coordinator::IsLastRound(job_->start.config.job, round);
}

// Changes nothing: until MakeCommit the round is open and its samples are out.
Result<CommitDraft> Pipeline::DraftCommit(policies::ClosingVerdict verdict) const {
  LOCKSTEP_CHECK(open_, "no round is open that could be committed");
  return CompleteDraft(FirstAttempt(*job_, *open_, *sampler_, updates_ + 1, std::move(verdict)),
                       open_->work(), *job_, planner_, stopping_);
}

// Chooses owners among the present members, under a version above all that the round had. So sums
// of the old attempt are not taken for those of the new one.
Result<CommitDraft> Pipeline::DraftNextAttempt() {
  CheckMayTryAgain();
  committed_->LeaveOutNotFinite();
  const RoundId round = committed_->round();
  CommitDraft draft = NextAttempt(
      *committed_,
      planner_.ChooseOwners(round, committed_->commit().owners.version + 1,
                            edges_.Avoiding(planner_.EligibleFor(round.Next(), false))));
  job_->Log(LogLevel::kInfo, "round {}: attempt {} over {} parts", round, draft.commit.attempt,
            draft.commit.parts.size());
  return CompleteDraft(std::move(draft), committed_->work(), *job_, planner_, stopping_);
}

// The open round is dropped. In a first attempt it has become the committed round. In a later
// attempt it was planned after a void attempt, and all its work is void. The sampler is set back to
// before the round and settled anew (I2).
void Pipeline::MakeCommit(CommitDraft draft) {
  msg::Commit& commit = draft.commit;
  const bool first = open_ && open_->round() == commit.round;
  for (const CommittedPart& part : commit.parts) {
    Member& contributor = job_->members.at(part.member.worker);
    if (contributor.id != part.member) continue;
    contributor.contributed = commit.round;
    contributor.owner_trial.OnContributed(commit.round);
  }
  if (first) {
    LOCKSTEP_CHECK(!committed_ || committed_->closed(), "round {} is committed before {} is closed",
                   commit.round, committed_->round());
    CommittedRound::History history;
    history.verdict = draft.reason;
    history.policy = draft.policy;
    history.attempts = open_->TakeAttempts(draft.reason);
    history.first_committed_at = job_->now();
    updates_ = commit.update;
    committed_.emplace(job_, open_->TakeWork(), std::move(draft.before), std::move(history));
    for (const CommittedPart& part : commit.parts) {
      const SealedPart& sealed = *committed_->work().Part(part.member.worker, part.part);
      if (*sealed.delivered_at > sealed.ready_at)
        job_->bounds.NoteReceipts(*sealed.delivered_at - sealed.ready_at);
    }
  } else {
    Sometimes<"fail-over: another attempt">();
    committed_->AddAttempt({commit.attempt, draft.reason});
    votes_.Forget(commit.round);
  }
  open_.reset();

  // Only a first attempt carries work on: in a later one all work since is void.
  const RoundWork& work = committed_->work();
  std::optional<CarriedWork> carried;
  std::vector<WorkerId> carried_workers;
  sampler_ = std::move(draft.after);
  if (first && work.relaxed() && job_->policy().relaxed && work.pending_revokes() == 0 &&
      !IsLastRound(commit.round)) {
    carried_workers = Carried(work, commit);
    carried = CarriedWork{&work, &carried_workers};
    sampler_ = committed_->before();
    sampler_->Settle(draft.settled, work.RangesOf(carried_workers));
  }
  // Members that catch up get it too: they apply it to their copy as soon as they can.
  commit.members = job_->members.Exchanging();
  std::optional<PlannedRound> next;
  if (!draft.last) {
    next = planner_.PlanRound(commit.round.Next(), commit.attempt.value, updates_, carried,
                              &*sampler_);
    OrderAudits(&next->plan);
    commit.next = next->plan;
  }
  LOCKSTEP_CHECK(commit.update == updates_, "update {} is committed as {}", updates_,
                 commit.update);
  never_committed_ = std::max(never_committed_, commit.round.Next());
  // Actions are carried out after the step: nobody sees this before the account below.
  SendCommit(commit, commit.members);
  if (next) {
    open_.emplace(job_, &planner_, std::move(*next));
    if (carried) open_->Carry(*carried);
  }
  committed_->SetCarried(std::move(carried_workers));
  const std::optional<MemberId> gatherer = std::exchange(gathers_, commit.checkpoint_writer);
  if (commit.attempt == Attempt(0)) gathering_ = gatherer.has_value();
  const bool copies = replicas().Copies(commit.owners) || gathering_;
  committed_->BeginAttempt(std::move(commit), copies, replicas());
}

// From now on the round is a fact: its record goes to the run directory, its samples are counted.
// Members that have not applied it get it by catching up.
ClosedRound Pipeline::CloseCommitted() {
  LOCKSTEP_CHECK(committed_, "no round is committed that could be closed");
  committed_->Close();
  // This comes late on purpose: an owner with a stand-in publishes all the same, later than all
  // others, and would seem quick by its absence.
  if (committed_->publication().complete() && committed_->commit().owners.direct()) {
    const auto [owners, took] = committed_->publication().Times();
    planner_.NotePublished(owners, took);
  }
  NoteExchange();
  Report(audits_.OnOver(committed_->round()));
  // Without an open round nothing was planned behind it, so it was the last one.
  if (!open_) done_ = true;
  // Samples that were left out come again, in this run or in one that resumes it.
  const bool follows = stopping_ || committed_->commit().next.has_value();
  return {.round = *committed_,
          .digest = votes_.Leading(committed_->round()),
          .follows = follows,
          .epochs = sampler_->epoch().value,
          .never_counted = follows ? 0 : sampler_->given_back()};
}

void Pipeline::OrderAudits(Plan* plan) {
  plan->audits = audits_.Choose(*plan, planner_.EligibleFor(plan->round, false));
}

void Pipeline::Report(const std::vector<Audits::Finding>& findings) {
  for (const Audits::Finding& finding : findings) {
    if (finding.kind == Audits::Finding::Kind::kWrong) {
      Member& member = job_->members.at(finding.worker->worker);
      job_->wrong_devices.Write().insert(
          {member.hello.host, member.hello.host_id, member.hello.device});
      job_->Evict(member, finding.text, Leaving::Kind::kRefused);
    } else {
      job_->Log(LogLevel::kWarning, "{}", finding.text);
    }
  }
}

// The time from its last part until all had applied it: the part of the exchange that nothing
// hides. Only first attempts that everybody got count.
void Pipeline::NoteExchange() {
  const msg::Commit& commit = committed_->commit();
  if (!committed_->applied_at() || commit.attempt.value > 0) return;
  Time ready;
  for (const CommittedPart& part : commit.parts) {
    ready = std::max(ready, committed_->work().Part(part.member.worker, part.part)->ready_at);
  }
  planner_.NoteExchange(commit.owners.algorithm, *committed_->applied_at() - ready);
}

// No contribution is left to commit: the live members compute the round again.
void Pipeline::OpenAgain() {
  CheckMayTryAgain();
  const RoundId round = committed_->round();
  Sometimes<"fail-over: the round is computed again">();
  LOCKSTEP_CHECK(updates_ == committed_->commit().update, "update {} is taken back out of {}",
                 committed_->commit().update, updates_);
  job_->Log(LogLevel::kWarning, "round {}: no contribution is left, it is computed again", round);
  votes_.Forget(round);
  const msg::Commit& commit = committed_->commit();
  committed_->AddAttempt({commit.attempt.Next(), committed_->failover_reason()});
  sampler_ = committed_->before();
  --updates_;
  std::vector<WorkerId> gone;
  for (const WorkerShare& share : committed_->work().shares()) {
    if (committed_->HasLost(share.member)) gone.push_back(share.member.worker);
  }
  const std::uint32_t owners_version = commit.owners.version;
  std::vector<AttemptRecord> attempts = committed_->TakeAttempts();
  RoundWork work = committed_->TakeWork();
  committed_.reset();
  // Their units become unassigned in the round that is open again.
  for (const WorkerId worker : gone) work.Remove(worker);
  open_.emplace(job_, &planner_, std::move(work), std::move(attempts), owners_version);
}

// A member that has the commit already uses only what is new in it.
void Pipeline::SendAgain(const std::optional<MemberId>& checkpoint_writer) {
  LOCKSTEP_CHECK(committed_ && !open_, "only the last commit is sent again");
  committed_->SetCheckpointWriter(checkpoint_writer);
  SendCommit(committed_->commit(), job_->members.Exchanging());
}

void Pipeline::SendCommit(const msg::Commit& commit, const std::vector<MemberId>& to) {
  job_->Send(to, commit);
  for (const MemberId& id : to) {
    job_->members.at(id.worker).commit_sent = {commit.round, commit.attempt};
  }
}

// The commit waits a little: work that is computed already is worth more than that time.
void Pipeline::StopSoon(Time until) {
  stopping_ = true;
  stop_at_ = until;
}

// Gives the most pressing reason: the one that has to be over before the next one matters.
std::string Pipeline::Waiting() const {
  if (failing_over()) return "asking who holds the sums: " + committed_->failover_reason();
  if (unsettled()) return committed_->barrier()->Waiting();
  if (!open_) return committed_ && !done_ ? committed_->Waiting() : "";
  if (job_->waits_for_quorum() && job_->members.CountPresent() < job_->min_workers()) {
    return job_->QuorumText() + job_->AwayText();
  }
  return open_->Waiting();
}

// O(1), after each step of a job too.
void Pipeline::CheckSequence() const {
  if (!begun()) return;
  LOCKSTEP_CHECK(!open_ || !committed_ || open_->round() == committed_->round().Next(),
                 "round {} is open after {}", open_->round(), committed_->round());
  LOCKSTEP_CHECK(!open_ || !committed_ || !committed_->closed(),
                 "round {} is closed and the next one not committed", committed_->round());
  LOCKSTEP_CHECK(open_ || committed_ || done_, "no round lives");
  LOCKSTEP_CHECK(!done_ || !open_, "round {} is open and the job is done", open_->round());
  LOCKSTEP_CHECK(!open_ || sampler_->round_is_out(), "I2: the samples of round {} are not out",
                 open_->round());
  LOCKSTEP_CHECK(never_committed_ >= first_uncommitted(), "round {} was never committed",
                 never_committed_);
}

// Both ways on from a round that nobody holds give up what was committed: that is right only when
// nobody has it and nobody can get it any more.
void Pipeline::CheckMayTryAgain() const {
  LOCKSTEP_CHECK(committed_ && committed_->phase() == CommittedRound::Phase::kStalled,
                 "a round is tried again that may be held by somebody");
  for (const Member& member : job_->members.all()) {
    LOCKSTEP_CHECK(!member.live() || member.next <= committed_->round(),
                   "I1: worker {} has round {}, which is to be tried again", member.id.worker,
                   committed_->round());
  }
}

// While somebody is to be taken out, the rounds still count on it: what is recounted over the
// members is looked at afterwards.
void Pipeline::CheckInvariants() const {
  CheckSequence();
  if (!begun()) return;
  const bool settled = job_->leaving().empty() && job_->behind().empty();
  for (const Member& member : job_->members.all()) {
    LOCKSTEP_CHECK(!member.live() || member.next <= first_uncommitted(),
                   "I1: worker {} has the parameters before round {}, and {} is not committed",
                   member.id.worker, member.next, first_uncommitted());
  }
  planner_.CheckInvariants();
  votes_.CheckInvariants();
  LOCKSTEP_CHECK(!committed_ || updates_ == committed_->commit().update,
                 "update {} is committed, and {} were made", committed_->commit().update, updates_);
  if (open_ && settled) open_->CheckInvariants();
  if (committed_) committed_->CheckInvariants(settled);
}

}  // namespace lockstep::coordinator
