#include "coordinator/round/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

Error Violation(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

}  // namespace

Pipeline::Pipeline(Job* job, Hooks hooks)
    : job_(job), hooks_(std::move(hooks)), weights_(job->members.slots()) {}

void Pipeline::Begin(Sampler sampler, RoundId first_round, std::uint64_t updates,
                     StateSource source) {
  sampler_ = std::move(sampler);
  updates_ = updates;
  never_committed_ = first_round;
  for (Member& member : job_->members.all()) {
    if (member.live()) member.next = first_round;
  }
  bool exact = false;
  Plan plan = MakePlan(first_round, 0, nullptr, &exact);
  job_->Send(plan.members, Start{source, plan, job_->totals.samples_counted});
  OpenPlanned(std::move(plan), exact);
}

std::optional<RoundId> Pipeline::JoinAt() const {
  if (!begun()) return std::nullopt;
  // Nobody gets in any more; who was left behind may still copy what the job ended with.
  if (done_) return provisional_ ? std::optional(provisional_->commit.round.Next()) : std::nullopt;
  if (failing_over()) {
    if (!provisional_->stalled) return std::nullopt;
    return provisional_->commit.round;
  }
  if (!open_) return std::nullopt;
  return open_->round;
}

const Plan& Pipeline::JoinPlan() const { return failing_over() ? provisional_->plan : open_plan_; }

Status Pipeline::CheckRound(RoundId round) const {
  if (!begun()) return Violation("speaks of a round before the start");
  // While a round is open again, who has not heard of that yet speaks of the one after it.
  if (round > *newest_) {
    return Violation(fmt::format("speaks of round {} while {} is the latest", round, *newest_));
  }
  return {};
}

// Versions of a round's maps grow also over the plans of it that a further attempt at the round
// before has made void: what was said under one of them is not taken for another's.
void Pipeline::NoteMap(RoundId round, std::uint32_t version) {
  if (newest_ && round < *newest_) return;
  newest_version_ = newest_ == round ? std::max(newest_version_, version) : version;
  newest_ = round;
}

bool Pipeline::IsProvisional(RoundId round) const {
  return provisional_ && !provisional_->closed && provisional_->commit.round == round;
}

Status Pipeline::On(Member& from, const Progress& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live() || !open_ || !open_->Concerns(from.id, message.round, message.plan)) return {};
  const policies::WorkerView* view = open_->WorkerViewOf(from.id.worker);
  const std::uint32_t done = view == nullptr ? 0 : view->units_done;
  if (Status status = open_->OnProgress(from.id, message, job_->now); !status) return status;
  if (view != nullptr && view->units_done > done) from.last_progress = job_->now;
  return {};
}

Status Pipeline::On(Member& from, const Sealed& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live()) return {};
  if (!open_ || !open_->Concerns(from.id, message.round, message.plan)) return {};
  from.clock.Guess(job_->now + job_->stopped, message.sealed_ns);
  from.response.Add(job_->now + job_->stopped - from.clock.ToOurs(message.sealed_ns));
  if (Status status = open_->OnSealed(from, message, job_->now); !status) return status;
  if (!std::isfinite(message.loss_sum) && open_->Part(from.id.worker, message.part) != nullptr) {
    OnNotFinite(from, message);
  }
  from.last_progress = job_->now;
  for (const UnitTiming& timing : message.units) {
    if (timing.end_ns > timing.start_ns) {
      from.unit_times.Add(Duration(timing.end_ns) - Duration(timing.start_ns));
    }
  }
  open_->SyncHistory(from);
  return {};
}

void Pipeline::OnNotFinite(const Member& from, const Sealed& message) {
  IntervalSet ranges;
  for (const UnitTiming& timing : message.units) (void)ranges.Add(timing.unit.range);
  std::string samples;
  for (const SampleRange& range : ranges.Ranges()) {
    samples += fmt::format("{}[{}, {})", samples.empty() ? "" : ", ", range.from, range.to);
  }
  std::string what = fmt::format(
      "round {}: the loss or gradient of worker {} over the samples {} of epoch {} is not finite",
      message.round, from.id.worker, samples, open_->epoch);
  if (job_->start.config.job.on_nan == "stop") return job_->Fail(what + " (job.on_nan = stop)");
  job_->Log(LogLevel::kWarning, "{}: it is left out, and its samples are dropped", what);
  open_->Skip(from.id.worker, message.part);
  if (open_->SamplesWanted() == 0) {
    job_->Fail(what + ", and so is every other contribution to the round");
  }
}

Status Pipeline::On(Member& from, const Receipts& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live() || !open_ || message.round != open_->round) return {};
  return open_->OnReceipts(from.id, message, job_->now);
}

