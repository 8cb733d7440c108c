// Bytes as a file without a name in any folder, for readers that want a path.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(Bytes bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    LOCKSTEP_CHECK(fd_ >= 0 &&
                   write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  const int fd_;
};

}  // namespace lockstep::fuzz
