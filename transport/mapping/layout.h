// The layout of an arena in memory, the same for its owner and its readers.
//
//   0                ArenaHeader            64 bytes
//   64               BlockEntry[blocks]     128 bytes each; the generation has a cache line of its
//                                           own
//   page boundary    the blocks, each on a boundary of 64 bytes or of a page; or nothing, where
//                    they lie in a device's memory, from its beginning on
//
// Integers are native: an arena never leaves its host.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::transport {

inline constexpr std::uint64_t kArenaMagic = 0x414e4552414b4c31;  // "1LKARENA"
inline constexpr std::uint32_t kArenaVersion = 2;
inline constexpr std::size_t kArenaNonceBytes = 16;
inline constexpr std::size_t kMaxArenaBlocks = 4096;
inline constexpr std::size_t kMaxBlockNameBytes = 47;
inline constexpr std::size_t kBlockAlignment = 64;

// The generation of a block that was never published or is being rewritten: there is nothing to
// read.
inline constexpr std::uint64_t kNoGeneration = 0;

using ArenaNonce = std::array<std::byte, kArenaNonceBytes>;

struct alignas(64) ArenaHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t block_count;
  std::uint64_t total_bytes;
  ArenaNonce nonce;
  std::uint64_t device_bytes;  // of the device's memory; 0: the blocks lie here
};
static_assert(sizeof(ArenaHeader) == 64);

struct BlockEntry {
  std::uint64_t offset;  // from the start of the arena, or of the device's memory
  std::uint64_t bytes;
  std::array<char, kMaxBlockNameBytes + 1> name;  // ends with a zero
  alignas(64) std::atomic<std::uint64_t> generation;
};
static_assert(sizeof(BlockEntry) == 128 && offsetof(BlockEntry, generation) == 64);
// Address-free atomics only: a lock inside shared memory could be held by a process that is gone.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A block that the owner asks for. Names are unique, of 1 to kMaxBlockNameBytes printable
// characters.
struct BlockSpec {
  std::string name;
  std::uint64_t bytes = 0;
  bool page_aligned = false;  // else aligned to kBlockAlignment
  bool spare = false;         // perhaps never written: it needs no memory until then
};

// The place of a block.
struct BlockPlace {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct ArenaLayout {
  std::uint64_t total_bytes = 0;   // whole pages
  std::uint64_t device_bytes = 0;  // 0: the blocks lie in the arena itself
  std::vector<BlockPlace> blocks;
};

inline std::size_t EntryOffset(std::size_t block) {
  return sizeof(ArenaHeader) + block * sizeof(BlockEntry);
}

// The memory that holds the blocks.
enum class BlocksIn : std::uint8_t { kHostMemory, kDeviceMemory };

// Places the blocks. kInvalid: there are too many, a name is bad, or no machine addresses the sum
// of their sizes.
Result<ArenaLayout> PlanLayout(std::span<const BlockSpec> specs, std::size_t page_bytes,
                               BlocksIn where = BlocksIn::kHostMemory);

// Reads the layout out of a stranger's mapping. Each field is read once and checked as read, since
// the other side may change it at any moment. For any bytes, the returned blocks lie inside
// `arena`, or the device's memory. kInvalid with the reason.
Result<ArenaLayout> ReadLayout(std::span<const std::byte> arena, const ArenaNonce& nonce);

}  // namespace lockstep::transport
