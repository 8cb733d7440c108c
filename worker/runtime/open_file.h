// A file that is open while this is there.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

namespace lockstep::worker {

class OpenFile {
 public:
  // `flags`: of open(2). A file that it makes may be read by all.
  OpenFile(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return fd_; }  // negative: it could not be opened, and errno says why

 private:
  const int fd_;
};

}  // namespace lockstep::worker
