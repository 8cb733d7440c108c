// Makes units take longer than they did: to emulate an accelerator on a small machine
// (`emulate.unit_time`, a floor of time for each unit) and to slow a worker down on purpose
// (`--slowdown`). The time is spent asleep, as a CPU sleeps while a GPU works.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/slowdown_spec.h"
#include "base/time.h"

namespace lockstep::worker {

class Pacer {
 public:
  // `origin`: what the specification's `from=` counts from.
  Pacer(Duration unit_floor, Time origin) : unit_floor_(unit_floor), origin_(origin) {}

  // Replaces the slow-downs; where several hold at a time their factors are multiplied. Any thread;
  // holds from the next unit on.
  void SetSlowdowns(std::vector<SlowdownSpec> slowdowns);
  // Whether a unit that starts now will be made longer.
  bool Active(Time now) const;
  // Returns when a unit that began at `start` and has been computed has lasted max(time so far,
  // floor) x factor, or when `cancelled` is true. The compute thread.
  void Pace(Time start, const std::atomic<bool>& cancelled);
  // Makes a Pace that is under way look at its flag. Any thread, after the flag was set.
  void Wake();

 private:
  double FactorAt(Time now) const;

  const Duration unit_floor_;
  const Time origin_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<SlowdownSpec> slowdowns_;
};

}  // namespace lockstep::worker
