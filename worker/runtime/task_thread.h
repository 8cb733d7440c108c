// A thread that runs posted tasks in order. The reduction thread of a worker is one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::worker {

class TaskThread {
 public:
  // `name` is shown by debuggers and top; at most 15 characters.
  explicit TaskThread(const char* name);
  // Runs what was posted, then joins.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Any thread. The poster bounds how much is under way: the core has a few jobs out at
  // most.
  void Post(std::function<void()> task);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lockstep::worker
