#include "coordinator/shell/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::coordinator {
namespace {

// Besides one connection for each worker: one more for each that comes back while the old one is
// not given up yet, and the run directory, the status page and the like.
constexpr rlim_t FilesFor(std::uint32_t workers) { return rlim_t{workers} * 2 + 64; }

// Of connections that have not said yet who they are: without room for them the job runs as well,
// but strangers can keep workers out for as long as they take what there is.
constexpr rlim_t kForStrangers = 1024;

}  // namespace

Status AllowOpenFiles(std::uint32_t workers) {
  const rlim_t needed = FilesFor(workers);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Error{ErrorCode::kIo, fmt::format("limit of open files: {}", std::strerror(errno))};
  }
  const rlim_t wanted = std::min(needed + kForStrangers, limit.rlim_max);
  if (limit.rlim_cur >= needed && limit.rlim_cur >= wanted) return {};
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < needed) {
    return Error{
        ErrorCode::kUnavailable,
        fmt::format("a job of {} workers needs {} open files and {} are allowed: raise the "
                    "hard limit (ulimit -Hn)",
                    workers, needed, limit.rlim_max)};
  }
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Error{ErrorCode::kIo, fmt::format("limit of open files: {}", std::strerror(errno))};
  }
  return {};
}

}  // namespace lockstep::coordinator
