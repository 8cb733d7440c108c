#include "coordinator/round/commit_draft.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/routes.h"
#include "base/schedule.h"

namespace lockstep::coordinator {
namespace {

// Without a number of rounds or epochs a job is one epoch.
bool IsLast(const JobSection& job, RoundId round, const Sampler& after) {
  if (IsLastRound(job, round)) return true;
  const std::uint32_t epochs = job.epochs > 0 ? job.epochs : job.rounds > 0 ? 0 : 1;
  return epochs > 0 && after.epoch().value >= epochs;
}

// The learning rate, and how much of a step it is.
void SetSteps(const Job& job, const Planner& planner, CommitDraft* draft) {
  const JobConfig& config = job.start.config;
  msg::Commit& commit = draft->commit;
  const Sampler& sampler = draft->before;
  commit.fraction = 1;
  commit.steps = commit.update;
  commit.position = planner.SchedulePosition(sampler, commit.update - 1);
  // The average is not scaled: the steps that it is made of were.
  if (job.policy().local) {
    commit.learning_rate = static_cast<float>(config.policy.local_rate);
    return;
  }
  const std::uint64_t before = sampler.epoch().value * sampler.epoch_samples() + sampler.counted();
  commit.learning_rate = job.ScheduledRate(commit.position);
  if (!config.optimizer.linear_scaling) return;
  commit.fraction = static_cast<float>(StepFraction(commit.samples, config.job.global_batch));
  commit.steps = (before + commit.samples + config.job.global_batch - 1) / config.job.global_batch;
}

}  // namespace

bool IsLastRound(const JobSection& job, RoundId round) {
  return job.rounds > 0 && round.value + 1 >= job.rounds;
}

CommitDraft FirstAttempt(const Job& job, const OpenRound& open, const Sampler& sampler,
                         std::uint64_t update, policies::ClosingVerdict verdict) {
  const RoundWork& work = open.work();
  CommitDraft draft{.commit = {},
                    .reason = std::move(verdict.reason),
                    .policy = job.policy().name,
                    .settled = {},
                    .before = sampler,
                    .after = sampler};
  msg::Commit& commit = draft.commit;
  commit.round = work.round();
  commit.epoch = work.epoch();
  commit.attempt = open.attempt();
  commit.owners = work.owners();
  commit.update = update;
  commit.policy = job.policy().name;
  for (const WorkerId worker : job.members.Slow()) commit.slow.push_back(worker.value);
  for (const policies::PartChoice& choice : verdict.parts) {
    commit.parts.push_back({work.Share(choice.worker)->member, choice.part, choice.weight,
                            work.Part(choice.worker, choice.part)->samples});
  }
  if (!commit.owners.direct()) {
    commit.owners =
        RootsOf(commit.owners.algorithm, commit.owners.version + 1, ContributorsOf(commit));
  }
  return draft;
}

// Parts that are gone are computed again as samples of a later round: they were not settled. The
// rate is that of the first attempt; without some of its parts the loss may be another.
CommitDraft NextAttempt(const CommittedRound& committed, OwnerMap owners) {
  CommitDraft draft{.commit = committed.commit(),
                    .reason = committed.failover_reason(),
                    .policy = {},
                    .settled = {},
                    .before = committed.before(),
                    .after = committed.before()};
  msg::Commit& commit = draft.commit;
  commit.attempt = commit.attempt.Next();
  commit.next.reset();
  commit.owners = std::move(owners);
  std::erase_if(commit.parts, [&](const CommittedPart& part) { return committed.HasLost(part); });
  return draft;
}

// Every attempt computes the update's scalars once for all (I1), and the sampler settles the
// counted samples (I2).
Result<CommitDraft> CompleteDraft(CommitDraft draft, const RoundWork& work, const Job& job,
                                  const Planner& planner, bool stopping) {
  msg::Commit& commit = draft.commit;
  commit.term = job.start.term;
  commit.samples = 0;
  commit.metrics.clear();
  double loss = 0;
  std::uint64_t divisor = 0;
  for (const CommittedPart& part : commit.parts) {
    const SealedPart& sealed = *work.Part(part.member.worker, part.part);
    commit.samples += part.samples;
    divisor += sealed.divisor;
    loss += sealed.loss_sum;
    Merge(sealed.metrics, &commit.metrics);
    for (const UnitTiming& timing : sealed.units) draft.settled.push_back(timing.unit.range);
  }
  LOCKSTEP_CHECK(commit.samples > 0, "round {} is committed over nothing", commit.round);
  // I2: the gradient is divided by what is really in it, in one place for all. If all units have
  // weight zero, as batches without a token to predict, the sum is zero.
  const double scale = divisor > 0 ? 1.0 / static_cast<double>(divisor) : 0;
  commit.scale = static_cast<float>(scale);
  commit.loss = divisor > 0 ? loss / static_cast<double>(divisor) : 0;
  SetSteps(job, planner, &draft);
  // Skipped samples are not served again.
  for (const RoundWork::Skipped& part : work.skipped()) draft.settled.push_back(part.range);
  // Settles the whole commit at once, so that an overlap of any two parts is found here (I2).
  draft.after.Settle(draft.settled);
  draft.epoch_ended = draft.after.epoch() != commit.epoch;
  draft.last = stopping || IsLast(job.start.config.job, commit.round, draft.after);
  if (Status scalars = job.CheckScalars(commit); !scalars) return scalars.error();
  return draft;
}

std::vector<WorkerId> Carried(const RoundWork& work, const msg::Commit& commit) {
  std::vector<WorkerId> carried;
  for (const WorkerShare& share : work.shares()) {
    const WorkerId worker = share.member.worker;
    const bool counted = std::ranges::any_of(
        commit.parts, [&](const CommittedPart& part) { return part.member.worker == worker; });
    // A worker with a skipped part starts the next round with new work.
    const bool skipped = std::ranges::any_of(
        work.skipped(), [&](const RoundWork::Skipped& part) { return part.worker == worker; });
    if (!share.queue.empty() && !counted && !skipped) carried.push_back(worker);
  }
  return carried;
}

}  // namespace lockstep::coordinator
