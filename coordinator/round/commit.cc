// Judging, committing, closing.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "base/schedule.h"
#include "coordinator/record/from_round.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {
// Relaxed rounds could follow each other faster than a member with little processor time applies
// them; it would have to catch up again and again. So the next one waits for it, a little.
Time Pipeline::MayCloseFrom() const {
  if (!open_->relaxed || !provisional_ || provisional_->to_apply == 0) return job_->now;
  const Duration usual = job_->bounds.UsualApplication().value_or(std::chrono::milliseconds(5));
  return provisional_->committed_at +
         std::min(std::max(4 * usual, Duration(std::chrono::milliseconds(2))), job_->timeout / 4);
}

void Pipeline::Judge() {
  const policies::RoundView view = open_->View(job_->now, job_->start.workers);
  const policies::WorkVerdict work = job_->policy.work->Judge(view);
  CarryOut(work);
  const policies::ClosingVerdict closing = job_->policy.closing->Judge(
      work.moves.empty() && work.fence.empty() ? view
                                               : open_->View(job_->now, job_->start.workers));
  look_again_ = std::min(work.look_again, closing.look_again);
  if (look_again_ <= job_->now) look_again_ = job_->now + std::chrono::milliseconds(1);
  if (closing.cut) Cut();
  if (const Time from = MayCloseFrom(); closing.close && from > job_->now) {
    look_again_ = std::min(look_again_, from);
    return;
  }
  if (closing.close && TryCommit(closing)) return;
  CheckReceipts();
}

std::string Pipeline::QuorumText() const {
  std::string missing;
  for (const Member& member : job_->members.all()) {
    if (!member.live())
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", member.id.worker);
  }
  return fmt::format("{} of at least {} workers are there; waiting for worker {}",
                     job_->members.CountLive(), job_->min_workers, missing);
}

bool Pipeline::HasQuorum() {
  const bool enough = job_->members.CountLive() >= job_->min_workers;
  if (!enough && !waits_for_quorum_) job_->Log(LogLevel::kWarning, "{}", QuorumText());
  if (enough && waits_for_quorum_) job_->Log(LogLevel::kInfo, "enough workers are there again");
  waits_for_quorum_ = !enough;
  return enough;
}

bool Pipeline::TryCommit(const policies::ClosingVerdict& verdict) {
  if (!open_->orphans.empty() || verdict.parts.empty()) return false;
  std::uint64_t samples = 0;
  std::vector<policies::PartChoice> parts = verdict.parts;
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::tie(a.worker, a.part) < std::tie(b.worker, b.part);
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SealedPart* part = parts[i].worker.value < job_->members.slots()
                                 ? open_->Part(parts[i].worker, parts[i].part)
                                 : nullptr;
    const bool twice =
        i > 0 && parts[i].worker == parts[i - 1].worker && parts[i].part == parts[i - 1].part;
    if (part == nullptr || !part->delivered_at || twice) return false;
    if (!std::isfinite(parts[i].weight) || parts[i].weight <= 0) {
      if (refused_weight_in_ != open_->round) {
        job_->Log(LogLevel::kWarning,
                  "round {}: policy {} gives worker {} the weight {}, which is no positive number: "
                  "the round is not closed like that",
                  open_->round, job_->policy.name, parts[i].worker, parts[i].weight);
      }
      refused_weight_in_ = open_->round;
      return false;
    }
    // Whoever contributes holds the round before whole, and this commit closes it. In a relaxed
    // round that does not follow from having computed something.
    if (open_->relaxed && job_->members.at(parts[i].worker).next < open_->round) return false;
    samples += part->samples;
  }
  if (open_->exact && samples < open_->SamplesWanted()) return false;
  if (!HasQuorum()) return false;

  job_->policy.work->OnCommitted(open_->View(job_->now, job_->start.workers));
  job_->policy.closing->OnCommitted(open_->View(job_->now, job_->start.workers));
  NoteResponses();
  CloseProvisional();
  ProvisionalRound round(*sampler_);
  round.books = std::move(*open_);
  round.plan = std::move(open_plan_);
  round.parts = std::move(parts);
  open_.reset();
  round.verdict = verdict.reason;
  round.policy = job_->policy.name;
  round.attempts = std::move(earlier_attempts_);
  if (round.attempts.empty()) round.attempts.push_back({round.books.attempt, verdict.reason});
  round.moved = std::move(moved_);
  round.commit.round = round.books.round;
  round.commit.epoch = round.books.epoch;
  round.commit.attempt = round.books.attempt;
  round.commit.owners = round.books.owners;
  round.commit.update = ++updates_;
  round.first_committed_at = job_->now;
  for (const policies::PartChoice& choice : round.parts) {
    const SealedPart& part = *round.books.Part(choice.worker, choice.part);
    if (*part.delivered_at > part.ready_at)
      job_->bounds.NoteReceipts(*part.delivered_at - part.ready_at);
    round.delivery = std::max(round.delivery, *part.delivered_at - part.ready_at);
  }
  MakeCommit(std::move(round), /*first=*/true);
  return true;
}

