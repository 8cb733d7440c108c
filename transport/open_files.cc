#include "transport/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::transport {

Result<std::uint64_t> AllowOpenFiles(std::uint64_t wanted) {
  const auto failed = [] {
    return Error{ErrorCode::kIo, fmt::format("limit of open files: {}", std::strerror(errno))};
  };
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return failed();
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return failed();
  return limit.rlim_cur;
}

std::size_t PlacesForStrangers(std::size_t most) {
  constexpr std::size_t kFewest = 8;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  return std::min<rlim_t>(most, std::max<rlim_t>(limit.rlim_cur / 8, kFewest));
}

}  // namespace lockstep::transport
