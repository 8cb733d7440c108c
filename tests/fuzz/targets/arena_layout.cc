// The head of a peer's arena, which the peer may write as it likes.
#include "transport/mapping/layout.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

constexpr std::size_t kPage = 4096;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

// The arena's bytes; with an odd last byte they get the right nonce.
bool Run(Bytes bytes) {
  const bool right = !bytes.empty() && (bytes.back() & 1) != 0;
  const std::size_t size = (bytes.size() + kPage - 1) / kPage * kPage;
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(kPage, std::max(size, kPage)));
  std::memset(memory.get(), 0, std::max(size, kPage));
  std::ranges::copy(std::as_bytes(bytes), static_cast<std::byte*>(memory.get()));
  transport::ArenaNonce nonce{};
  if (right && size >= sizeof(transport::ArenaHeader)) {
    std::memcpy(
        nonce.data(),
        static_cast<const std::byte*>(memory.get()) + offsetof(transport::ArenaHeader, nonce),
        nonce.size());
  }
  const auto layout =
      transport::ReadLayout({static_cast<const std::byte*>(memory.get()), size}, nonce);
  if (!layout) {
    LOCKSTEP_CHECK(OneLine(layout.error().message), "{}", layout.error().message);
    return false;
  }
  LOCKSTEP_CHECK(layout->total_bytes <= size &&
                 layout->blocks.size() <= transport::kMaxArenaBlocks);
  const std::uint64_t room = layout->device_bytes > 0 ? layout->device_bytes : layout->total_bytes;
  for (const transport::BlockPlace& block : layout->blocks) {
    LOCKSTEP_CHECK(block.offset <= room && block.bytes <= room - block.offset);
    LOCKSTEP_CHECK(block.offset % transport::kBlockAlignment == 0);
    LOCKSTEP_CHECK(OneLine(block.name) && block.name.size() <= transport::kMaxBlockNameBytes);
  }
  return true;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const auto where : {transport::BlocksIn::kHostMemory, transport::BlocksIn::kDeviceMemory}) {
    const std::vector<transport::BlockSpec> specs = {
        {.name = "contribution0", .bytes = 100, .page_aligned = true},
        {.name = "sum0", .bytes = 64},
        {.name = "empty", .bytes = 0}};
    const auto layout = transport::PlanLayout(specs, kPage, where);
    LOCKSTEP_CHECK(layout.ok());
    // Only what a reader looks at, and the mark for the nonce.
    std::string bytes(static_cast<std::size_t>(layout->total_bytes), '\0');
    transport::ArenaHeader header{};
    header.magic = transport::kArenaMagic;
    header.version = transport::kArenaVersion;
    header.block_count = static_cast<std::uint32_t>(layout->blocks.size());
    header.total_bytes = layout->total_bytes;
    header.device_bytes = layout->device_bytes;
    header.nonce.fill(std::byte{5});
    std::memcpy(bytes.data(), &header, sizeof header);
    for (std::size_t i = 0; i < layout->blocks.size(); ++i) {
      const transport::BlockPlace& block = layout->blocks[i];
      char* entry = bytes.data() + transport::EntryOffset(i);
      std::memcpy(entry + offsetof(transport::BlockEntry, offset), &block.offset, 8);
      std::memcpy(entry + offsetof(transport::BlockEntry, bytes), &block.bytes, 8);
      std::memcpy(entry + offsetof(transport::BlockEntry, name), block.name.data(),
                  block.name.size());
    }
    bytes.back() = '\1';
    seeds.push_back(bytes);
  }
  return seeds;
}

}  // namespace lockstep::fuzz
