#include "worker/runtime/memory_account.h"

#include <fmt/format.h>

namespace lockstep::worker {

namespace {

// Below it what is rounded up to whole pages says more of the pages than of the job.
constexpr std::uint64_t kMultiplesFrom = 1 << 20;

std::string Bytes(std::uint64_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KiB", (bytes + 1023) >> 10)
                           : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string Describe(const MemoryAccount& account, std::uint64_t parameter_bytes) {
  if (parameter_bytes < kMultiplesFrom) return Bytes(account.total());
  const auto times = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(parameter_bytes);
  };
  return fmt::format(
      "{}, {:.2f} times the parameters: {:.2f} state, {:.2f} contributions, {:.2f} sums, "
      "{:.2f} staging, {:.2f} snapshots, {:.2f} copies",
      Bytes(account.total()), times(account.total()), times(account.state),
      times(account.contributions), times(account.sums), times(account.staging),
      times(account.snapshots), times(account.copies));
}

}  // namespace lockstep::worker
