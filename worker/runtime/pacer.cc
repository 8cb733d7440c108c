#include "worker/runtime/pacer.h"

#include <algorithm>
#include <utility>

namespace lockstep::worker {

void Pacer::SetSlowdowns(std::vector<SlowdownSpec> slowdowns) {
  std::lock_guard lock(mutex_);
  slowdowns_ = std::move(slowdowns);
}

double Pacer::FactorAt(Time now) const {
  double factor = 1.0;
  for (const SlowdownSpec& spec : slowdowns_) factor *= lockstep::FactorAt(spec, now - origin_);
  return factor;
}

bool Pacer::Active(Time now) const {
  std::lock_guard lock(mutex_);
  return unit_floor_ > Duration::zero() || FactorAt(now) > 1.0;
}

void Pacer::Pace(Time start, const std::atomic<bool>& cancelled) {
  std::unique_lock lock(mutex_);
  const Duration so_far = MonotonicNow() - start;
  const double factor = std::max(FactorAt(start), 1.0);
  const Time until = start + FromSeconds(Seconds(std::max(so_far, unit_floor_)) * factor);
  const auto deadline = std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(until.time_since_epoch()));
  wake_.wait_until(lock, deadline, [&] { return cancelled.load(std::memory_order_relaxed); });
}

void Pacer::Wake() {
  // Under the mutex, so that a waiter is either before its look at the flag or asleep.
  std::lock_guard lock(mutex_);
  wake_.notify_all();
}

}  // namespace lockstep::worker
