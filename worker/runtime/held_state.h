// With optimizer.replicas, where a worker's exchange is in a device's memory: the optimizer's state
// of the shards that it holds. (In the host's memory it lies in pages like all state, of which only
// those of what is held are touched.)
//
// Each shard has a block: the numbers of its slices in the order of the parameters, for each of the
// optimizer's tensors, one behind the other. A block is there once it is used. State that comes
// from other workers or out of a checkpoint lies in the host's memory until the shard is first
// updated. Most of it is never updated here, and a device has no room for it. (Of a checkpoint that
// is resumed or gathered, all shards come to one worker.)
//
// Threads. The data thread calls what is marked so, the reduction thread ToDevice; the rest is for
// both. Two threads do not ask for the same shard at once, as the core sees to (holdings.h). The
// exception is state that is served, which may be updated, moved or dropped meanwhile: its bytes
// are then of no use, and its memory stays.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transport/transport.h"
#include "worker/layout/layout.h"
#include "worker/memory/exchange_memory.h"
#include "worker/memory/host_memory.h"
#include "worker/runtime/pages.h"

namespace lockstep::worker {

class HeldState {
 public:
  // So many shards (Layout::EqualShard), and tensors. `device` outlives it.
  HeldState(const Layout& layout, std::uint32_t shards, std::uint32_t tensors,
            ExchangeMemory& device);
  ~HeldState();
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;

  // The part of a range that is one shard's: it lies together, from number `at` of each of its
  // tensors on.
  struct Part {
    std::uint32_t shard = 0;
    FloatRange range;
    std::uint64_t at = 0;
  };
  std::vector<Part> Cut(const FloatRange& range) const;
  // Numbers of a tensor of it.
  std::uint64_t floats(std::uint32_t shard) const { return floats_[shard]; }

  // The shard's first tensor in the device's memory, to be updated there. A DeviceError where there
  // is no room for it.
  float* ToDevice(std::uint32_t shard);

  // Tensors count from 1 on, as those of BufferKind::kState. State that nobody has stored is zero.
  // A DeviceError where the host has no room for it.
  void Store(std::uint32_t tensor, std::uint64_t offset_bytes, std::span<const std::byte> bytes);
  // All of a tensor, to as many numbers as there are parameters.
  void Read(std::uint32_t tensor, float* to);
  // These are held no longer: whole shards.
  void Drop(const std::vector<FloatRange>& ranges);

  // A range of one shard for `transport` to read or write, and what keeps its memory in place
  // meanwhile. The data thread's.
  struct Place {
    transport::Slice slice;
    std::shared_ptr<const void> kept;
  };
  Result<Place> Find(transport::Transport& transport, std::uint32_t tensor,
                     const FloatRange& range);
  // Returns the memory of what was moved or dropped and nobody uses any more. A thread that may
  // wait for the device is to give it back. The data thread's.
  std::vector<std::shared_ptr<const void>> Collect(transport::Transport& transport);
  // Another transport is used from here on.
  void ForgetRegions();

  std::size_t backed();

 private:
  struct Block {
    Pages pages;
    bool on_device = false;
    std::optional<transport::RegionId> region = {};
  };
  using BlockPtr = std::shared_ptr<Block>;
  struct Run {
    FloatRange range;
    std::uint32_t shard = 0;
    std::uint64_t at = 0;
  };

  BlockPtr Make(std::uint32_t shard, bool on_device);
  void Retire(BlockPtr block);
  // Of a shard that nothing is known of, one in the host's memory.
  BlockPtr Of(std::uint32_t shard);
  std::byte* At(const Block& block, const Part& part, std::uint32_t tensor) const;

  ExchangeMemory& device_;
  HostMemory host_;
  const std::uint32_t tensors_;
  std::vector<Run> runs_;  // by offset; together they are all parameters
  std::vector<std::uint64_t> floats_;
  std::mutex mutex_;  // guards the rest
  std::map<std::uint32_t, BlockPtr> blocks_;
  std::vector<BlockPtr> retired_;
  std::atomic<bool> any_retired_{false};  // without the mutex: there may be some
};

}  // namespace lockstep::worker