bool Pipeline::IsLastRound(RoundId round) const {
  const std::uint64_t rounds = job_->start.config.job.rounds;
  return stopping_ || (rounds > 0 && round.value + 1 >= rounds);
}

bool Pipeline::IsLast(RoundId round, const Sampler& after) const {
  const JobSection& job = job_->start.config.job;
  if (IsLastRound(round)) return true;
  const std::uint32_t epochs = job.epochs > 0 ? job.epochs : job.rounds > 0 ? 0 : 1;
  return epochs > 0 && after.epoch().value >= epochs;
}

// `position`: updates of whole rounds that were made before.
double Pipeline::Rate(double position) const {
  const JobConfig& config = job_->start.config;
  const std::uint64_t in_epoch =
      (job_->train_samples + config.job.global_batch - 1) / config.job.global_batch;
  const std::uint64_t total =
      config.job.rounds > 0 ? config.job.rounds : std::max(config.job.epochs, 1u) * in_epoch;
  return LearningRate(config.schedule, config.optimizer.lr, position, static_cast<double>(total));
}

// The learning rate, and how much of a step it is.
void Pipeline::SetSteps(ProvisionalRound* round) const {
  const JobConfig& config = job_->start.config;
  Commit& commit = round->commit;
  commit.fraction = 1;
  commit.steps = commit.update;
  // The average is not scaled: the steps that it is made of were.
  if (job_->policy.local) {
    commit.learning_rate = static_cast<float>(config.policy.local_rate);
    return;
  }
  const Sampler& sampler = round->before_settle;
  const std::uint64_t before = sampler.epoch().value * sampler.epoch_samples() + sampler.counted();
  double position = static_cast<double>(commit.update - 1);
  // Commits are as many as contributions; what the schedule counts are the samples.
  if (round->books.relaxed && config.job.rounds == 0) {
    position = static_cast<double>(before) / static_cast<double>(config.job.global_batch);
  }
  commit.learning_rate = static_cast<float>(Rate(position));
  if (!config.optimizer.linear_scaling) return;
  commit.fraction = static_cast<float>(StepFraction(commit.samples, config.job.global_batch));
  commit.steps = (before + commit.samples + config.job.global_batch - 1) / config.job.global_batch;
}

