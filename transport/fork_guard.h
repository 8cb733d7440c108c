// Keeps a socket of ours out of the children of this process. A child that inherits one holds the
// connection open after our death, and nobody notices it: a data loader's worker, for one.
//
// A program that is started gets none because each descriptor is opened with close-on-exec. A child
// that is only forked (as Python's multiprocessing does) has them replaced by /dev/null at its
// birth: the number stays taken, so that nothing in the child that still knows it can close or
// write to another file.
#pragma once

#include <utility>

namespace lockstep::transport {

class ForkGuard {
 public:
  ForkGuard() = default;
  // `fd` is guarded until Release or the end of this object; both before it is closed. Any thread.
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