Status Pipeline::On(Member& from, const Revoked& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live() || !open_ || message.round != open_->round) return {};
  if (message.fenced) {
    open_->NoteFenceAnswer(from.id, message.order);
    return {};
  }
  auto back = open_->OnRevoked(from.id, message);
  if (!back) return back.error();
  HandOn(from.id.worker, *back);
  return {};
}

Status Pipeline::On(Member& from, const Published& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live() || !IsProvisional(message.round)) return {};
  ProvisionalRound& round = *provisional_;
  if (message.attempt > round.commit.attempt) return Violation("published an attempt to come");
  if (message.attempt < round.commit.attempt) return {};
  const auto& owners = round.commit.owners.owners;
  const auto owner = std::ranges::lower_bound(owners, from.id, {}, &OwnerShare::owner);
  if (owner == owners.end() || owner->owner != from.id)
    return Violation("published sums it does not own");
  std::optional<Duration>& took = round.published[from.id.worker.value];
  if (took) return {};
  took = job_->now - round.committed_at;
  job_->bounds.NotePublication(*took);
  round.moved_at = job_->now;
  if (--round.unpublished == 0) {
    std::vector<MemberId> ids;
    std::vector<Duration> times;
    for (const OwnerShare& share : owners) {
      const std::optional<Duration>& after = round.published[share.owner.worker.value];
      if (!after || *after == Duration::max()) continue;  // it is out
      ids.push_back(share.owner);
      times.push_back(*after);
    }
    weights_.OnRoundPublished(ids, times);
  }
  return {};
}

Status Pipeline::On(Member& from, const Applied& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (!from.live()) return {};
  if (open_ && message.round == open_->round) {
    if (message.attempt >= open_->attempt) return Violation("applied a round that is open");
    // It was catching up when the attempt was given up, so it was not asked.
    job_->PutBehind(from,
                    fmt::format("it has applied round {}, which is open again", open_->round));
    return {};
  }
  if (IsProvisional(message.round)) {
    ProvisionalRound& round = *provisional_;
    const std::uint32_t slot = from.id.worker.value;
    if (message.attempt > round.commit.attempt) return Violation("applied an attempt to come");
    if (message.attempt < round.commit.attempt) {
      job_->PutBehind(from, fmt::format("it has applied attempt {} at round {}, which was replaced",
                                        message.attempt, message.round));
      return {};
    }
    if (round.asked[slot] == ProvisionalRound::Asked::kNo) {
      return Violation("applied an attempt that it said it does not hold");
    }
    if (round.applied[slot] || from.next > message.round) return {};
    round.applied[slot] = true;
    round.moved_at = job_->now;
    if (!round.first_applied_at) round.first_applied_at = job_->now;
    if (round.to_apply > 0) --round.to_apply;
    if (round.to_apply == 0) {
      round.applied_at = job_->now;
      job_->bounds.NoteApplication(job_->now - round.committed_at);
    }
    from.next = message.round.Next();
    if (round.fencing) TakeFromHolders();
  } else if (from.next > message.round) {
    return {};
  }
  from.next = message.round.Next();
  if (open_) open_->NoteApplied(from, job_->now);
  from.last_progress = job_->now;
  from.response.Add(job_->now + job_->stopped - from.clock.ToOurs(message.applied_ns));
  Vote(from, message);
  if (from.live()) hooks_.on_applied(from, message.round);
  return {};
}

void Pipeline::Vote(const Member& from, const Applied& message) {
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
    job_->PutBehind(*member, "its parameters differ from the majority's");
  }
}

Status Pipeline::On(Member& from, const HoldAnswer& message) {
  if (Status status = CheckRound(message.round); !status) return status;
  if (message.order > job_->orders) return Violation("answered what it was not asked");
  if (!from.live() || message.term != job_->start.term || !IsProvisional(message.round)) return {};
  ProvisionalRound& round = *provisional_;
  if (message.attempt > round.commit.attempt) return Violation("answered for an attempt to come");
  if (message.attempt < round.commit.attempt) return {};
  auto& asked = round.asked[from.id.worker.value];
  using Asked = ProvisionalRound::Asked;
  // Asked once more since, or of no matter any more.
  if (asked != Asked::kWaiting || message.order != round.asked_order[from.id.worker.value])
    return {};
  --round.answers_missing;
  asked = message.holds_all ? Asked::kYes : Asked::kNo;
  if (round.fencing && message.holds_all) TakeFromHolders();
  return {};
}

