#include "transport/mapping/peer_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/mapping/ordering.h"

namespace lockstep::transport {

namespace {

Result<std::pair<Mapping, ArenaLayout>> MapHostPart(const UniqueFd& fd, const ArenaNonce& nonce) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return SystemError(ErrorCode::kInvalid, "the peer sent something that is not a memory file",
                       errno);
  }
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  if ((seals & kWanted) != kWanted) {
    return Error{ErrorCode::kInvalid, "the memory that the peer sent is not sealed"};
  }
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) {
    return SystemError(ErrorCode::kInvalid, "cannot ask for the size of the peer's memory", errno);
  }
  if (status.st_size < static_cast<off_t>(sizeof(ArenaHeader))) {
    return Error{ErrorCode::kInvalid, "the memory that the peer sent is too small for an arena"};
  }
  // Our read would have to allocate a hole, which may be a SIGBUS: no peer may end us by that.
  constexpr off_t kStatBlockBytes = 512;
  if (TouchingAHoleMayFail() &&
      status.st_blocks < (status.st_size + kStatBlockBytes - 1) / kStatBlockBytes) {
    return Error{ErrorCode::kInvalid, "the memory that the peer sent has holes"};
  }
  auto mapping = Mapping::Map(fd.get(), static_cast<std::size_t>(status.st_size), PROT_READ);
  if (!mapping) return mapping.error();
  auto layout = ReadLayout({mapping->data(), mapping->bytes()}, nonce);
  if (!layout) return layout.error();
  return std::pair(*std::move(mapping), *std::move(layout));
}

}  // namespace

Result<PeerArena> PeerArena::FromFd(const UniqueFd& fd, const ArenaNonce& nonce) {
  auto host = MapHostPart(fd, nonce);
  if (!host) return host.error();
  if (host->second.device_bytes != 0) {
    return Error{ErrorCode::kInvalid, "the memory that the peer sent is not all of its arena"};
  }
  return PeerArena(std::move(host->first), std::move(host->second),
                   std::vector<SharedDeviceMemory>());
}

Result<PeerArena> PeerArena::FromFds(const UniqueFd& fd, const ArenaNonce& nonce,
                                     std::span<const DeviceBlock> blocks, const DeviceName& of,
                                     DeviceSharing& device) {
  auto host = MapHostPart(fd, nonce);
  if (!host) return host.error();
  const ArenaLayout& layout = host->second;
  if (layout.device_bytes == 0) {
    return Error{ErrorCode::kInvalid, "the peer sent a device's memory beside a whole arena"};
  }
  std::vector<SharedDeviceMemory> memory(layout.blocks.size());
  for (const DeviceBlock& block : blocks) {
    if (block.block >= memory.size() || block.bytes < layout.blocks[block.block].bytes) {
      return Error{ErrorCode::kInvalid,
                   "the device's memory that the peer sent is not its blocks'"};
    }
    auto imported = device.Import(block.memory, block.bytes, of);
    if (!imported) return imported.error();
    memory[block.block] = SharedDeviceMemory(device, *imported, block.bytes);
  }
  return PeerArena(std::move(host->first), std::move(host->second), std::move(memory));
}

std::optional<std::size_t> PeerArena::Find(std::string_view name) const {
  const auto found = std::ranges::find(blocks_, name, &BlockPlace::name);
  if (found == blocks_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - blocks_.begin());
}

const std::atomic<std::uint64_t>& PeerArena::GenerationWord(std::size_t i) const {
  LOCKSTEP_CHECK(i < blocks_.size(), "block {} of {}", i, blocks_.size());
  return reinterpret_cast<const BlockEntry*>(mapping_.data() + EntryOffset(i))->generation;
}

std::uint64_t PeerArena::Generation(std::size_t i) const {
  return GenerationWord(i).load(std::memory_order_acquire);
}

bool PeerArena::StillValid(std::size_t i, std::uint64_t generation) const {
  ReadsBeforeLaterLoad();
  return generation != kNoGeneration &&
         GenerationWord(i).load(std::memory_order_relaxed) == generation;
}

}  // namespace lockstep::transport
