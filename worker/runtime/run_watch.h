// The run of units that the compute thread is in, as other threads see it: how long it lasts, for
// the coordinator's pings. Once this worker is out of the job, it tells whether the thread comes
// back. A thread that does not is hung: nobody can end it but by ending the process.
//
// Invariant: at most one watching thread; it holds no lock while it calls `on_hung`.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"

namespace lockstep::worker {

class RunWatch {
 public:
  // One line for people: that this worker is out and hangs, in which run, and what prevents that.
  using OnHung = std::function<void(const std::string& line)>;

  RunWatch() = default;
  ~RunWatch();  // waits for an `on_hung` that is under way
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // --- the compute thread
  void Begin(RoundId round, std::span<const Unit> units);
  void LeaveOut(Duration spent);  // the program said that it was away
  void End();

  // --- any thread
  msg::RunInHand InHand() const;
  // This worker is out, because of `reason`. Calls `on_hung`, on a thread of its own, where the run
  // in hand has not ended after `patience` and twice the longest run so far. The first call counts.
  void PutOut(std::string reason, Duration patience, OnHung on_hung);

 private:
  struct Run {
    RoundId round;
    Time began;
    std::uint32_t units = 0;
    SampleRange first;  // of the first unit
  };
  void Watch(const std::string& reason, Duration patience, const OnHung& on_hung);

  mutable std::mutex mutex_;  // of all below but the thread
  std::condition_variable wake_;
  std::optional<Run> run_;
  Duration longest_{};
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace lockstep::worker