Status Pipeline::On(Member& from, const Unreachable& message) {
  if (message.peer.worker == from.id.worker) return Violation("cannot reach itself");
  Member* peer = job_->members.Find(message.peer);
  // Also of one that is behind or connects: it will need its peers once it is back.
  if (job_->phase != Phase::kTraining || done_ || peer == nullptr || from.leaving) return {};
  if (!job_->members.AddBrokenEdge(from.id.worker, peer->id.worker)) return {};
  edge_broke_at_ = job_->now;
  job_->Log(LogLevel::kWarning, "worker {} cannot reach worker {}: {}", from.id.worker,
            peer->id.worker, message.reason);
  PingAll({from.id.worker, peer->id.worker});
  return {};
}

void Pipeline::OnOut(const MemberId& member, const std::string& why) {
  const WorkerId worker = member.worker;
  if (open_) {
    const policies::WorkerView* view = open_->WorkerViewOf(worker);
    if (view != nullptr && !view->finished_at) {
      Member& slot = job_->members.at(worker);
      slot.held_up_lost += job_->now - std::max(open_->started, slot.last_progress);
    }
    open_->Remove(worker);
    owners_stale_ = owners_stale_ || open_->delivery.IsOwner(worker);
  }
  if (!provisional_ || provisional_->closed) return;
  ProvisionalRound& round = *provisional_;
  round.been_out.push_back(member);
  round.applied[worker.value] = false;
  if (round.asked[worker.value] == ProvisionalRound::Asked::kWaiting) --round.answers_missing;
  round.asked[worker.value] = ProvisionalRound::Asked::kUnasked;
  CountToApply();
  const auto& owners = round.commit.owners.owners;
  const bool owned = std::any_of(owners.begin(), owners.end(),
                                 [&](const OwnerShare& share) { return share.owner == member; });
  if (owned && !round.published[worker.value]) {
    round.published[worker.value] = Duration::max();
    --round.unpublished;
  }
  const bool held =
      std::find(round.holders.begin(), round.holders.end(), member) != round.holders.end();
  if (held) {
    round.holders.clear();
    BeginFailover(fmt::format("worker {}, which held the sums, is out: {}", worker, why));
  } else if (owned && round.holders.empty()) {
    BeginFailover(fmt::format("worker {}, an owner, is out: {}", worker, why));
  } else if (round.commit.attempt.value > 0 && round.unpublished > 0 && round.holders.empty()) {
    // Unlike those of the first attempt, the new owners may not have had its pieces yet.
    const auto& parts = round.commit.parts;
    if (std::any_of(parts.begin(), parts.end(),
                    [&](const CommittedPart& part) { return part.member == member; })) {
      BeginFailover(fmt::format("worker {}, a contributor, is out: {}", worker, why));
    }
  }
}

void Pipeline::OnLevel() {
  if (provisional_ && !provisional_->closed) CountToApply();
}

void Pipeline::Advance() {
  if (!begun() || done_ || job_->failure) return;
  AvoidBrokenEdges();
  if (!job_->leaving.empty()) return;
  CheckProvisional();
  if (!open_ || done_ || !job_->leaving.empty()) return;
  if (job_->now >= stop_at_) return Abandon();
  if (failing_over()) return;  // the open round may be planned anew
  if (owners_stale_) ReplaceOwners({}, "an owner is out");
  FenceUnanswered();
  PlaceOrphans();
  Judge();
}

Time Pipeline::NextDeadline() const {
  if (!begun() || done_) return kNever;
  Time next = kNever;
  if (open_ && failing_over()) {
    next = stop_at_;
  } else if (open_) {
    next = std::min({look_again_, stop_at_, NextReceiptCheck()});
    if (const auto oldest = open_->OldestRevoke()) {
      next = std::min(next, *oldest + job_->bounds.Answer());
    }
  }
  return std::min(next, NextProvisionalCheck());
}

void Pipeline::StopSoon(Time until) {
  stopping_ = true;
  stop_at_ = until;
}

void Pipeline::Recommit() {
  LOCKSTEP_CHECK(provisional_ && !open_, "only the last commit is sent again");
  ProvisionalRound& round = *provisional_;
  hooks_.on_resend(&round.commit, *sampler_);
  job_->Send(job_->members.Exchanging(), round.commit);
}

std::string Pipeline::Waiting() const {
  if (failing_over()) return "asking who holds the sums: " + failover_why_;
  if (!open_) return provisional_ && !done_ ? "waiting for the last round to be applied" : "";
  if (waits_for_quorum_ && job_->members.CountLive() < job_->min_workers) return QuorumText();
  if (!open_->orphans.empty()) {
    return fmt::format("{} units of round {} wait for somebody who can take them",
                       open_->orphans.size(), open_->round);
  }
  policies::RoundView view = open_->View(job_->now, job_->start.workers);
  view.explain = true;
  return job_->policy.closing->Judge(view).reason;
}

}  // namespace lockstep::coordinator
