#include "policies/outlook.h"

#include <algorithm>
#include <vector>

namespace lockstep::policies {

Duration UnitTimeOf(const WorkerView& worker, Duration otherwise) {
  if (worker.pace > Duration{}) return worker.pace;
  return worker.unit_time_mean > Duration{} ? worker.unit_time_mean : otherwise;
}

Time ExpectedEnd(const WorkerView& worker, Time now, Duration unit_time) {
  if (Computed(worker)) return worker.finished_at.value_or(now);
  const std::uint32_t left = worker.units_given - worker.units_done;
  const Duration spent = now - worker.progressed_at;
  const Duration rest = spent > unit_time ? spent - unit_time : unit_time - spent;
  return now + rest + unit_time * (left - 1);
}

double Progressed(const WorkerView& worker, Time now, Duration unit_time) {
  if (Computed(worker)) return 1;
  double done = worker.units_done;
  if (unit_time > Duration{}) {
    done += std::min(Seconds(now - worker.progressed_at) / Seconds(unit_time), 0.9);
  }
  return done / worker.units_given;
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
