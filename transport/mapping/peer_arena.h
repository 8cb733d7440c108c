// Another worker's arena (arena.h), mapped for reading.
//
// One pass over a block:
//
//   const std::uint64_t g = peer.Generation(i);      // kNoGeneration, or not the one awaited: come
//   back later
//   ... arithmetic over peer.data(i), by any SIMD code ...
//   if (!peer.StillValid(i, g)) ... throw the result away ...
//
// Where the blocks lie in a device's memory, the device does the arithmetic and ends it before
// StillValid is called.
//
// The bytes may change under the reader at any moment; StillValid alone makes a result good. Before
// it returns true, no byte may serve as an index, a pointer or a length (ordering.h has the
// argument). The memory stays mapped and readable however the owner ends; it does not show whether
// the owner lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "transport/mapping/device_sharing.h"
#include "transport/mapping/layout.h"
#include "transport/mapping/os.h"

namespace lockstep::transport {

// The memory of a device that holds a block.
struct DeviceBlock {
  std::size_t block = 0;
  std::uint64_t bytes = 0;
  UniqueFd memory;
};

class PeerArena {
 public:
  // Maps the memory that somebody sent. It trusts nothing about `fd`. That must be a memory file
  // that can neither shrink, nor grow, nor be written through a new mapping, and hold an arena with
  // this nonce. Where the kernel may not grant a page later, it must be allocated in full. kInvalid
  // otherwise.
  static Result<PeerArena> FromFd(const UniqueFd& fd, const ArenaNonce& nonce);
  // The same for an arena whose blocks lie in the memory of a device of `device`'s kind. For blocks
  // that have no memory yet, data() is null. kUnavailable where it cannot be mapped. `device`
  // outlives the result.
  static Result<PeerArena> FromFds(const UniqueFd& fd, const ArenaNonce& nonce,
                                   std::span<const DeviceBlock> blocks, const DeviceName& of,
                                   DeviceSharing& device);

  PeerArena(PeerArena&&) noexcept = default;
  PeerArena& operator=(PeerArena&&) noexcept = default;

  std::size_t blocks() const { return blocks_.size(); }
  std::optional<std::size_t> Find(std::string_view name) const;
  std::string_view name(std::size_t i) const { return At(i).name; }
  std::uint64_t bytes(std::size_t i) const { return At(i).bytes; }
  // On a device, only the device may follow the pointer; it is null where the block had no memory
  // when this was mapped.
  const std::byte* data(std::size_t i) const {
    const BlockPlace& place = At(i);
    return device_.empty() ? mapping_.data() + place.offset : device_[i].data();
  }

  // Any number of threads may call it.
  std::uint64_t Generation(std::size_t i) const;
  // Call it after a pass over the data. True: every byte that was read since Generation(i) returned
  // `generation` belongs to it. It is false for kNoGeneration.
  bool StillValid(std::size_t i, std::uint64_t generation) const;

 private:
  PeerArena(Mapping mapping, ArenaLayout layout, std::vector<SharedDeviceMemory> device)
      : mapping_(std::move(mapping)),
        device_(std::move(device)),
        blocks_(std::move(layout.blocks)) {}
  const BlockPlace& At(std::size_t i) const {
    LOCKSTEP_CHECK(i < blocks_.size(), "block {} of {}", i, blocks_.size());
    return blocks_[i];
  }
  const std::atomic<std::uint64_t>& GenerationWord(std::size_t i) const;

  Mapping mapping_;
  std::vector<SharedDeviceMemory> device_;  // by block; none where the blocks lie in the mapping
  std::vector<BlockPlace> blocks_;          // as checked; never read again from the mapping
};

}  // namespace lockstep::transport
