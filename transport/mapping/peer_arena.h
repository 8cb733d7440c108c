// Another worker's arena (arena.h), mapped for reading.
//
// One pass over a block:
//
//   const std::uint64_t g = peer.Generation(i);      // kNoGeneration, or not the one awaited: come
//   back later
//   ... arithmetic over peer.data(i), by any SIMD code ...
//   if (!peer.StillValid(i, g)) ... throw the result away ...
//
// Where the blocks lie in a device's memory the arithmetic is the device's, and done before
// StillValid is asked.
//
// The bytes may change under the reader at any moment; StillValid alone makes a result good. Until
// it has said yes no byte may serve as an index, a pointer or a length (ordering.h has the
// argument). The memory stays mapped and readable however the owner ends; whether the owner lives
// is not to be learnt here.
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

// Memory of a device that a block lies in.
struct DeviceBlock {
  std::size_t block = 0;
  std::uint64_t bytes = 0;
  UniqueFd memory;
};

class PeerArena {
 public:
  // Maps what somebody sent. Nothing about `fd` is believed: it must be a memory file that can
  // neither shrink, nor grow, nor be written through a new mapping, be allocated in full where the
  // kernel may not grant a page later, and hold an arena with this nonce. kInvalid otherwise.
  static Result<PeerArena> FromFd(const UniqueFd& fd, const ArenaNonce& nonce);
  // The same of an arena whose blocks lie in the memory of a device of `device`'s kind; of those
  // that have none yet data() is null. kUnavailable where it cannot be mapped. `device` outlives
  // what is returned.
  static Result<PeerArena> FromFds(const UniqueFd& fd, const ArenaNonce& nonce,
                                   std::span<const DeviceBlock> blocks, const DeviceName& of,
                                   DeviceSharing& device);

  PeerArena(PeerArena&&) noexcept = default;
  PeerArena& operator=(PeerArena&&) noexcept = default;

  std::size_t blocks() const { return blocks_.size(); }
  std::optional<std::size_t> Find(std::string_view name) const;
  std::string_view name(std::size_t i) const { return At(i).name; }
  std::uint64_t bytes(std::size_t i) const { return At(i).bytes; }
  // On a device, for the device alone to follow, and null where the block had no memory when this
  // was mapped.
  const std::byte* data(std::size_t i) const {
    const BlockPlace& place = At(i);
    return device_.empty() ? mapping_.data() + place.offset : device_[i].data();
  }

  // Any thread, any number of them.
  std::uint64_t Generation(std::size_t i) const;
  // After a pass over the data: every byte that was read since Generation(i) returned `generation`
  // belongs to it. False for kNoGeneration.
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
