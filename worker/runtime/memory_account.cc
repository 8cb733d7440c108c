#include "worker/runtime/memory_account.h"

#include <fmt/format.h>

namespace lockstep::worker {

std::string Describe(const MemoryAccount& account, std::uint64_t parameter_bytes) {
  const auto times = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(parameter_bytes);
  };
  return fmt::format(
      "{:.1f} MiB, {:.2f} times the parameters: {:.2f} state, {:.2f} contributions, {:.2f} sums, "
      "{:.2f} staging, {:.2f} snapshots, {:.2f} copies",
      static_cast<double>(account.total()) / (1 << 20), times(account.total()),
      times(account.state), times(account.contributions), times(account.sums),
      times(account.staging), times(account.snapshots), times(account.copies));
}

}  // namespace lockstep::worker
