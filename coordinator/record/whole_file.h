// A file that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace lockstep::coordinator {

// A file descriptor, closed with its owner.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Makes the error from errno, after a failed attempt at `doing` something with the file.
Error IoError(const std::filesystem::path& path, const std::string& doing);

// Makes a rename in the folder of `path` last.
Status SyncFolderOf(const std::filesystem::path& path);

// Writes `path`.tmp, syncs it, renames it, syncs the directory. After an error the old file stays
// and the temporary one is gone.
Status WriteWholeFile(const std::filesystem::path& path, std::string_view text);

}  // namespace lockstep::coordinator
