#include "coordinator/core/machines.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/registry.h"

namespace lockstep::coordinator {

std::uint32_t UnitsPerRound(const StartParameters& start) {
  const JobSection& job = start.config.job;
  const PolicySection& policy = start.config.policy;
  const std::uint64_t each = policy.local() ? std::max(4u, policy.local_steps) : 4;
  const auto units = static_cast<std::uint32_t>(
      job.units > 0 ? job.units : std::min<std::uint64_t>(each * start.workers, job.global_batch));
  return std::min(units, job.global_batch);
}

Coordinator::Machines::Machines(StartParameters start, policies::Policy policy,
                                std::uint32_t min_workers)
    : job(std::move(start), std::move(policy), min_workers),
      admission(&job),
      formation(&job),
      rounds(&job, MakeHooks()),
      streams(&job),
      joining(&job, &rounds, &streams),
      relinking(&job),
      liveness(&job),
      evaluation(&job),
      checkpointer(&job),
      ending(&job, &rounds, &evaluation, &checkpointer),
      slowdowns(&job),
      draining(&job, &rounds) {
  if (!job.start.resume) return;
  const JobState& state = *job.start.resume;
  job.agreed = true;
  job.agreed_by = "the checkpoint";
  job.dataset_digest = state.dataset_digest;
  job.train_samples = state.sampler.epoch_samples;
  job.test_samples = state.test_samples;
  job.parameter_count = state.parameter_count;
  job.state_tensors = state.state_tensors;
  job.tensors = state.tensors;
  job.state_names = state.state_names;
  job.totals = state.totals;
  job.saved_round = RoundId(state.next_round.value - 1);
}

Pipeline::Hooks Coordinator::Machines::MakeHooks() {
  Pipeline::Hooks hooks;
  hooks.on_commit = [this](Commit* commit, const Sampler& after, bool epoch_ended, bool last) {
    const bool final_one = last && !stopping;
    commit->evaluation = evaluation.AtCommit(commit->round, commit->epoch, epoch_ended, final_one);
    checkpointer.AtCommit(commit, after, epoch_ended, last);
    if (!last) ExchangePolicy();
  };
  hooks.on_resend = [this](Commit* commit, const Sampler& after) {
    checkpointer.AtCommit(commit, after, false, true);
  };
  hooks.on_closed = [this](const RoundRecord& record) {
    checkpointer.OnClosed(record.round);
    evaluation.OnClosed(record.round);
    NoteSpeed(record);
  };
  hooks.on_applied = [this](Member& member, RoundId round) { evaluation.OnApplied(member, round); };
  return hooks;
}

void Coordinator::Machines::Step(Event event) {
  std::visit([this](auto&& e) { On(std::forward<decltype(e)>(e)); }, std::move(event));
  Settle();
}

void Coordinator::Machines::Settle() {
  if (job.now < reading_until) return;
  if (liveness.Tick(rounds.open(), rounds.first_not_closed())) {
    admission.Tick();
    evaluation.Tick();
    checkpointer.Tick();
    streams.Tick();
  }
  do {
    Drain();
    if (job.phase == Phase::kFinished) return;
    if (!job.failure && AwaitsLevel()) return;
    if (job.failure) return ending.Finish(JobOutcome::kFailed, *job.failure);
    if (formation.Advance()) BeginTraining();
    if (job.phase == Phase::kTraining && !rounds.begun()) StartRounds();
    relinking.Advance();
    rounds.Advance();
    joining.Advance();
    draining.Advance();
    EndIfShort();
    if (rounds.done() && job.phase == Phase::kTraining) {
      ending.Begin(stopping ? JobOutcome::kInterrupted : JobOutcome::kCompleted,
                   stopping ? stop_reason : "all rounds are done");
    }
    ending.Advance();
  } while (!job.leaving.empty() || !job.behind.empty() ||
           (job.failure && job.phase != Phase::kFinished));
}

void Coordinator::Machines::Drain() {
  while (!job.behind.empty()) {
    const Leaving behind = std::move(job.behind.front());
    job.behind.pop_front();
    rounds.OnOut(behind.member, behind.reason);
    evaluation.OnOut(behind.member);
    checkpointer.OnOut(behind.member);
  }
  while (!job.leaving.empty()) {
    const Leaving leaving = std::move(job.leaving.front());
    job.leaving.pop_front();
    Remove(leaving);
  }
}

bool Coordinator::Machines::AwaitsLevel() {
  if (job.phase != Phase::kTraining || !rounds.begun() || job.members.CountLive() > 0) {
    nobody_live_since.reset();
    return false;
  }
  if (!nobody_live_since) nobody_live_since = job.now;
  if (joining.MayBecomeLevel() && job.now < *nobody_live_since + job.bounds.Answer()) return true;
  job.Fail(
      "no worker holds the parameters any more; the job can be resumed from its last checkpoint");
  return false;
}

void Coordinator::Machines::Remove(const Leaving& leaving) {
  Member& member = job.members.at(leaving.member.worker);
  const MemberState state = member.state;
  // At the end everybody goes.
  job.Log(job.phase == Phase::kEnding ? LogLevel::kDebug : LogLevel::kWarning,
          "worker {} is out: {}", member.id.worker, leaving.reason);
  if (leaving.refuse) {
    job.out->push_back(
        Send{{member.connection}, std::make_shared<const ToWorker>(Refuse{leaving.reason, false})});
  }
  if (!leaving.disconnected) job.out->push_back(Close{member.connection, leaving.reason});
  job.members.Free(member, job.now);
  streams.OnOut(leaving.member);
  if (state != MemberState::kJoining && state != MemberState::kReady) {
    std::vector<MemberId> others;
    for (const Member& other : job.members.all()) {
      if (other.connected() && other.state != MemberState::kJoining) others.push_back(other.id);
    }
    job.Send(others, MemberLeft{leaving.member, leaving.reason});
    formation.OnOut(leaving.member);
  }
  joining.OnOut(leaving.member);
  relinking.OnOut(leaving.member);
  rounds.OnOut(leaving.member, leaving.reason);
  evaluation.OnOut(leaving.member);
  checkpointer.OnOut(leaving.member);
}

void Coordinator::Machines::BeginTraining() {
  job.phase = Phase::kTraining;
  job.bounds.NotePaths(job.parameter_bytes(), job.members.SlowestPath());
  job.Log(LogLevel::kInfo, "{} workers are connected over {}",
          job.members.Count(MemberState::kForming), job.transport);
  for (const Member& member : job.members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    if (job.start.resume) streams.Begin(member);
  }
  StartRounds();
}

// With a checkpoint: once all have it.
void Coordinator::Machines::StartRounds() {
  if (rounds.begun() || streams.busy()) return;
  std::uint32_t count = 0;
  for (Member& member : job.members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    job.members.SetState(member, MemberState::kLive, job.now);
    ++count;
  }
  if (count == 0) return job.Fail("all workers left before the first round");
  const std::uint32_t units = UnitsPerRound(job.start);
  const std::uint32_t batch = job.start.config.job.global_batch;
  if (job.start.resume) {
    const JobState& state = *job.start.resume;
    joining.OnBegin(state.next_round, StateSource::kCheckpoint);
    rounds.Begin(Sampler(state.sampler, batch, units), state.next_round, state.updates,
                 StateSource::kCheckpoint);
  } else {
    joining.OnBegin(RoundId(0), StateSource::kSeed);
    rounds.Begin(Sampler(job.train_samples, batch, units), RoundId(0), 0, StateSource::kSeed);
  }
}

void Coordinator::Machines::On(const Disconnected& event) {
  if (admission.Waits(event.connection)) return admission.OnDisconnected(event.connection);
  if (Member* member = job.members.Find(event.connection)) job.Disconnected(*member, event.reason);
}

void Coordinator::Machines::On(Received event) {
  if (admission.Waits(event.connection)) return admission.OnFirst(event.connection, event.message);
  Member* member = job.members.Find(event.connection);
  if (member == nullptr || member->leaving) return;
  member->last_heard = job.now;
  const lockstep::Status status = Dispatch(*member, std::move(event.message));
  if (!status) job.Expel(*member, "it broke the protocol: it " + status.error().message);
}

lockstep::Status Coordinator::Machines::Dispatch(Member& from, FromWorker message) {
  const auto on = [&](auto& machine) {
    return [&](const auto& m) -> lockstep::Status { return machine.On(from, m); };
  };
  return std::visit(
      [&](auto& m) -> lockstep::Status {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, Hello>) {
          return Error{ErrorCode::kInvalid, "said Hello twice"};
        } else if constexpr (std::is_same_v<M, Ready>) {
          if (lockstep::Status status = on(admission)(m); !status) return status;
          return from.leaving ? lockstep::Status() : slowdowns.OnReady(from, m.slowdowns);
        } else if constexpr (std::is_same_v<M, Reached>) {
          if (lockstep::Status status = on(joining)(m); !status) return status;
          if (lockstep::Status status = on(relinking)(m); !status) return status;
          return on(formation)(m);
        } else if constexpr (std::is_same_v<M, Behind> || std::is_same_v<M, Copied> ||
                             std::is_same_v<M, Level>) {
          return on(joining)(m);
        } else if constexpr (std::is_same_v<M, Unreachable>) {
          joining.OnUnreachable(from, m.peer);
          if (lockstep::Status status = on(rounds)(m); !status) return status;
          return on(relinking)(m);
        } else if constexpr (std::is_same_v<M, EvaluationResult>) {
          return on(evaluation)(m);
        } else if constexpr (std::is_same_v<M, StateChunk>) {
          return checkpointer.On(from, std::move(m));
        } else if constexpr (std::is_same_v<M, ReplicaDigest>) {
          return on(checkpointer)(m);
        } else if constexpr (std::is_same_v<M, CheckpointTaken>) {
          return on(streams)(m);
        } else if constexpr (std::is_same_v<M, Final>) {
          return on(ending)(m);
        } else if constexpr (std::is_same_v<M, Leave>) {
          job.Expel(from, "it leaves: " + m.reason);
          return {};
        } else if constexpr (std::is_same_v<M, Pong>) {
          return on(liveness)(m);
        } else {
          return on(rounds)(m);
        }
      },
      message);
}

