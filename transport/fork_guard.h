// Keeps a socket of ours out of the children of this process. A child that inherits one, for
// instance a data loader's worker, holds the connection open after our death, and nobody notices
// it.
//
// Programs that this process starts get none, because each descriptor is opened with close-on-exec.
// A child that is only forked (as Python's multiprocessing does) gets /dev/null in their place at
// its birth. The number stays taken, so that no code in the child can close or write to another
// file by it.
#pragma once

#include <utility>

namespace lockstep::transport {

class ForkGuard {
 public:
  ForkGuard() = default;
  // Guards `fd` until Release or the end of this object; both must come before `fd` is closed. Call
  // it on any thread.
  explicit ForkGuard(int fd);
  ForkGuard(ForkGuard&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForkGuard& operator=(ForkGuard&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~ForkGuard() { Release(); }

  void Release();

 private:
  int fd_ = -1;
};

}  // namespace lockstep::transport
