// Owners of kernel objects: a file descriptor, a mapping.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/result.h"

namespace lockstep::transport {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A shared mapping of a whole file, unmapped at the end.
class Mapping {
 public:
  // `protection` is as in mmap(2). The kernel makes a missing page of the file when it is touched.
  static Result<Mapping> Map(int fd, std::size_t bytes, int protection);
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return base_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Mapping(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// True with vm.overcommit_memory = 2: the kernel may refuse a page of a memory file at its first
// touch, and that is a SIGBUS. Otherwise such a page is like any other memory.
bool TouchingAHoleMayFail();

// "what: No such file or directory", from errno or an error number like it.
Error SystemError(ErrorCode code, const std::string& what, int error_number);

}  // namespace lockstep::transport
