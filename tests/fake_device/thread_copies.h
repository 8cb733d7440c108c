// Copies of an imitated device: made one by one on a thread of their own, some time after they were
// asked for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "transport/staging/device_copies.h"

namespace lockstep {

class ThreadCopies : public transport::DeviceCopies {
 public:
  // From an address of the device to where the host finds the same memory.
  using Translate = std::function<std::byte*(const std::byte* device, std::size_t bytes)>;

  std::atomic<bool> fail{false};  // the copies from here on
  std::atomic<bool> dead{false};  // likewise, within the call, and there is no pinned memory

  // Without `translate` the device's memory is the host's.
  explicit ThreadCopies(Translate translate = nullptr) : translate_(std::move(translate)) {}
  // After the copies that were asked for.
  ~ThreadCopies() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  Result<std::byte*> AllocatePinned(std::size_t bytes) override {
    if (dead) return Error{ErrorCode::kUnavailable, "the device has failed"};
    return static_cast<std::byte*>(std::calloc(bytes, 1));
  }
  void FreePinned(std::byte* memory, std::size_t /*bytes*/) override { std::free(memory); }

  void ToPinned(std::byte* pinned, const std::byte* device, std::size_t bytes,
                std::function<void(bool)> done) override {
    Ask([=, this] { std::memcpy(pinned, Host(device, bytes), bytes); }, std::move(done));
  }
  void FromPinned(std::byte* device, const std::byte* pinned, std::size_t bytes,
                  std::function<void(bool)> done) override {
    Ask([=, this] { std::memcpy(Host(device, bytes), pinned, bytes); }, std::move(done));
  }

 private:
  std::byte* Host(const std::byte* device, std::size_t bytes) const {
    return translate_ ? translate_(device, bytes) : const_cast<std::byte*>(device);
  }

  void Ask(std::function<void()> copy, std::function<void(bool)> done) {
    if (dead) return done(false);
    {
      const std::lock_guard lock(mutex_);
      asked_.emplace_back(std::move(copy), std::move(done));
    }
    wake_.notify_one();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ending_ || !asked_.empty(); });
      if (asked_.empty()) return;
      const auto [copy, done] = std::move(asked_.front());
      asked_.pop_front();
      lock.unlock();
      const bool ok = !fail;
      if (ok) copy();
      done(ok);
      lock.lock();
    }
  }

  const Translate translate_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<std::function<void()>, std::function<void(bool)>>> asked_;
  bool ending_ = false;
  std::thread thread_{[this] { Run(); }};
};

}  // namespace lockstep
