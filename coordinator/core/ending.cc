#include "coordinator/core/ending.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// That of the last sample that was served; the sampler may stand at the next one's begin.
Epoch EpochBefore(const SamplerState& sampler) {
  const bool begins = sampler.uncounted == std::vector<SampleRange>{{0, sampler.epoch_samples}};
  return Epoch(begins && sampler.epoch.value > 0 ? sampler.epoch.value - 1 : sampler.epoch.value);
}

}  // namespace

// Members that are behind get one time-out to become level and end with the job's result.
void Ending::Begin(JobOutcome outcome, bool early, std::string reason) {
  LOCKSTEP_CHECK(!begun_ && rounds_->done(), "the end begins twice, or before the rounds are done");
  outcome_ = outcome;
  early_ = early;
  reason_ = std::move(reason);
  begun_ = true;
  copied_by_ = job_->now() + job_->timeout;
  job_->phase.Enter(Phase::kEnding);
}

// The last evaluation and checkpoint need live members, so they come before Finish; digests are
// asked for with it. A job whose members differ at the end has failed, whatever else it did (I1).
void Ending::Advance() {
  if (!begun_ || job_->phase() == Phase::kFinished) return;
  const bool anybody = job_->members.CountLive() > 0;
  if (!finishing_) {
    if (!anybody || outcome_ != JobOutcome::kCompleted) evaluation_->GiveUp("the job ends");
    if (!anybody) checkpointer_->GiveUp();
    // Both have deadlines of their own, and give up by themselves.
    if (evaluation_->running()) return;
    const msg::Commit* last = Last();
    if (last != nullptr && anybody && !checkpointer_->IsDecided(last->round)) {
      if (!checkpointer_->running()) AskForCheckpoint();   // its writer is out: another one
      if (!checkpointer_->IsDecided(last->round)) return;  // else there is none
    }
    if (anybody && outcome_ == JobOutcome::kCompleted) {
      // Their time begins when they are back, which their absences' own ends see to.
      const auto absent = [this](const Member& m) { return m.away() && CatchesUp(m); };
      if (job_->members.CountAway() > 0 && std::ranges::any_of(job_->members.all(), absent)) {
        copied_by_ = std::max(copied_by_, job_->now() + job_->timeout);
      }
      if (OthersCatchUp()) return;
    }
    deadline_ = job_->now() + job_->bounds.FinalDigest(job_->parameter_bytes());
    SayFinish(reason_, /*failed=*/false, early_);
  }
  // A member that does not report its digest in time has no vote; that alone is no difference.
  for (const Member& member : job_->members.all()) {
    if (member.live() && !digests_.contains(member.id) && job_->now() < deadline_) return;
  }
  std::string digest;
  std::vector<WorkerId> differ;
  if (!Agree(&digest, &differ)) {
    return Finish(JobOutcome::kFailed,
                  "the members' final parameters differ and no majority agrees");
  }
  // A job that ends without its last checkpoint has lost what it was run for, if that was asked.
  const msg::Commit* last = Last();
  if (last != nullptr && checkpointer_->IsDecided(last->round) &&
      !checkpointer_->decided_error().empty()) {
    return Finish(JobOutcome::kFailed, fmt::format("the last checkpoint was not written: {}",
                                                   checkpointer_->decided_error()));
  }
  Finish(outcome_, reason_);
}

// A writer that is at work when the last copy of a shard is lost may have had it already; whoever
// is asked now has not.
void Ending::AskForCheckpoint() {
  if (rounds_->lost_state().empty()) return SendLastAgain();
  checkpointer_->OnSaved(Last()->round, rounds_->lost_state() + job_->ResumeText());
}

// Its writer is out, or it has become the last one only now: in both cases a member has to write
// the job's last checkpoint.
void Ending::SendLastAgain() {
  LOCKSTEP_CHECK(Last() != nullptr, "there is no last commit");
  if (before_) return SendLastState(0);
  rounds_->SendAgain(checkpointer_->AtCommit(rounds_->committed()->commit(), rounds_->sampler(),
                                             /*epoch_ended=*/false, /*last=*/true));
}

const msg::Commit* Ending::Last() const {
  if (const CommittedRound* last = rounds_->committed()) return &last->commit();
  return before_ ? &before_->commit : nullptr;
}