void Coordinator::Machines::On(const StopRequested& event) {
  const bool again = stopping;
  stopping = true;
  stop_reason = event.reason;
  if (again || job.phase == Phase::kGathering || job.phase == Phase::kForming || !rounds.begun()) {
    return ending.Finish(JobOutcome::kInterrupted, event.reason);
  }
  if (job.phase == Phase::kTraining) rounds.StopSoon(job.now + job.timeout / 2);
}

void Coordinator::Machines::Reply(const Result<std::string>& outcome) {
  job.out->push_back(outcome.ok() ? Answer{true, *outcome}
                                  : Answer{false, outcome.error().message});
}

Result<std::string> Coordinator::Machines::RequestPolicy(const std::string& name) {
  PolicySection section = job.start.config.policy;
  section.name = name;
  auto made = policies::MakePolicy(section, job.start.workers, job.start.plugin);
  if (!made) return made.error();
  if (made->local != job.policy.local) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a job with the policy {} cannot take {}: what a round is stays the "
                             "same for the whole job",
                             job.policy.name, made->name)};
  }
  std::string text = made->name;
  next_policy = std::move(*made);
  if (!rounds.begun()) {
    ExchangePolicy();
    return "policy " + text;
  }
  return fmt::format("policy {} from the next round that is planned on", text);
}

