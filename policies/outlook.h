// Estimates when a worker will be done with its units, as far as its reports tell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "base/time.h"
#include "policies/policy.h"

namespace lockstep::policies {

// The cost of the units [from, to) of its queue, in usual units.
inline double CostOf(const WorkerView& worker, std::uint32_t from, std::uint32_t to) {
  if (worker.cost_before.empty()) return to - from;
  const auto last = static_cast<std::uint32_t>(worker.cost_before.size() - 1);
  return worker.cost_before[std::min(to, last)] - worker.cost_before[std::min(from, last)];
}

// The cost of one of its runs beside its units, in unit times; 0 where that is not known.
inline double RunCostOf(const WorkerView& worker) {
  return std::max(worker.run_cost.value_or(0), 0.0);
}

// The median over the workers that know it, and not below zero. The cost of a run is much the same
// for all, and a single measurement is noisy. Of two values it lies between them: by the lower one,
// perhaps a poor measurement, all would compute in short runs and never learn better.
std::optional<double> MedianRunCost(std::span<const WorkerView> workers);

// The time of one of its runs: its units and the run's cost.
inline Duration RunTime(const WorkerView& worker, std::uint32_t units, Duration unit_time) {
  const Duration cost =
      worker.run_cost ? FromSeconds(Seconds(unit_time) * RunCostOf(worker)) : Duration{};
  return unit_time * units + cost;
}

// The same of the units [from, to) of its queue.
inline Duration RunTime(const WorkerView& worker, std::uint32_t from, std::uint32_t to,
                        Duration unit_time) {
  const Duration run = RunTime(worker, to - from, unit_time);
  if (worker.cost_before.empty()) return run;
  return run + FromSeconds(Seconds(unit_time) * (CostOf(worker, from, to) - (to - from)));
}

// The time for the last so many units of its queue, in as many runs as it uses.
Duration QueueTime(const WorkerView& worker, std::uint32_t units, Duration unit_time);

// Time that one of its units takes now beside its run's cost: the pace of this round, else what is
// known of it from earlier rounds, else `otherwise`.
inline Duration UnitTimeOf(const WorkerView& worker, Duration otherwise) {
  if (worker.pace > Duration{}) return worker.pace;
  return worker.unit_time_mean > Duration{} ? worker.unit_time_mean : otherwise;
}

// The done share of the units that a worker holds, 0 to 1, as it grows with the time until the next
// report; the run under way counts by its time.
struct ProgressLine {
  ProgressLine() = default;
  ProgressLine(const WorkerView& worker, Duration unit_time);
  double At(Time now) const {
    if (computed) return 1;
    const double part = Seconds(now - since) / run_seconds;
    return (done + std::min(part * in_hand, most)) / all;
  }

  bool computed = false;
  Time since;
  double done = 0;  // costs, in usual units
  double in_hand = 0;
  double most = 0;  // of those in hand
  double run_seconds = 1;
  double all = 1;
};
double Progressed(const WorkerView& worker, Time now, Duration unit_time);

// The median of UnitTimeOf over the workers of which something is known; zero when of none.
Duration MedianUnitTime(const RoundView& view);

// Units that cannot be moved any more: a worker with units left is in a run of them, whatever its
// last report said.
inline std::uint32_t Begun(const WorkerView& worker) {
  if (worker.units_taken > worker.units_done) return worker.units_taken;
  const std::uint32_t left = worker.units_given - std::min(worker.units_given, worker.units_done);
  return worker.units_given - left + NextRun(left, worker.runs);
}

// Units of the run that it is in; at least one while it has units left.
inline std::uint32_t InHand(const WorkerView& worker) {
  return Begun(worker) - std::min(Begun(worker), worker.units_done);
}

// Everything it holds is computed; perhaps not delivered.
inline bool Computed(const WorkerView& worker) { return worker.units_done >= worker.units_given; }

// Estimates when it will have computed all units it holds. A run that takes longer than usual is
// expected to need as long again as it is overdue. `unit_time`: as UnitTimeOf says.
inline Time ExpectedEnd(const WorkerView& worker, Time now, Duration unit_time) {
  if (Computed(worker)) return worker.finished_at.value_or(now);
  const std::uint32_t left = worker.units_given - worker.units_done;
  const std::uint32_t in_hand = InHand(worker);
  const Duration spent = now - worker.progressed_at;
  const Duration usual = RunTime(worker, worker.units_done, worker.units_done + in_hand, unit_time);
  const Duration rest = spent > usual ? spent - usual : usual - spent;
  return now + rest + QueueTime(worker, left - in_hand, unit_time);
}

}  // namespace lockstep::policies
