// The registered regions of a transport that reaches memory by plain loads and stores (tcp,
// inproc).
#pragma once

#include <cstddef>
#include <unordered_map>

#include "base/check.h"
#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport {

class HostRegionTable {
 public:
  Result<RegionId> Add(MemoryKind kind, void* base, std::size_t bytes) {
    if (kind == MemoryKind::kCuda) {
      return Error{ErrorCode::kUnavailable, "this transport does not reach CUDA memory"};
    }
    last_ = last_.Next();
    regions_.emplace(last_, std::span(static_cast<std::byte*>(base), bytes));
    return last_;
  }

  void Remove(RegionId region) { regions_.erase(region); }

  // A slice outside its region is a bug of this process: slices never come from a peer.
  std::span<std::byte> Resolve(const Slice& slice) const {
    if (slice.bytes == 0) return {};
    const auto found = regions_.find(slice.region);
    LOCKSTEP_CHECK(found != regions_.end(), "region {} is not registered", slice.region);
    LOCKSTEP_CHECK(
        slice.offset <= found->second.size() && slice.bytes <= found->second.size() - slice.offset,
        "a slice of {} bytes at {} leaves its region of {} bytes", slice.bytes, slice.offset,
        found->second.size());
    return found->second.subspan(slice.offset, slice.bytes);
  }

 private:
  std::unordered_map<RegionId, std::span<std::byte>> regions_;
  RegionId last_;
};

}  // namespace lockstep::transport
