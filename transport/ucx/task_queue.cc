#include "transport/ucx/task_queue.h"

#include <algorithm>
#include <utility>

namespace lockstep::transport::ucx {

void TaskQueue::Post(Task task) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  posted_.push_back(std::move(task));
  if (!wake_ || woken_ || std::this_thread::get_id() == owner_) return;
  woken_ = true;
  wake_();
}

void TaskQueue::Open(Task wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
  owner_ = std::this_thread::get_id();
}

void TaskQueue::Close() {
  std::vector<Task> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_ = nullptr;
    dropped.swap(posted_);
  }
  timers_.clear();
}

void TaskQueue::PostAt(Time when, Task task) {
  timers_.push_back({when, timer_order_++, std::move(task)});
  std::push_heap(timers_.begin(), timers_.end(), std::greater<>());
}

bool TaskQueue::RunDue(Time now) {
  running_.clear();
  {
    const std::lock_guard lock(mutex_);
    running_.swap(posted_);
    woken_ = false;
  }
  bool any = !running_.empty();
  for (Task& task : running_) task();
  running_.clear();
  // A timer set by a timer waits for the next call, even if it is due: progress must get its turn.
  const std::uint64_t end = timer_order_;
  while (!timers_.empty() && timers_.front().when <= now && timers_.front().order < end) {
    std::pop_heap(timers_.begin(), timers_.end(), std::greater<>());
    const Task task = std::move(timers_.back().task);
    timers_.pop_back();
    task();
    any = true;
  }
  return any;
}

Duration TaskQueue::UntilNext(Time now) {
  {
    const std::lock_guard lock(mutex_);
    if (!posted_.empty()) return Duration::zero();
  }
  if (timers_.empty()) return Duration::max();
  return std::max(timers_.front().when - now, Duration::zero());
}

}  // namespace lockstep::transport::ucx
