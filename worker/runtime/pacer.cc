#include "worker/runtime/pacer.h"

#include <algorithm>
#include <utility>

namespace lockstep::worker {
namespace {

// Later than this was no lateness of waking up: the process was stopped.
constexpr Duration kMostLate = std::chrono::milliseconds(10);

std::chrono::steady_clock::time_point SteadyTime(Time time) {
  return std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(time.time_since_epoch()));
}

}  // namespace

void Pacer::SetSlowdowns(std::vector<SlowdownSpec> slowdowns) {
  std::lock_guard lock(mutex_);
  model_ = SlowdownModel(std::move(slowdowns), workers_);
  ++changes_;
  wake_.notify_all();
}

Time Pacer::Begin(RoundId round, std::uint32_t unit, Time now) {
  if (round != round_) credit_ = Duration::zero();
  round_ = round;
  unit_ = unit;
  turned_to_ = now;
  begun_ = now - std::exchange(credit_, Duration::zero());
  std::lock_guard lock(mutex_);
  active_ = unit_floor_ > Duration::zero() || model_.MayAct(self_, now - job_start_);
  return begun_;
}

Time Pacer::Deadline(Duration computed) const {
  const Duration nominal = std::max(computed, unit_floor_);
  return begun_ + model_.Lengthen(self_, round_, unit_, begun_ - job_start_, nominal);
}

Time Pacer::Pace(const std::atomic<bool>& cancelled) {
  const auto given_up = [&] { return cancelled.load(std::memory_order_relaxed); };
  std::unique_lock lock(mutex_);
  const Time done = MonotonicNow();
  Time deadline = Deadline(done - turned_to_);
  if (deadline <= done) return done;
  while (!given_up() && MonotonicNow() < deadline) {
    const std::uint64_t seen = changes_;
    wake_.wait_until(lock, SteadyTime(deadline), [&] { return given_up() || changes_ != seen; });
    deadline = Deadline(done - turned_to_);  // a slow-down may have come or gone
  }
  const Time woke = MonotonicNow();
  if (given_up()) return woke;
  const Duration most = std::min(kMostLate, (deadline - begun_) / 2);
  credit_ = std::clamp(woke - deadline, Duration::zero(), most);
  return woke - credit_;
}

void Pacer::Wake() {
  // Under the mutex, so that a waiter is either before its look at the flag or asleep.
  std::lock_guard lock(mutex_);
  wake_.notify_all();
}

}  // namespace lockstep::worker
