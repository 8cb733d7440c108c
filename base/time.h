// Time as an input. Pure code never reads a clock: a Time comes in with each event. In a job it is
// CLOCK_MONOTONIC of the process, in the simulator it is virtual; only differences within one
// process have a meaning.
#pragma once

#include <chrono>

namespace lockstep {

using Duration = std::chrono::nanoseconds;

struct LogicalClock {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<LogicalClock>;
  static constexpr bool is_steady = true;
};
using Time = LogicalClock::time_point;

inline constexpr Time kNever = Time::max();

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

// Reads CLOCK_MONOTONIC. Only shells call it.
inline Time MonotonicNow() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace lockstep
