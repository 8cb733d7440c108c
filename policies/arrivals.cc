#include "policies/arrivals.h"

#include <algorithm>
#include <utility>

#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

constexpr std::size_t kEnough = 5;
constexpr double kLeastDeviation = 0.02;
constexpr double kWorthwhile = 1.05;  // times as many arrivals per second
constexpr int kBeyondLongest = 4;     // of the wait, where all were worth waiting for: more may be

Duration Median(std::vector<Duration>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

}  // namespace

void Arrivals::Add(const RoundView& view, bool full_work) {
  const Duration usual = MedianUnitTime(view);
  std::vector<Duration> round;
  std::vector<Duration> arrived;
  for (const WorkerView& worker : view.workers) {
    if (worker.units_planned == 0) continue;
    if (worker.finished_at) arrived.push_back(*worker.finished_at - view.started);
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
  std::sort(arrived.begin(), arrived.end());
  if (recent_.size() < rounds_) {
    recent_.push_back(std::move(round));
    arrived_.push_back(std::move(arrived));
  } else {
    recent_[next_] = std::move(round);
    arrived_[next_] = std::move(arrived);
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

// A round ends with its last arrival if all have arrived, else at the wait. Rates are sums over
// rounds: from one arrival to the next the time waited grows in each round that is not over.
Duration Arrivals::BestWait(Duration least) const {
  std::vector<std::pair<Duration, bool>> arrivals;  // and whether it is the last of its round
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    const std::vector<Duration>& round = arrived_[i];
    const bool all = round.size() == recent_[i].size();
    for (const Duration& arrival : round) {
      arrivals.emplace_back(arrival, all && &arrival == &round.back());
    }
  }
  std::sort(arrivals.begin(), arrivals.end());
  std::vector<std::pair<Duration, double>> rates;  // of waits from `least` on
  double arrived = 0;
  double waited = 0;
  auto open = static_cast<double>(recent_.size());
  Duration wait{};
  const auto wait_until = [&](Duration at) {
    waited += open * Seconds(at - wait);
    wait = at;
  };
  for (const auto& [arrival, is_last] : arrivals) {
    if (arrival > least && rates.empty()) {
      wait_until(least);
      rates.emplace_back(least, arrived / waited);
    }
    wait_until(arrival);
    ++arrived;
    if (is_last) --open;
    if (arrival > least) rates.emplace_back(arrival, arrived / waited);
  }
  if (rates.empty()) return least;
  const double best =
      std::ranges::max_element(rates, {}, &decltype(rates)::value_type::second)->second;
  while (rates.back().second < best / kWorthwhile) rates.pop_back();
  const Duration last = rates.back().first;
  return last > least && last == arrivals.back().first ? last + last / kBeyondLongest : last;
}

}  // namespace lockstep::policies
