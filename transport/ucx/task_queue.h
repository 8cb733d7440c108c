// Tasks of other threads for the data thread, and its timers.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/time.h"

namespace lockstep::transport::ucx {

class TaskQueue {
 public:
  using Task = std::function<void()>;

  // Any thread may call it. Tasks posted before Open run after it; those posted after Close are
  // dropped.
  void Post(Task task);

  // Only the data thread calls the rest.

  // From here on Post calls `wake` when another thread than this one posts into an empty queue.
  void Open(Task wake);
  // Drops the tasks that have not run. `wake` is not called any more once this returns.
  void Close();
  void PostAt(Time when, Task task);
  // Runs the tasks posted before the call and the timers that are due. True if there were any.
  bool RunDue(Time now);
  // How long the thread may sleep; zero when a task is waiting.
  Duration UntilNext(Time now);

 private:
  struct Timer {
    Time when;
    std::uint64_t order = 0;  // among equals, first come first served
    Task task;
    bool operator>(const Timer& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };

  std::mutex mutex_;  // guards the next five
  std::vector<Task> posted_;
  Task wake_;
  std::thread::id owner_;
  bool closed_ = false;
  bool woken_ = false;  // since the queue was last emptied

  std::vector<Task> running_;
  std::vector<Timer> timers_;  // a heap, earliest first
  std::uint64_t timer_order_ = 0;
};

}  // namespace lockstep::transport::ucx