// All that are live hold it, and vote on its checkpoint as they would after the commit.
void Ending::GoOnFrom(const JobState& last, const Plan& plan) {
  LOCKSTEP_CHECK(!begun_ && rounds_->committed() == nullptr && last.next_round.value > 0,
                 "the job goes on from a last state that is none");
  const std::uint32_t batch = job_->start.config.job.global_batch;
  Before& before = before_.emplace(
      Before{.commit = {}, .after = Sampler(last.sampler, batch, batch), .plan = plan});
  before.commit.round = RoundId(last.next_round.value - 1);
  before.commit.epoch = EpochBefore(last.sampler);
  before.commit.update = last.updates;
  const RoundId round = before.commit.round;
  checkpointer_->OnClosed(round);
  if (job_->saved_round() == round) checkpointer_->OnWritten(round);
  const auto& evaluated = evaluation_->last();
  std::uint32_t evaluation = 0;
  if (!evaluated || evaluated->round != round) {
    evaluation = evaluation_->AtCommit(round, before.commit.epoch, false, /*last=*/true);
    evaluation_->OnClosed(round);
  }
  SendLastState(evaluation);
  for (Member& member : job_->members.all()) {
    if (member.live()) evaluation_->OnApplied(member, round);
  }
}

void Ending::SendLastState(std::uint32_t evaluation) {
  const RoundId round = before_->commit.round;
  std::optional<MemberId> writer;
  if (!checkpointer_->IsDecided(round)) {
    writer = checkpointer_->AtCommit(before_->commit, before_->after, false, /*last=*/true);
  }
  if (!writer && evaluation == 0) return;
  std::vector<MemberId> live;
  for (const Member& member : job_->members.all()) {
    if (member.live()) live.push_back(member.id);
  }
  msg::Start start{StateSource::kPeers, before_->plan, job_->closed().totals.samples_counted};
  start.checkpoint_writer = writer;
  start.evaluation = evaluation;
  job_->Send(live, std::move(start));
}

// The wait is bounded, and only for members that are heard: I6 holds at the end as well.
bool Ending::OthersCatchUp() const {
  return job_->now() < copied_by_ &&
         std::ranges::any_of(job_->members.all(), [&](const Member& m) { return CatchesUp(m); });
}

// A member that is silent is not waited for.
bool Ending::CatchesUp(const Member& member) const {
  const bool late = member.behind() || member.state == MemberState::kCatchingUp;
  return member.connected() && late && job_->now() - member.last_heard < job_->timeout / 2;
}

// The texts follow the order in which Advance waits.
std::string Ending::Waiting() const {
  if (!begun_ || job_->phase() == Phase::kFinished) return "";
  if (finishing_) {
    for (const Member& member : job_->members.all()) {
      if (member.live() && !digests_.contains(member.id)) {
        return fmt::format("waiting for worker {} to say what it ends with", member.id.worker);
      }
    }
    return "";
  }
  if (evaluation_->running()) return "waiting for the last evaluation";
  if (const auto writer = checkpointer_->writer()) {
    return fmt::format("waiting for worker {}, which writes the last checkpoint", writer->worker);
  }
  for (const Member& member : job_->members.all()) {
    if (!CatchesUp(member)) continue;
    if (!member.away()) {
      return fmt::format("waiting for worker {}, which catches up", member.id.worker);
    }
    return fmt::format("waiting for worker {}, which is away: {}", member.id.worker,
                       member.absence->reason);
  }
  return "";
}

// Once nobody catches up, the rest (an evaluation, a checkpoint) has deadlines of its own.
Time Ending::NextDeadline() const {
  if (finishing_) return deadline_;
  return begun_ && job_->now() < copied_by_ ? copied_by_ : kNever;
}

// From now on nobody computes anything but the digest of what it has.
void Ending::SayFinish(const std::string& reason, bool failed, bool early) {
  LOCKSTEP_CHECK(!finishing_, "all are told to finish twice");
  finishing_ = true;
  std::vector<MemberId> all;
  for (const Member& member : job_->members.all()) {
    if (member.connected()) all.push_back(member.id);
  }
  job_->Send(all, msg::Finish{reason, failed, early});
}

