#include "coordinator/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace lockstep::coordinator {
namespace {

// Besides one connection for each worker: one more for each that comes back while the old one is
// not given up yet, and the run directory, the status page and the like.
constexpr rlim_t FilesFor(std::uint32_t workers) { return rlim_t{workers} * 2 + 64; }

}  // namespace

Status AllowOpenFiles(std::uint32_t workers) {
  const rlim_t needed = FilesFor(workers);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Error{ErrorCode::kIo, fmt::format("limit of open files: {}", std::strerror(errno))};
  }
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) return {};
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < needed) {
    return Error{
        ErrorCode::kUnavailable,
        fmt::format("a job of {} workers needs {} open files and {} are allowed: raise the "
                    "hard limit (ulimit -Hn)",
                    workers, needed, limit.rlim_max)};
  }
  limit.rlim_cur = needed;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Error{ErrorCode::kIo, fmt::format("limit of open files: {}", std::strerror(errno))};
  }
  return {};
}

}  // namespace lockstep::coordinator
