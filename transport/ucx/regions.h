// The memory that the transport may read and write. To UCX it is ordinary memory: it registers the
// memory that a rendezvous touches and keeps that in a cache of its own. A handle of ours would not
// be invalidated when a peer fails in the middle of a transfer.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/result.h"
#include "transport/transport.h"

namespace lockstep::transport::ucx {

class Regions {
 public:
  struct Memory {
    std::byte* data = nullptr;
    ucs_memory_type_t kind = UCS_MEMORY_TYPE_HOST;
  };

  explicit Regions(bool cuda) : cuda_(cuda) {}

  Result<RegionId> Add(MemoryKind kind, void* base, std::size_t bytes);
  void Remove(RegionId region);
  // nullopt when the slice is not inside a region.
  std::optional<Memory> Find(const Slice& slice) const;

 private:
  struct Region {
    MemoryKind kind = MemoryKind::kHost;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
  };

  const bool cuda_;
  std::uint32_t next_ = 1;
  std::unordered_map<RegionId, Region> regions_;
};

}  // namespace lockstep::transport::ucx
