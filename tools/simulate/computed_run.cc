#include "tools/simulate/computed_run.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::simulate {

std::uint64_t DivisorOf(const SampleRange& range) {
  std::uint64_t divisor = 0;
  for (std::uint64_t position = range.from; position < range.to; ++position) {
    divisor += position % 5;
  }
  return divisor;
}

ComputedRun::ComputedRun(const worker::UnitQueue& queue, const worker::UnitQueue::Take& take,
                         WorkerId worker, RoundId round, Epoch epoch, Time now,
                         ComputeModel* compute, RandomStream& random)
    : worker_(worker), round_(round), compute_(compute), began_(now) {
  LOCKSTEP_CHECK(take.count > 0, "a run of no unit");
  for (const Unit& unit : queue.UnitsOf(take)) {
    units_.push_back(unit);
    now += compute->UnitTime(worker, now, round, epoch, units_.back(), take.count, random);
    ends_.push_back(now);
  }
}

std::uint64_t ComputedRun::samples() const {
  std::uint64_t samples = 0;
  for (const Unit& unit : units_) samples += unit.range.size();
  return samples;
}

std::uint64_t ComputedRun::divisor() const {
  std::uint64_t divisor = 0;
  for (const Unit& unit : units_) divisor += DivisorOf(unit.range);
  return divisor;
}

// The unit that is under way decides.
std::optional<Time> ComputedRun::LetsGo(Time now) const {
  const auto at = std::min<std::size_t>(
      static_cast<std::size_t>(std::ranges::upper_bound(ends_, now) - ends_.begin()),
      units_.size() - 1);
  return compute_->LetsGo(worker_, round_, units_[at], Began(at), now);
}

std::vector<UnitTiming> ComputedRun::Timings(Time now) const {
  std::vector<UnitTiming> timings;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    timings.push_back({units_[i], std::min(Began(i), now).time_since_epoch().count(),
                       std::min(ends_[i], now).time_since_epoch().count()});
  }
  timings.back().end_ns = now.time_since_epoch().count();
  return timings;
}

}  // namespace lockstep::simulate
