#include "coordinator/job/context.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/options.h"
#include "base/schedule.h"

namespace lockstep::coordinator {
namespace {

// A checkpoint already has everything that workers would have to agree on: they are compared with
// it.
Agreement AgreedBy(const StartParameters& start) {
  const std::optional<JobState> resumed = NewestState(start);
  if (!resumed) return {};
  const JobState& state = *resumed;
  return {.settled = true,
          .by = start.journal.empty() ? "the checkpoint" : "the job before",
          .dataset_digest = state.dataset_digest,
          .train_samples = state.sampler.epoch_samples,
          .test_samples = state.test_samples,
          .parameter_count = state.parameter_count,
          .state_tensors = state.state_tensors,
          .tensors = state.tensors,
          .state_names = state.state_names,
          .initial_digest = {},
          .own_parameters = false};
}

ClosedAccount ClosedBefore(const StartParameters& start) {
  const std::optional<JobState> resumed = NewestState(start);
  if (!resumed) return {};
  return {.totals = resumed->totals,
          .train_loss = start.train_loss,
          .metrics = start.metrics,
          .saved_seconds = 0,
          .sent = {}};
}

std::optional<RoundId> SavedBefore(const StartParameters& start) {
  if (!start.resume) return std::nullopt;
  return RoundId(start.resume->next_round.value - 1);
}

}  // namespace

std::optional<JobState> NewestState(const StartParameters& start) {
  return start.journal.empty() ? start.resume : start.journal.back().state;
}

void JobPhase::Enter(Phase next) {
  const bool anew = phase_ == Phase::kForming && next == Phase::kGathering;
  LOCKSTEP_CHECK(
      next == Phase::kFinished || anew || static_cast<int>(next) == static_cast<int>(phase_) + 1,
      "a job that is {} does not become {}", Name(phase_), Name(next));
  phase_ = next;
}

Job::Job(StartParameters parameters, policies::Policy rules, std::uint32_t quorum)
    : start(std::move(parameters)),
      timeout(FromSeconds(start.config.liveness.timeout_s)),
      policy(std::move(rules)),
      min_workers(quorum),
      members(start.workers),
      bounds(timeout),
      resumed(NewestState(start)),
      agreed(AgreedBy(start)),
      closed(ClosedBefore(start)),
      saved_round(SavedBefore(start)),
      emulation(Emulation{start.config.emulate.unit_time_s, {}}),
      wrong_devices(start.journal.empty() ? WrongDevices() : start.journal.back().wrong_devices) {}

std::optional<Leaving> Job::Take(std::deque<Leaving>& from) {
  if (from.empty()) return std::nullopt;
  Leaving next = std::move(from.front());
  from.pop_front();
  return next;
}

// Logged once each time the quorum is lost, not at each event without it.
bool Job::HasQuorum() {
  const bool enough = members.CountLive() > 0 && members.CountPresent() >= min_workers();
  if (!enough && !waits_for_quorum()) Log(LogLevel::kWarning, "{}", QuorumText());
  if (enough && waits_for_quorum()) Log(LogLevel::kInfo, "enough workers are there again");
  waits_for_quorum.Write() = !enough;
  return enough;
}

// Names those that are missing, which somebody has to start, and the setting that would do without.
std::string Job::QuorumText() const {
  std::string missing;
  for (const Member& member : members.all()) {
    if (!member.present())
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", member.id.worker);
  }
  return fmt::format(
      "{} of at least {} workers are there; waiting for worker {}{}; to go on without, set "
      "job.min_workers = {}",
      members.CountPresent(), min_workers(), missing, QuorumPatience().Words(),
      std::max(members.CountPresent(), 1u));
}

std::string Job::ResumeText() const {
  if (!saved_round()) return {};
  return fmt::format("; the job can be resumed from its checkpoint after round {}", *saved_round());
}

std::string Job::AwayText() const {
  std::string text;
  if (members.CountAway() == 0) return text;
  for (const Member& member : members.all()) {
    if (member.away()) {
      text += fmt::format("; worker {} is away: {}", member.id.worker, member.absence->reason);
    }
  }
  return text;
}

Patience Job::QuorumPatience() const {
  if (resumed() && closed().totals.rounds == resumed()->totals.rounds) {
    return {"job.join_timeout", start.config.job.join_timeout_s};
  }
  return {"job.quorum_timeout", start.config.job.quorum_timeout_s};
}

std::string Patience::Words() const {
  if (seconds == 0) return {};
  return fmt::format(", for at most {} ({})", FormatDurationSeconds(seconds), option);
}

// A job that ends by rounds has that many; one that ends by epochs has as many whole rounds as fit.
float Job::ScheduledRate(double position) const {
  const JobConfig& config = start.config;
  const std::uint64_t in_epoch =
      (agreed().train_samples + config.job.global_batch - 1) / config.job.global_batch;
  const std::uint64_t total =
      config.job.rounds > 0 ? config.job.rounds : std::max(config.job.epochs, 1u) * in_epoch;
  const double rate =
      LearningRate(config.schedule, config.optimizer.lr, position, static_cast<double>(total));
  // A conversion of what no float is near to is not defined.
  constexpr float kMost = std::numeric_limits<float>::max();
  return rate > kMost ? std::numeric_limits<float>::infinity() : static_cast<float>(rate);
}

std::string Job::RateNotFinite(RoundId round) const {
  const ScheduleSection& schedule = start.config.schedule;
  return fmt::format(
      "round {}: the learning rate is not finite (schedule.name = {}, schedule.factor = {:g}, "
      "schedule.step_every = {:g})",
      round, schedule.name, schedule.factor, schedule.step_every);
}

Status Job::CheckScalars(const msg::Commit& commit) const {
  if (!std::isfinite(commit.learning_rate)) {
    return Error{ErrorCode::kInvalid, RateNotFinite(commit.round)};
  }
  if (!std::isfinite(commit.loss)) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("round {}: the sum of the workers' losses is not finite, though each "
                             "of them is",
                             commit.round)};
  }
  return {};
}

std::string ProtocolMismatch(const msg::Hello& hello) {
  if (hello.protocol == kProtocolVersion) return {};
  return fmt::format(
      "this coordinator speaks version {} of the protocol, the worker (version {}) speaks {}",
      kProtocolVersion, hello.version, hello.protocol);
}

}  // namespace lockstep::coordinator
