// The pinned buffers through which pieces of one peer go one way.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "transport/staging/device_copies.h"
#include "transport/transport.h"

namespace lockstep::transport::staging {

class Ring {
 public:
  // They are one region of `inner`. kUnavailable where there is no such memory.
  static Result<Ring> Make(Transport& inner, DeviceCopies& copies, std::size_t slots,
                           std::size_t slot_bytes) {
    auto memory = copies.AllocatePinned(slots * slot_bytes);
    if (!memory) return memory.error();
    auto region = inner.Register(MemoryKind::kPinned, *memory, slots * slot_bytes);
    if (!region) {
      copies.FreePinned(*memory, slots * slot_bytes);
      return region.error();
    }
    return Ring(*memory, *region, slots, slot_bytes);
  }

  std::optional<std::size_t> Take() {
    if (free_.empty()) return std::nullopt;
    const std::size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Give(std::size_t slot) { free_.push_back(slot); }

  std::byte* At(std::size_t slot) const { return memory_ + slot * slot_bytes_; }
  Slice SliceOf(std::size_t slot, std::size_t bytes) const {
    return {region_, slot * slot_bytes_, bytes};
  }
  // No copy or transfer may be under way.
  void Free(DeviceCopies& copies) const { copies.FreePinned(memory_, slots_ * slot_bytes_); }

 private:
  Ring(std::byte* memory, RegionId region, std::size_t slots, std::size_t slot_bytes)
      : memory_(memory), region_(region), slots_(slots), slot_bytes_(slot_bytes) {
    for (std::size_t i = slots; i > 0; --i) free_.push_back(i - 1);
  }

  std::byte* memory_;
  RegionId region_;
  std::size_t slots_;
  std::size_t slot_bytes_;
  std::vector<std::size_t> free_;
};

}  // namespace lockstep::transport::staging
