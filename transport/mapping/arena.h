// A worker's arena: the memory of its own that the other workers of the job on the same host read
// directly.
//
// Its blocks lie in a device's memory when the owner computes there, for the peers' devices to
// read, each in memory of its own; that of spare ones is made when it is first needed (Back). The
// rest is as follows in both cases.
//
// It is a memory file of fixed size. A page takes memory once it is written, and from then on: what
// is never used costs nothing. Too little memory for what is not spare is an error at creation, and
// where the kernel grants no page beyond what it has (vm.overcommit_memory = 2), so that writing
// one could be a SIGBUS, all are allocated there. It is sealed against shrinking and growing, and
// against any writer but the mapping that this object holds; that seal also forbids to give pages
// back. Peers that have it mapped (peer_arena.h) keep it alive, whatever becomes of the owner.
//
// Each block has a generation that says what lies in it. The owner writes so:
//
//   arena.BeginWrite(i);            // from here on readers see kNoGeneration
//   ... write into arena.block(i) ...
//   arena.Publish(i, generation);   // readers that see `generation` see all of these bytes
//
// What a device writes is done before it is published, and begins after BeginWrite has returned.
//
// Nobody ever waits for anybody: a reader finds out after its pass whether the block was rewritten
// meanwhile, and a process that stops or dies between the two calls leaves a block that nobody
// reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/mapping/device_sharing.h"
#include "transport/mapping/exported_blocks.h"
#include "transport/mapping/layout.h"
#include "transport/mapping/os.h"

namespace lockstep::transport {

class Arena {
 public:
  // `device`: in its memory, null: the host's. kInvalid for specs that make no layout; kUnavailable
  // where the machine or the device has not the memory or the kernel not the seals
  // (F_SEAL_FUTURE_WRITE: Linux 5.1). Blocks start zeroed and unpublished.
  static Result<Arena> Create(std::span<const BlockSpec> specs, DeviceSharing* device = nullptr);

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  std::size_t blocks() const { return blocks_.size(); }
  std::optional<std::size_t> Find(std::string_view name) const;
  // On a device, for the device alone to follow; once it is backed.
  std::span<std::byte> block(std::size_t i) const;
  // The same, with memory of the device that is made now where it was not; kUnavailable where there
  // is not so much. Those that are not spare, and the first, have it from the beginning. Any
  // thread.
  Result<std::span<std::byte>> Back(std::size_t i);
  bool backed(std::size_t i) const;
  // All that is in the host's memory.
  std::span<std::byte> memory() const { return {mapping_.data(), mapping_.bytes()}; }

  // One thread at a time per block; different blocks are independent. BeginWrite twice without
  // Publish is allowed: the first write was given up.
  void BeginWrite(std::size_t i);
  // After BeginWrite(i). Generations of a block only grow, so that no reader takes a rewritten
  // block for the old one.
  void Publish(std::size_t i, std::uint64_t generation);

  // For ArenaServer.
  int fd() const { return fd_.get(); }
  // Null where there is no device.
  std::shared_ptr<const ExportedBlocks> exported() const;
  DeviceName device_name() const;
  const ArenaNonce& nonce() const { return nonce_; }

 private:
  struct Block {
    BlockPlace place;
    bool writing = false;
    std::uint64_t last = kNoGeneration;  // the last one published
  };

  Arena(UniqueFd fd, Mapping mapping, const ArenaNonce& nonce, const ArenaLayout& layout);
  std::atomic<std::uint64_t>& GenerationWord(std::size_t i) const;

  UniqueFd fd_;
  Mapping mapping_;
  ArenaNonce nonce_;
  std::vector<Block> blocks_;
  struct OnDevice;
  std::unique_ptr<OnDevice> device_;  // null: blocks lie in the mapping
};

}  // namespace lockstep::transport
