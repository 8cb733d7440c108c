// A worker's arena: its memory that the other workers of the job on the same host read directly.
//
// Its blocks lie in a device's memory when the owner computes there, for the peers' devices to
// read. Each has memory of its own; that of spare ones is made when it is first needed (Back). The
// rest holds in both cases.
//
// It is a memory file of fixed size. A page takes memory from its first write on: unused pages cost
// nothing. Too little memory for blocks that are not spare is an error at creation. Where the
// kernel may grant no further page (vm.overcommit_memory = 2), all pages are allocated then, since
// writing a missing one could be a SIGBUS. It is sealed against shrinking and growing, and against
// any writer but the mapping that this object holds; that seal also forbids giving pages back.
// Peers that have it mapped (peer_arena.h) keep it alive, whatever becomes of the owner.
//
// Each block has a generation that names its contents. The owner writes so:
//
//   arena.BeginWrite(i);            // from here on readers see kNoGeneration
//   ... write into arena.block(i) ...
//   arena.Publish(i, generation);   // readers that see `generation` see all of these bytes
//
// A device's writes are done before they are published, and begin after BeginWrite has returned.
//
// Nobody ever waits for another process: a reader finds out after its pass whether the block was
// rewritten meanwhile. A process that stops or dies between the two calls leaves a block that
// nobody reads.
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
  // `device`: its memory holds the blocks; null: the host's does. kInvalid for specs that make no
  // layout. kUnavailable where the machine or the device lacks the memory, or the kernel the seals
  // (F_SEAL_FUTURE_WRITE: Linux 5.1). Blocks start zeroed and unpublished.
  static Result<Arena> Create(std::span<const BlockSpec> specs, DeviceSharing* device = nullptr);

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  std::size_t blocks() const { return blocks_.size(); }
  std::optional<std::size_t> Find(std::string_view name) const;
  // On a device, only the device may follow the pointer, and only after Back.
  std::span<std::byte> block(std::size_t i) const;
  // The same block, with memory of the device that is made now if it was missing; kUnavailable
  // where there is not so much. Blocks that are not spare, and the first one, have it from the
  // beginning. Any thread may call it.
  Result<std::span<std::byte>> Back(std::size_t i);
  bool backed(std::size_t i) const;
  // The whole part in the host's memory.
  std::span<std::byte> memory() const { return {mapping_.data(), mapping_.bytes()}; }

  // One thread at a time may use a block; different blocks are independent. BeginWrite twice
  // without Publish is allowed: it gives up the first write.
  void BeginWrite(std::size_t i);
  // Call it after BeginWrite(i). Generations of a block only grow, so that no reader takes a
  // rewritten block for the old one.
  void Publish(std::size_t i, std::uint64_t generation);

  // ArenaServer uses it.
  int fd() const { return fd_.get(); }
  // It is null where there is no device.
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