// Makes one attempt known: `round` says over which parts and owners; everything that follows from
// that is computed here, in the first attempt as in a later one. Only a first attempt carries work
// on: in a later one all that was begun since is void.
void Pipeline::MakeCommit(ProvisionalRound round, bool first) {
  Commit& commit = round.commit;
  commit.term = job_->start.term;
  commit.parts.clear();
  commit.samples = 0;
  std::vector<SampleRange> counted;
  for (const policies::PartChoice& choice : round.parts) {
    const SealedPart& part = *round.books.Part(choice.worker, choice.part);
    const MemberId member = round.books.Share(choice.worker)->member;
    commit.parts.push_back({member, choice.part, choice.weight, part.samples});
    commit.samples += part.samples;
    for (const UnitTiming& timing : part.units) counted.push_back(timing.unit.range);
    Member& contributor = job_->members.at(choice.worker);
    if (contributor.id != member) continue;
    contributor.contributed = commit.round;
    if (contributor.owner_on_trial < commit.round) contributor.owner_on_trial.reset();
  }
  LOCKSTEP_CHECK(!commit.parts.empty() && job_->members.CountLive() >= job_->min_workers,
                 "round {} is committed over nothing or without a quorum", commit.round);
  commit.scale = static_cast<float>(1.0 / static_cast<double>(commit.samples));
  SetSteps(&round);

  *sampler_ = round.before_settle;
  round.carried.clear();
  bool carries = first && round.books.relaxed && round.books.pending_revokes == 0 &&
                 !IsLastRound(commit.round);
  if (carries) round.carried = Carried(round);
  // What is skipped is not served again.
  for (const OpenRound::Skipped& part : round.books.skipped) counted.push_back(part.range);
  sampler_->Settle(counted, round.books.RangesOf(round.carried));
  const bool epoch_ended = sampler_->epoch() != commit.epoch;
  const bool last = IsLast(commit.round, *sampler_);
  hooks_.on_commit(&commit, *sampler_, epoch_ended, last);
  if (carries && !job_->policy.relaxed) {  // another policy has taken over
    carries = false;
    round.carried.clear();
    *sampler_ = round.before_settle;
    sampler_->Settle(counted);
  }
  commit.members = job_->members.Exchanging();
  commit.next.reset();
  bool exact = false;
  if (!last) {
    commit.next =
        MakePlan(commit.round.Next(), commit.attempt.value, carries ? &round : nullptr, &exact);
  }

  const std::size_t slots = job_->members.slots();
  never_committed_ = std::max(never_committed_, commit.round.Next());
  round.committed_at = round.moved_at = job_->now;
  round.applied.assign(slots, false);
  round.asked.assign(slots, ProvisionalRound::Asked::kUnasked);
  round.asked_order.assign(slots, 0);
  round.takes_from.assign(slots, std::nullopt);
  round.published.assign(slots, std::nullopt);
  round.unpublished = static_cast<std::uint32_t>(commit.owners.owners.size());
  round.applied_at.reset();
  round.first_applied_at.reset();
  round.holders.clear();
  round.fencing = false;
  round.pinged_at.reset();
  round.published_from = job_->now;
  round.patience = job_->bounds.Publication();
  job_->Send(commit.members, commit);
  open_.reset();
  if (commit.next) {
    OpenPlanned(*commit.next, exact);
    if (commit.next->carries) {
      open_->Carry(round.books, round.carried, job_->members, job_->now);
    }
  }
  provisional_ = std::move(round);
  CountToApply();
}

void Pipeline::CloseProvisional() {
  if (!provisional_ || provisional_->closed) return;
  ProvisionalRound& round = *provisional_;
  round.closed = true;
  // What was left out comes again, in this run or in the one that resumes it.
  const bool follows = stopping_ || round.commit.next.has_value();
  auto record = std::make_shared<const RoundRecord>(
      MakeRecord(*job_, round, votes_.Leading(round.commit.round), follows));
  NoteRound(round, job_);
  job_->totals.rounds += 1;
  job_->totals.samples_counted += round.commit.samples;
  for (const SampleRange& range : record->requeued) job_->totals.samples_requeued += range.size();
  if (!follows) job_->totals.samples_dropped += sampler_->given_back();
  for (const SkippedRecord& skipped : record->skipped) {
    for (const SampleRange& range : skipped.ranges) job_->totals.samples_dropped += range.size();
  }
  for (const MoveRecord& move : record->moved) job_->totals.samples_moved += move.range.size();
  job_->totals.epochs = sampler_->epoch().value;
  job_->train_loss = record->loss;
  job_->out->push_back(RoundClosed{record});
  hooks_.on_closed(*record);
}

void Pipeline::Abandon() {
  job_->Log(LogLevel::kInfo, "round {} is abandoned", open_->round);
  open_.reset();
  if (!provisional_) {
    done_ = true;
    return;
  }
  if (sampler_->round_is_out()) sampler_->Settle({});
  provisional_->commit.next.reset();
  Recommit();
  CheckProvisional();
}

}  // namespace lockstep::coordinator
