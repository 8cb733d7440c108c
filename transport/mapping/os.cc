#include "transport/mapping/os.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace lockstep::transport {

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

Result<Mapping> Mapping::Map(int fd, std::size_t bytes, int protection) {
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return SystemError(ErrorCode::kUnavailable, fmt::format("cannot map {} bytes", bytes), errno);
  }
  return Mapping(static_cast<std::byte*>(base), bytes);
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

bool TouchingAHoleMayFail() {
  std::ifstream in("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  return in >> mode && mode == 2;
}

Error SystemError(ErrorCode code, const std::string& what, int error_number) {
  return {code, fmt::format("{}: {}", what, std::generic_category().message(error_number))};
}

}  // namespace lockstep::transport
