#include "coordinator/record/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace lockstep::coordinator {
namespace {

namespace fs = std::filesystem;

Status WriteAll(int fd, std::string_view text, const fs::path& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(path, "cannot write");
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Error IoError(const fs::path& path, const std::string& doing) {
  // A stream may have lost it.
  if (errno == 0) return {ErrorCode::kIo, fmt::format("{}: {}", path.string(), doing)};
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), doing, std::strerror(errno))};
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

Status SyncFolderOf(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const OwnedFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return IoError(folder, "cannot open");
  // Some network file systems cannot sync a folder.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return IoError(folder, "cannot sync");
  return {};
}

Status WriteWholeFile(const fs::path& path, std::string_view text) {
  const fs::path temporary = path.string() + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return IoError(temporary, "cannot open");
  Status status = WriteAll(fd, text, temporary);
  if (status.ok() && ::fsync(fd) != 0) status = IoError(temporary, "cannot sync");
  if (::close(fd) != 0 && status.ok()) status = IoError(temporary, "cannot close");
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = IoError(path, "cannot rename to");
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

}  // namespace lockstep::coordinator
