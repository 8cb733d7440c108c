#include "transport/inproc/data_thread.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::transport::inproc {

DataThread::~DataThread() { LOCKSTEP_CHECK(!thread_.joinable(), "the thread was not finished"); }

void DataThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void DataThread::Finish(std::function<void()> last) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    finish_at_ = MonotonicNow();
    last_ = std::move(last);
  }
  changed_.notify_all();
  thread_.join();
}

void DataThread::Post(std::function<void()> task) { PostAt(Time::min(), std::move(task)); }

void DataThread::PostAt(Time when, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    // A task for now must not overtake one whose time came a moment ago.
    const Time due = std::max(when, MonotonicNow());
    tasks_.emplace(std::pair(due, posted_++), std::move(task));
  }
  changed_.notify_all();
}

void DataThread::SetStalled(bool stalled) {
  {
    const std::lock_guard lock(mutex_);
    stalled_ = stalled;
  }
  changed_.notify_all();
}

bool DataThread::IsCurrent() const {
  const std::lock_guard lock(mutex_);
  return id_ == std::this_thread::get_id();
}

void DataThread::Run() {
  std::unique_lock lock(mutex_);
  id_ = std::this_thread::get_id();
  for (;;) {
    if (stalled_ && !finishing_) {
      changed_.wait(lock);
      continue;
    }
    const Time now = finishing_ ? finish_at_ : MonotonicNow();
    if (!tasks_.empty() && tasks_.begin()->first.first <= now) {
      auto task = tasks_.extract(tasks_.begin());
      lock.unlock();
      task.mapped()();
      task = {};
      lock.lock();
    } else if (finishing_) {
      break;
    } else if (tasks_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(
                                    tasks_.begin()->first.first.time_since_epoch()));
    }
  }
  lock.unlock();
  last_();
  lock.lock();
  finished_ = true;
  const auto dropped = std::move(tasks_);
  lock.unlock();
}

}  // namespace lockstep::transport::inproc
