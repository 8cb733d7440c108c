// The memory of an arena's blocks on a device: the descriptors that peers import, for the blocks
// that have memory. An arena makes them, and its server hands them on. Any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/mapping/os.h"

namespace lockstep::transport {

// Their descriptors go in one message.
inline constexpr std::size_t kMaxDeviceBlocks = 32;

class ExportedBlocks {
 public:
  struct Block {
    UniqueFd fd;  // none: it is not made yet
    std::uint64_t bytes = 0;
  };

  explicit ExportedBlocks(std::size_t blocks) : blocks_(blocks) {
    LOCKSTEP_CHECK(blocks <= kMaxDeviceBlocks);
  }

  void Put(std::size_t i, UniqueFd fd, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_.at(i) = {std::move(fd), bytes};
  }
  // Calls `visit(blocks)`; the blocks stay until it returns.
  template <class Visit>
  void Look(Visit&& visit) const {
    const std::lock_guard lock(mutex_);
    visit(std::as_const(blocks_));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;
};

}  // namespace lockstep::transport
