#include "policies/outlook.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace lockstep::policies {

std::optional<double> MedianRunCost(std::span<const WorkerView> workers) {
  std::vector<double> costs;
  for (const WorkerView& worker : workers) {
    if (worker.run_cost) costs.push_back(*worker.run_cost);
  }
  if (costs.empty()) return std::nullopt;
  std::sort(costs.begin(), costs.end());
  const double median = (costs[costs.size() / 2] + costs[(costs.size() - 1) / 2]) / 2;
  return std::max(median, 0.0);
}

// Guided runs are of at most the limit until twice that is left, then of a half of what is left.
Duration QueueTime(const WorkerView& worker, std::uint32_t units, Duration unit_time) {
  Duration computed = unit_time * units;
  if (!worker.cost_before.empty()) {
    const std::uint32_t from = worker.units_given - std::min(units, worker.units_given);
    computed = FromSeconds(Seconds(unit_time) * CostOf(worker, from, worker.units_given));
  }
  if (units == 0 || RunCostOf(worker) == 0) return computed;
  const std::uint32_t most = worker.runs.units == 0 ? units : worker.runs.units;
  std::uint32_t runs = (units + most - 1) / most;
  if (worker.runs.guided) {
    const std::uint32_t tail = std::min(2 * most, units);
    runs = (units - tail + most - 1) / most + static_cast<std::uint32_t>(std::bit_width(tail));
  }
  return computed + FromSeconds(Seconds(unit_time) * RunCostOf(worker) * runs);
}

ProgressLine::ProgressLine(const WorkerView& worker, Duration unit_time)
    : computed(Computed(worker)), since(worker.progressed_at) {
  if (computed) return;
  done = CostOf(worker, 0, worker.units_done);
  all = CostOf(worker, 0, worker.units_given);
  if (unit_time == Duration{}) return;
  const std::uint32_t begun = worker.units_done + InHand(worker);
  in_hand = CostOf(worker, worker.units_done, begun);
  most = in_hand - std::min(0.1, 0.1 * in_hand);
  run_seconds = Seconds(RunTime(worker, worker.units_done, begun, unit_time));
}

double Progressed(const WorkerView& worker, Time now, Duration unit_time) {
  return ProgressLine(worker, unit_time).At(now);
}

Duration MedianUnitTime(const RoundView& view) {
  std::vector<Duration> known;
  known.reserve(view.workers.size());
  for (const WorkerView& worker : view.workers) {
    const Duration unit_time = UnitTimeOf(worker, {});
    if (!worker.fenced && unit_time > Duration{}) known.push_back(unit_time);
  }
  if (known.empty()) return {};
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::nth_element(known.begin(), middle, known.end());
  return *middle;
}

}  // namespace lockstep::policies
