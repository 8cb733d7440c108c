#include "coordinator/core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/schedule.h"
#include "coordinator/core/machines.h"
#include "coordinator/record/resume_rules.h"
#include "policies/registry.h"

namespace lockstep::coordinator {
namespace {

// A timer that comes later than this means that this process was stopped, or starved. Well below
// the shortest deadline, so that no such gap is taken for somebody's silence.
constexpr Duration kGap = std::chrono::milliseconds(100);
constexpr Duration kWorthAWarning = std::chrono::seconds(1);
// After a gap: what has arrived meanwhile is read before anybody is judged.
constexpr Duration kReading = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<Coordinator>> Coordinator::Make(StartParameters parameters) {
  const auto invalid = [](std::string text) { return Error{ErrorCode::kInvalid, std::move(text)}; };
  const JobSection& job = parameters.config.job;
  if (parameters.workers == 0) return invalid("workers must be at least 1");
  if (job.global_batch == 0) return invalid("job.global_batch must be at least 1");
  if (job.units > job.global_batch) {
    return invalid(fmt::format("job.units = {}: a unit has at least one sample, and there are {}",
                               job.units, job.global_batch));
  }
  if (parameters.config.liveness.timeout_s <= 0)
    return invalid("liveness.timeout must be positive");
  if (lockstep::Status status = CheckSchedule(parameters.config.schedule); !status) {
    return status.error();
  }
  auto policy =
      policies::MakePolicy(parameters.config.policy, parameters.workers, parameters.plugin);
  if (!policy) return policy.error();
  if (parameters.resume) {
    const JobState& state = *parameters.resume;
    if (lockstep::Status may = CheckResume(state, parameters.config); !may) return may.error();
    const std::uint32_t epochs = job.epochs == 0 && job.rounds == 0 ? 1 : job.epochs;
    if ((job.rounds > 0 && state.next_round.value >= job.rounds) ||
        (epochs > 0 && state.sampler.epoch.value >= epochs)) {
      return invalid(
          fmt::format("the checkpoint is at the job's end (round {}, epoch {}): there is "
                      "nothing to resume",
                      state.next_round, state.sampler.epoch));
    }
  }
  const std::uint32_t spare = std::min(policy->closing->Spare(), parameters.workers - 1);
  const std::uint32_t min_workers =
      job.min_workers > 0 ? job.min_workers : parameters.workers - spare;
  if (min_workers > parameters.workers) {
    return invalid(fmt::format("job.min_workers = {} is more than the {} workers of the job",
                               min_workers, parameters.workers));
  }
  return std::unique_ptr<Coordinator>(new Coordinator(
      std::make_unique<Machines>(std::move(parameters), std::move(*policy), min_workers)));
}

Coordinator::Coordinator(std::unique_ptr<Machines> machines) : machines_(std::move(machines)) {}
Coordinator::~Coordinator() = default;

Ready Coordinator::Agreed() const {
  const Job& job = machines_->job;
  Ready agreed;
  agreed.parameter_count = job.parameter_count;
  agreed.state_tensors = job.state_tensors;
  agreed.tensors = job.tensors;
  agreed.state_names = job.state_names;
  return agreed;
}

bool Coordinator::finished() const { return machines_->job.phase == Phase::kFinished; }

void Coordinator::Step(Time now, Event event, Actions* out) {
  Machines& m = *machines_;
  if (finished()) return;
  if (m.timer != kNever && now > m.timer + kGap) {
    const Duration gap = now - m.timer;
    m.job.stopped += gap;
    m.reading_until = now - m.job.stopped + kReading;
    m.job.out = out;
    m.job.Log(gap >= kWorthAWarning ? LogLevel::kWarning : LogLevel::kDebug,
              "the coordinator itself stood still for {:.1f} s", Seconds(gap));
  }
  const Time logical = now - m.job.stopped;
  LOCKSTEP_CHECK(logical >= m.job.now || m.job.now == Time{}, "time goes back");
  m.job.now = logical;
  m.job.out = out;
  m.Step(std::move(event));
  const Time deadline = finished() ? kNever : m.NextDeadline();
  const Time timer = deadline == kNever ? kNever : std::max(deadline + m.job.stopped, now);
  if (!finished() && timer != m.timer) out->push_back(SetTimer{timer});
  m.timer = timer;
}

JobStatus Coordinator::Status(Time now) const {
  Machines& m = *machines_;
  const Job& job = m.job;
  JobStatus status;
  status.phase = job.phase;
  status.updates = m.rounds.updates();
  status.loss = job.train_loss;
  if (m.evaluation.last()) status.test_accuracy = m.evaluation.last()->accuracy;
  status.samples_per_second = m.samples_per_second;
  status.contributors = m.contributors;
  status.excluded = m.excluded;
  status.policy = job.policy.name;
  status.reason = m.reason;
  status.seconds = job.SinceStart(now - job.stopped);
  status.emulation = {job.emulation.unit_seconds, m.slowdowns.InForce()};
  status.transport = job.transport;
  status.totals = job.totals;
  const OpenRound* open = m.rounds.open();
  if (open != nullptr) {
    status.epoch = open->epoch;
    status.round = open->round;
  } else if (m.rounds.provisional() != nullptr) {
    status.epoch = m.rounds.provisional()->commit.epoch;
    status.round = m.rounds.provisional()->commit.round;
  }
  if (m.rounds.begun()) status.waiting_for = m.rounds.Waiting();
  for (const Member& member : job.members.all()) {
    if (member.id.incarnation.value == 0) continue;
    MemberStatus row;
    row.member = member.id;
    row.state = member.state;
    row.host = member.hello.host;
    row.pid = member.hello.pid;
    row.device = member.hello.device;
    if (open != nullptr) {
      if (const policies::WorkerView* view = open->WorkerViewOf(member.id.worker)) {
        row.units_given = view->units_given;
        row.units_done = view->units_done;
      }
      row.owner = open->delivery.IsOwner(member.id.worker);
    }
    row.unit_seconds = Seconds(member.unit_times.mean);
    row.silent_seconds = Seconds(now - job.stopped - member.last_heard);
    row.rounds_contributed = member.rounds_contributed;
    row.rounds_excluded = member.rounds_excluded;
    row.held_up_seconds =
        Seconds(member.held_up_compute + member.held_up_link + member.held_up_lost);
    row.draining = member.draining && member.connected();
    status.members.push_back(std::move(row));
  }
  return status;
}

std::vector<std::string> Coordinator::Bounds() const {
  const Machines& m = *machines_;
  const std::uint64_t workers = m.job.start.workers;
  const std::uint64_t batch = m.job.start.config.job.global_batch;
  const std::uint64_t units = UnitsPerRound(m.job.start);
  return {
      fmt::format("members: {} slots (--workers)", workers),
      fmt::format("connections without a Hello: {} (2 * workers + 16)", m.admission.Bound()),
      fmt::format("units of a round: {} (units + given-back fragments, at most one a sample)",
                  std::min(batch, 2 * units)),
      fmt::format("receipts of a round: {} bits (2 * workers^2)", 2 * workers * workers),
      fmt::format("samples given back: {} (global_batch)", batch),
      fmt::format("chunks of an evaluation: {} (4 * workers)", 4 * workers),
  };
}

}  // namespace lockstep::coordinator
