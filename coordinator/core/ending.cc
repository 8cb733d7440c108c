#include "coordinator/core/ending.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::coordinator {

void Ending::Begin(JobOutcome outcome, std::string reason) {
  outcome_ = outcome;
  reason_ = std::move(reason);
  begun_ = true;
  copied_by_ = job_->now + job_->timeout;
  job_->phase = Phase::kEnding;
}

void Ending::Advance() {
  if (!begun_ || job_->phase == Phase::kFinished) return;
  const bool anybody = job_->members.CountLive() > 0;
  if (!finishing_) {
    if (!anybody || outcome_ != JobOutcome::kCompleted) evaluation_->GiveUp("the job ends");
    if (!anybody) checkpointer_->GiveUp();
    if (evaluation_->running()) return;
    const CommittedRound* last = rounds_->committed();
    if (last != nullptr && anybody && !checkpointer_->Settled(last->round())) {
      if (!checkpointer_->running()) SendLastAgain();      // its writer is out: another one
      if (!checkpointer_->Settled(last->round())) return;  // else there is none
    }
    if (anybody && outcome_ == JobOutcome::kCompleted && OthersCatchUp()) return;
    SayFinish();
  }
  for (const Member& member : job_->members.all()) {
    if (member.live() && !digests_.contains(member.id) && job_->now < deadline_) return;
  }
  std::string digest;
  std::vector<WorkerId> differ;
  if (!Agree(&digest, &differ)) {
    return Finish(JobOutcome::kFailed,
                  "the members' final parameters differ and no majority agrees");
  }
  const CommittedRound* last = rounds_->committed();
  if (last != nullptr && checkpointer_->Settled(last->round()) &&
      !checkpointer_->settled_error().empty()) {
    return Finish(JobOutcome::kFailed, fmt::format("the last checkpoint was not written: {}",
                                                   checkpointer_->settled_error()));
  }
  Finish(outcome_, reason_);
}

void Ending::SendLastAgain() {
  rounds_->SendAgain(checkpointer_->AtCommit(rounds_->committed()->commit(), rounds_->sampler(),
                                             /*epoch_ended=*/false, /*last=*/true));
}

bool Ending::OthersCatchUp() const {
  if (job_->now >= copied_by_) return false;
  return std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    const bool late =
        member.state == MemberState::kBehind || member.state == MemberState::kCatchingUp;
    // Who is not heard of is not waited for.
    return member.connected() && late && job_->now - member.last_heard < job_->timeout / 2;
  });
}

void Ending::SayFinish() {
  finishing_ = true;
  deadline_ = job_->now + job_->bounds.FinalDigest(job_->parameter_bytes());
  std::vector<MemberId> all;
  for (const Member& member : job_->members.all()) {
    if (member.connected()) all.push_back(member.id);
  }
  job_->Send(all, lockstep::Finish{reason_, false});
}

Status Ending::On(Member& from, const Final& message) {
  if (!finishing_) return Error{ErrorCode::kInvalid, "is done before the end"};
  const CommittedRound* last = rounds_->committed();
  const bool current = last == nullptr || message.round == last->round();
  if (from.live() && current) digests_[from.id] = message.params_digest;
  return {};
}

bool Ending::Agree(std::string* digest, std::vector<WorkerId>* differ) const {
  std::map<std::string, std::size_t> votes;
  for (const auto& [id, value] : digests_) ++votes[value];
  for (const auto& [value, count] : votes) {
    if (2 * count > digests_.size()) *digest = value;
  }
  for (const auto& [id, value] : digests_) {
    if (value != *digest) differ->push_back(id.worker);
  }
  return digests_.empty() || !digest->empty();
}

void Ending::Finish(JobOutcome outcome, const std::string& reason) {
  if (job_->phase == Phase::kFinished) return;
  evaluation_->GiveUp("the job ends");
  checkpointer_->GiveUp();
  if (!finishing_) {
    std::vector<MemberId> all;
    for (const Member& member : job_->members.all()) {
      if (member.connected()) all.push_back(member.id);
    }
    job_->Send(all, lockstep::Finish{reason, outcome == JobOutcome::kFailed});
  }
  JobResult result;
  result.outcome = outcome;
  result.reason = reason;
  result.policy = job_->policy.name;
  result.workers = job_->start.workers;
  result.totals = job_->totals;
  result.wall_seconds = job_->SinceStart(job_->now);
  result.train_loss = job_->train_loss;
  if (const auto& evaluated = evaluation_->last()) {
    result.test_accuracy = evaluated->accuracy;
    result.test_loss = evaluated->loss;
  }
  Agree(&result.params_digest, &result.digest_differs);
  for (const WorkerId worker : result.digest_differs) {
    job_->Log(LogLevel::kWarning, "the final parameters of worker {} differ from the majority's",
              worker);
  }
  result.transport = job_->transport;
  result.checkpoint_round = job_->saved_round;
  result.paths = job_->members.Paths();
  for (const Member& member : job_->members.all()) {
    const double compute = Seconds(member.held_up_compute);
    const double link = Seconds(member.held_up_link);
    const double lost = Seconds(member.held_up_lost);
    const double sum = compute + link + lost;
    const double avoided = Seconds(member.would_have_held_up);
    if (sum + avoided <= 0) continue;
    const char* kind = lost >= std::max(compute, link) ? "lost"
                       : link > compute                ? "link"
                                                       : "compute";
    result.stragglers.push_back({member.id.worker, sum, avoided, kind});
  }
  std::stable_sort(result.stragglers.begin(), result.stragglers.end(),
                   [](const StragglerRecord& a, const StragglerRecord& b) {
                     return a.held_up_seconds + a.would_have_held_up_seconds >
                            b.held_up_seconds + b.would_have_held_up_seconds;
                   });
  result.saved_seconds = job_->saved_seconds;
  result.emulation = job_->emulation;
  job_->phase = Phase::kFinished;
  job_->out->push_back(JobFinished{std::move(result)});
}

}  // namespace lockstep::coordinator
