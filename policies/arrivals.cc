#include "policies/arrivals.h"

#include <algorithm>

#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

constexpr std::size_t kEnough = 5;
constexpr double kLeastDeviation = 0.02;

Duration Median(std::vector<Duration>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace

void Arrivals::Add(const RoundView& view, bool full_work) {
  const Duration usual = MedianUnitTime(view);
  std::vector<Duration> round;
  for (const WorkerView& worker : view.workers) {
    if (worker.units_planned == 0) continue;
    const Duration unit_time = UnitTimeOf(worker, usual);
    if (full_work && worker.units_given < worker.units_planned) {
      round.push_back(unit_time * worker.units_planned);
    } else if (worker.finished_at) {
      round.push_back(*worker.finished_at - view.started);
    } else {
      round.push_back(std::max(ExpectedEnd(worker, view.now, unit_time), view.now) - view.started);
    }
  }
  if (round.empty()) return;
  std::sort(round.begin(), round.end());
  if (recent_.size() < rounds_) {
    recent_.push_back(std::move(round));
  } else {
    recent_[next_] = std::move(round);
    next_ = (next_ + 1) % rounds_;
  }
}

std::optional<Duration> Arrivals::Deadline(double k) const {
  if (recent_.size() < std::min(rounds_, kEnough)) return std::nullopt;
  std::vector<Duration> all;
  for (const auto& round : recent_) all.insert(all.end(), round.begin(), round.end());
  const Duration median = Median(&all);
  for (Duration& value : all) value = value > median ? value - median : median - value;
  const double deviation = std::max(Seconds(Median(&all)), kLeastDeviation * Seconds(median));
  return median + FromSeconds(k * deviation);
}

}  // namespace lockstep::policies
