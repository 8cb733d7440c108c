#include "worker/runtime/pacer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

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

Time Pacer::Begin(RoundId round, std::span<const Unit> units, Time now) {
  LOCKSTEP_CHECK(!units.empty(), "round {}: a run of no unit", round);
  if (round != round_) credit_ = Duration::zero();
  round_ = round;
  units_.assign(units.begin(), units.end());
  turned_to_ = now;
  begun_ = now - std::exchange(credit_, Duration::zero());
  std::lock_guard lock(mutex_);
  active_ = floor_.unit > Duration::zero() || model_.MayAct(self_, now - job_start_);
  return begun_;
}

void Pacer::LeaveOut(Duration spent) {
  turned_to_ += spent;
  begun_ += spent;
}

template <class Visit>
void Pacer::ForEachUnit(Visit visit) const {
  const auto count = static_cast<Duration::rep>(units_.size());
  Time begin = begun_;
  for (Duration::rep i = 0; i < count; ++i) {
    const Unit& unit = units_[static_cast<std::size_t>(i)];
    const Duration computed = computed_ * (i + 1) / count - computed_ * i / count;
    Duration nominal = floor_.unit;
    if (floor_.unit_samples > 0) {
      const double share = static_cast<double>(unit.range.size()) / floor_.unit_samples;
      nominal = FromSeconds(Seconds(nominal) * share);
    }
    nominal = std::max(computed, nominal);
    const Time end =
        begin + model_.Lengthen(self_, round_, unit.index.value, begin - job_start_, nominal);
    visit(unit, begin, nominal, end);
    begin = end;
  }
}

Time Pacer::Deadline() const {
  Time deadline = begun_;
  ForEachUnit([&](const Unit&, Time, Duration, Time end) { deadline = end; });
  return deadline;
}

// The unit that was under way when the run became void.
Time Pacer::StallEnd(Time cancelled_at) const {
  Time stalled_until = begun_;
  ForEachUnit([&](const Unit& unit, Time begin, Duration nominal, Time) {
    if (begin > cancelled_at) return;
    stalled_until =
        begin + model_.Stall(self_, round_, unit.index.value, begin - job_start_, nominal);
  });
  return job_start_ + model_.PauseEnd(self_, std::max(stalled_until, cancelled_at) - job_start_);
}

std::vector<UnitTiming> Pacer::Split(Time ended) const {
  std::vector<UnitTiming> timings;
  std::lock_guard lock(mutex_);
  ForEachUnit([&](const Unit& unit, Time begin, Duration, Time end) {
    timings.push_back({unit, std::min(begin, ended).time_since_epoch().count(),
                       std::min(end, ended).time_since_epoch().count()});
  });
  timings.back().end_ns = ended.time_since_epoch().count();
  return timings;
}

Time Pacer::Pace(const std::atomic<bool>& cancelled, const std::atomic<bool>& ended) {
  const auto is = [](const std::atomic<bool>& flag) {
    return flag.load(std::memory_order_relaxed);
  };
  std::unique_lock lock(mutex_);
  const Time done = MonotonicNow();
  computed_ = done - turned_to_;
  std::optional<Time> cancelled_at;
  Time now = done;
  for (;;) {
    if (!cancelled_at && is(cancelled)) cancelled_at = now;
    const Time deadline = Deadline();  // a slow-down may have come or gone
    const Time until = cancelled_at ? std::min(deadline, StallEnd(*cancelled_at)) : deadline;
    if (is(ended) || now >= until) {
      if (cancelled_at || is(ended) || deadline <= done) return now;
      const Duration most = std::min(kMostLate, (deadline - begun_) / 2);
      credit_ = std::clamp(now - deadline, Duration::zero(), most);
      return now - credit_;
    }
    const std::uint64_t seen = changes_;
    wake_.wait_until(lock, SteadyTime(until), [&] {
      return is(ended) || changes_ != seen || (!cancelled_at && is(cancelled));
    });
    now = MonotonicNow();
  }
}

void Pacer::Wake() {
  // Under the mutex, so that a waiter is either before its look at the flag or asleep.
  std::lock_guard lock(mutex_);
  wake_.notify_all();
}

}  // namespace lockstep::worker
