#include "worker/runtime/task_thread.h"

#include <pthread.h>

#include <utility>

namespace lockstep::worker {

TaskThread::TaskThread(const char* name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

TaskThread::~TaskThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void TaskThread::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace lockstep::worker