// A digest of another round than the last one does not count; its sender was still behind.
Status Ending::OnFinal(Member& from, const msg::Final& message) {
  if (!finishing_) return Error{ErrorCode::kInvalid, "is done before the end"};
  const msg::Commit* last = Last();
  const bool current = last == nullptr || message.round == last->round;
  if (from.live() && current) digests_[from.id] = message.params_digest;
  return {};
}

// A strict majority; an empty set agrees on nothing and differs in nothing.
bool Ending::Agree(std::string* digest, std::vector<WorkerId>* differ) const {
  std::map<std::string, std::size_t> votes;
  for (const auto& [id, value] : digests_) ++votes[value];
  LOCKSTEP_CHECK(digests_.size() <= job_->members.slots(), "I7: {} final digests of {} slots",
                 digests_.size(), job_->members.slots());
  for (const auto& [value, count] : votes) {
    if (2 * count > digests_.size()) *digest = value;
  }
  for (const auto& [id, value] : digests_) {
    if (value != *digest) differ->push_back(id.worker);
  }
  return digests_.empty() || !digest->empty();
}

void Ending::HandOver(const std::string& reason) {
  finishing_ = true;
  Finish(JobOutcome::kHandedOver, reason);
}

// May be called at once and from any phase: running work is given up, and the result says so.
void Ending::Finish(JobOutcome outcome, const std::string& reason) {
  if (job_->phase() == Phase::kFinished) return;
  evaluation_->GiveUp("the job ends");
  checkpointer_->GiveUp();
  if (!finishing_) {
    SayFinish(reason, outcome == JobOutcome::kFailed, outcome == JobOutcome::kInterrupted);
  }
  JobResult result;
  result.outcome = outcome;
  result.reason = reason;
  result.policy = job_->policy().name;
  result.algorithm = rounds_->algorithm().chosen();
  result.algorithm_reason = rounds_->algorithm().reason();
  result.workers = job_->start.workers;
  result.totals = job_->closed().totals;
  result.wall_seconds = job_->SinceStart(job_->now());
  result.train_loss = job_->closed().train_loss;
  result.metrics = job_->closed().metrics;
  if (const auto& evaluated = evaluation_->last()) {
    result.test_accuracy = evaluated->accuracy;
    result.test_loss = evaluated->loss;
  }
  result.dataset_digest = job_->agreed().dataset_digest;
  Agree(&result.params_digest, &result.digest_differs);
  for (const WorkerId worker : result.digest_differs) {
    job_->Log(LogLevel::kWarning, "the final parameters of worker {} differ from the majority's",
              worker);
  }
  if (job_->start.config.audit.share > 0) result.audit = rounds_->audits();
  result.transport = job_->transport();
  result.checkpoint_round = job_->saved_round();
  result.paths = job_->members.Paths();
  // Counts by slot, over all incarnations: a machine that comes back is one straggler. Its kind is
  // the cause of most of its cost.
  for (const Member& member : job_->members.all()) {
    const double compute = Seconds(member.blocked_by_compute);
    const double data = Seconds(member.blocked_by_data);
    const double link = Seconds(member.blocked_by_link);
    const double lost = Seconds(member.blocked_by_loss);
    const double sum = compute + data + link + lost;
    const double avoided = Seconds(member.would_have_blocked);
    if (sum + avoided <= 0) continue;
    // A worker that held up nobody was left out each time or had less to do. It computes or reads
    // slowly, and the policy has avoided the delay.
    const double slow = compute + avoided;
    const bool was_lost = lost > 0 && lost >= std::max({slow, data, link});
    const char* kind = was_lost                                ? "lost"
                       : link > std::max(slow, data)           ? "link"
                       : data > slow                           ? "data"
                       : job_->members.IsSlowAtReading(member) ? "input"
                                                               : "compute";
    result.stragglers.push_back({member.id.worker, sum, avoided, kind});
  }
  // The worst first, since it is read from the top.
  std::stable_sort(result.stragglers.begin(), result.stragglers.end(),
                   [](const StragglerRecord& a, const StragglerRecord& b) {
                     return a.held_up_seconds + a.would_have_held_up_seconds >
                            b.held_up_seconds + b.would_have_held_up_seconds;
                   });
  result.saved_seconds = job_->closed().saved_seconds;
  result.sent = job_->closed().sent;
  result.emulation = job_->emulation();
  job_->phase.Enter(Phase::kFinished);
  job_->Emit(JobFinished{std::move(result)});
}

}  // namespace lockstep::coordinator
