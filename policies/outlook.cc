#include "policies/outlook.h"

#include <algorithm>
#include <vector>

namespace lockstep::policies {

double Progressed(const WorkerView& worker, Time now, Duration unit_time) {
  if (Computed(worker)) return 1;
  double done = worker.units_done;
  if (unit_time > Duration{}) {
    done +=
        std::min(Seconds(now - worker.progressed_at) / Seconds(unit_time), InHand(worker) - 0.1);
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
