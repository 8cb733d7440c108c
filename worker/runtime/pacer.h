// Makes runs of units take longer than they did. One purpose is to emulate an accelerator on a
// small machine (`emulate.unit_time`, a floor of time for each unit). The other is to slow a worker
// down (`--slowdown`). The time is spent asleep, as a CPU sleeps while a GPU works. A run lasts as
// long as its units one after the other, each with an equal part of the time that computing took.
//
// The emulated accelerator does not notice that the host woke late. Where a run ended with a sleep
// from which the thread woke a little late, the next run of the round counts as begun as much
// earlier. So lateness does not add up over a round. A run whose computing alone took longer than
// it should is not made up for: the floor is one of each unit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/slowdown.h"
#include "base/time.h"

namespace lockstep::worker {

class Pacer {
 public:
  // Of a unit's time. `unit_samples` > 0: of a unit of so many samples, of others in proportion.
  struct Floor {
    Duration unit{};
    double unit_samples = 0;
  };
  // `job_start`: of the job, on this process's clock; what `from=` counts from. `workers`: of the
  // job.
  Pacer(const Floor& floor, Time job_start, WorkerId self, std::uint32_t workers)
      : floor_(floor), job_start_(job_start), self_(self), workers_(workers) {}

  // Replaces the slow-downs, also for the run that is under way. Any thread.
  void SetSlowdowns(std::vector<SlowdownSpec> slowdowns);

  // --- the compute thread
  // A run of these units begins; `now` is when the thread turned to it. Returns when it counts as
  // begun.
  Time Begin(RoundId round, std::span<const Unit> units, Time now);
  // Whether the run that has begun may be made longer.
  bool Active() const { return active_; }
  // So much of the time since Begin was not the run's.
  void LeaveOut(Duration spent);
  // The run's computing is done. Returns when the run has lasted as long as it has to: when it
  // counts as ended. With `cancelled` it ends before, but not before a stall that is in force has
  // ended (SlowdownModel::Stall, pauses). A machine that stands still does so whatever becomes of
  // the run. With `ended` it ends at once.
  Time Pace(const std::atomic<bool>& cancelled, const std::atomic<bool>& ended);
  // After that: when each unit of the run was done, as far as can be said. Slow-downs speak of
  // units; what was computed is split evenly.
  std::vector<UnitTiming> Split(Time ended) const;

  // Makes a Pace that is under way look at its flags. Any thread, after a flag was set.
  void Wake();

 private:
  // Calls visit(unit, begin, its length without slow-downs, end) for one unit after the other.
  template <class Visit>
  void ForEachUnit(Visit visit) const;
  Time Deadline() const;
  Time StallEnd(Time cancelled_at) const;

  const Floor floor_;
  const Time job_start_;
  const WorkerId self_;
  const std::uint32_t workers_;

  mutable std::mutex mutex_;  // of the model
  std::condition_variable wake_;
  SlowdownModel model_;
  std::uint64_t changes_ = 0;  // of the model

  // The compute thread's own.
  RoundId round_;
  std::vector<Unit> units_;
  Duration computed_{};  // of the whole run
  Time turned_to_;       // by the thread
  Time begun_;           // what counts
  bool active_ = false;
  Duration credit_{};  // how late the last sleep of this round ended
};

}  // namespace lockstep::worker
