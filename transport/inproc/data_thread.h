// A thread that runs tasks in the order of their times, and for equal times in the order in which
// they were posted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/time.h"

namespace lockstep::transport::inproc {

class DataThread {
 public:
  ~DataThread();

  void Start();
  // Runs `last` behind the tasks that are due now, drops the others and ends the thread. It ends a
  // stall.
  void Finish(std::function<void()> last);

  // Any thread may call it. After the thread has finished, tasks are dropped silently.
  void Post(std::function<void()> task);
  void PostAt(Time when, std::function<void()> task);
  void SetStalled(bool stalled);

  bool IsCurrent() const;

 private:
  void Run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> tasks_;
  std::uint64_t posted_ = 0;
  bool stalled_ = false;
  bool finishing_ = false;
  bool finished_ = false;
  Time finish_at_;
  std::function<void()> last_;
  std::thread::id id_;
  std::thread thread_;
};

}  // namespace lockstep::transport::inproc
