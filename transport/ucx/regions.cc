#include "transport/ucx/regions.h"

#include <fmt/format.h>

#include "base/check.h"
#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {

Result<RegionId> Regions::Add(MemoryKind kind, void* base, std::size_t bytes) {
  if (base == nullptr || bytes == 0) return Error{ErrorCode::kInvalid, "a region without memory"};
  if (kind == MemoryKind::kCuda && !cuda_) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX {} knows no CUDA memory here: it was built without CUDA or found "
                             "no device, so stage through pinned memory",
                             ucp_get_version_string())};
  }
  const RegionId id(next_++);
  regions_.emplace(id, Region{kind, static_cast<std::byte*>(base), bytes});
  return id;
}

void Regions::Remove(RegionId region) {
  LOCKSTEP_CHECK(regions_.erase(region) == 1, "region {} is not registered", region.value);
}

std::optional<Regions::Memory> Regions::Find(const Slice& slice) const {
  const auto found = regions_.find(slice.region);
  if (found == regions_.end()) return std::nullopt;
  const Region& region = found->second;
  if (slice.offset > region.bytes || slice.bytes > region.bytes - slice.offset) return std::nullopt;
  return Memory{region.base + slice.offset,
                region.kind == MemoryKind::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST};
}

}  // namespace lockstep::transport::ucx