// Between two rounds: the one before is committed, the next one not yet planned.
void Coordinator::Machines::ExchangePolicy() {
  if (!next_policy) return;
  job.Log(LogLevel::kInfo, "policy {} takes the place of {}", next_policy->name, job.policy.name);
  job.policy = std::move(*next_policy);
  next_policy.reset();
  // Who was enough to begin with stays enough, so that an exchange never stops the job.
  if (job.start.config.job.min_workers > 0) return;
  const std::uint32_t spare = std::min(job.policy.closing->Spare(), job.start.workers - 1);
  job.min_workers = std::min(job.min_workers, job.start.workers - spare);
}

void Coordinator::Machines::EndIfShort() {
  const bool waits = job.start.resume && job.phase == Phase::kTraining && rounds.begun() &&
                     rounds.first_uncommitted() == job.start.resume->next_round &&
                     job.members.CountLive() < job.min_workers;
  if (!waits) return short_since.reset();
  if (!short_since) short_since = job.now;
  if (job.now < ShortUntil()) return;
  std::string missing;
  for (const Member& member : job.members.all()) {
    if (member.live()) continue;
    missing += fmt::format("{}worker {}", missing.empty() ? "" : ", ", member.id.worker);
  }
  job.Fail(fmt::format(
      "{} of at least {} workers have the checkpoint, and {} has not come within "
      "{:g} s (job.join_timeout)",
      job.members.CountLive(), job.min_workers, missing, job.start.config.job.join_timeout_s));
}

Time Coordinator::Machines::ShortUntil() const {
  return short_since ? *short_since + FromSeconds(job.start.config.job.join_timeout_s) : kNever;
}

void Coordinator::Machines::NoteSpeed(const RoundRecord& record) {
  const double took = record.commit - last_commit;
  last_commit = record.commit;
  reason = record.reason;
  contributors = 0;
  for (const ContributorRecord& part : record.contributors) contributors += part.part.value == 0;
  excluded = static_cast<std::uint32_t>(record.excluded.size());
  if (took <= 0) return;
  const double speed = static_cast<double>(record.samples) / took;
  samples_per_second = samples_per_second == 0 ? speed : 0.8 * samples_per_second + 0.2 * speed;
}

Time Coordinator::Machines::NextDeadline() const {
  if (job.now < reading_until) return reading_until;
  if (nobody_live_since) {
    return std::min(liveness.NextDeadline(), *nobody_live_since + job.bounds.Answer());
  }
  return std::min({liveness.NextDeadline(), formation.NextDeadline(), rounds.NextDeadline(),
                   ending.NextDeadline(), ShortUntil()});
}

}  // namespace lockstep::coordinator
