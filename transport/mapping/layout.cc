#include "transport/mapping/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

namespace lockstep::transport {
namespace {

constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 46;

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool GoodName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxBlockNameBytes &&
         std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7f; });
}

Error Malformed(const std::string& reason) {
  return {ErrorCode::kInvalid, "not an arena of Lockstep: " + reason};
}

}  // namespace

Result<ArenaLayout> PlanLayout(std::span<const BlockSpec> specs, std::size_t page_bytes,
                               BlocksIn where) {
  if (specs.empty() || specs.size() > kMaxArenaBlocks) {
    return Error{ErrorCode::kInvalid, fmt::format("an arena has 1 to {} blocks, {} were asked for",
                                                  kMaxArenaBlocks, specs.size())};
  }
  ArenaLayout layout;
  std::set<std::string_view> names;
  const std::uint64_t head = RoundUp(EntryOffset(specs.size()), page_bytes);
  const bool on_device = where == BlocksIn::kDeviceMemory;
  std::uint64_t end = on_device ? 0 : head;
  for (const BlockSpec& spec : specs) {
    if (!GoodName(spec.name) || !names.insert(spec.name).second) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("block name '{}' is malformed or used twice", spec.name)};
    }
    const std::uint64_t offset = RoundUp(end, spec.page_aligned ? page_bytes : kBlockAlignment);
    if (spec.bytes > kMaxArenaBytes || offset > kMaxArenaBytes - spec.bytes) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("block '{}' of {} bytes makes the arena larger than {} bytes",
                               spec.name, spec.bytes, kMaxArenaBytes)};
    }
    layout.blocks.push_back({spec.name, offset, spec.bytes});
    end = offset + spec.bytes;
  }
  layout.total_bytes = on_device ? head : RoundUp(end, page_bytes);
  layout.device_bytes = on_device ? RoundUp(std::max<std::uint64_t>(end, 1), page_bytes) : 0;
  return layout;
}

Result<ArenaLayout> ReadLayout(std::span<const std::byte> arena, const ArenaNonce& nonce) {
  if (arena.size() < sizeof(ArenaHeader)) return Malformed("too small for a header");
  ArenaHeader header;
  std::memcpy(&header, arena.data(), sizeof(header));
  if (header.magic != kArenaMagic) return Malformed("wrong magic number");
  if (header.version != kArenaVersion) {
    return Malformed(fmt::format("layout version {}, not {}", header.version, kArenaVersion));
  }
  if (header.total_bytes != arena.size()) return Malformed("its size is not what its header says");
  if (header.nonce != nonce) return Malformed("its nonce is not the one that was promised");
  if (header.block_count == 0 || header.block_count > kMaxArenaBlocks ||
      EntryOffset(header.block_count) > arena.size()) {
    return Malformed(fmt::format("{} blocks", header.block_count));
  }
  ArenaLayout layout{
      .total_bytes = arena.size(), .device_bytes = header.device_bytes, .blocks = {}};
  const bool on_device = header.device_bytes != 0;
  const std::uint64_t first = on_device ? 0 : EntryOffset(header.block_count);
  const std::uint64_t end = on_device ? header.device_bytes : arena.size();
  for (std::size_t i = 0; i < header.block_count; ++i) {
    struct {
      std::uint64_t offset;
      std::uint64_t bytes;
      std::array<char, kMaxBlockNameBytes + 1> name;
    } entry;
    static_assert(sizeof(entry) == offsetof(BlockEntry, generation));
    std::memcpy(&entry, arena.data() + EntryOffset(i), sizeof(entry));
    if (entry.offset < first || entry.offset % kBlockAlignment != 0 || entry.offset > end ||
        entry.bytes > end - entry.offset) {
      return Malformed(fmt::format("block {} lies outside", i));
    }
    const std::string_view name(entry.name.data(), strnlen(entry.name.data(), entry.name.size()));
    if (!GoodName(name)) return Malformed(fmt::format("block {} has no proper name", i));
    layout.blocks.push_back({std::string(name), entry.offset, entry.bytes});
  }
  return layout;
}

}  // namespace lockstep::transport
