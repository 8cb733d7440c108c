#include "transport/mapping/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "base/check.h"
#include "base/free_memory.h"
#include "transport/mapping/ordering.h"

namespace lockstep::transport {
namespace {

// It needs Linux 6.3; a header of the C library may be older than the kernel.
constexpr unsigned kNoExecSeal = 0x0008U;

Result<UniqueFd> MakeFile() {
  constexpr const char* kName = "lockstep-arena";
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(memfd_create(kName, kFlags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd = UniqueFd(memfd_create(kName, kFlags));
  if (!fd) return SystemError(ErrorCode::kUnavailable, "cannot make an arena", errno);
  return fd;
}

// A size beyond RLIMIT_FSIZE would raise a signal instead of an error. Without enough memory, the
// kernel would kill a process in the middle of the job.
Status CheckSize(std::uint64_t bytes, std::uint64_t needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("an arena of {} bytes is over the limit of {} bytes on file sizes",
                             bytes, limit.rlim_cur)};
  }
  return CheckMemory(needed, "an arena");
}

// It goes in steps, as a signal makes the kernel undo the whole of an interrupted call.
Status Allocate(int fd, std::uint64_t bytes) {
  constexpr std::uint64_t kStep = 64u << 20;
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t step = std::min(kStep, bytes - at);
    const int failed = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(step));
    if (failed == EINTR) continue;
    if (failed != 0) {
      return SystemError(ErrorCode::kUnavailable,
                         fmt::format("cannot allocate an arena of {} bytes", bytes), failed);
    }
    at += step;
  }
  return {};
}

Status Size(int fd, std::uint64_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    return SystemError(ErrorCode::kUnavailable,
                       fmt::format("cannot size an arena to {} bytes", bytes), errno);
  }
  return TouchingAHoleMayFail() ? Allocate(fd, bytes) : Status{};
}

}  // namespace

struct Arena::OnDevice {
  OnDevice(DeviceSharing& device, std::size_t blocks)
      : sharing(device),
        memory(blocks),
        data(blocks),
        exported(std::make_shared<ExportedBlocks>(blocks)) {}

  DeviceSharing& sharing;
  std::mutex mutex;                        // held by the thread that makes memory
  std::vector<SharedDeviceMemory> memory;  // by block
  std::vector<std::atomic<std::byte*>> data;
  const std::shared_ptr<ExportedBlocks> exported;
};

Result<Arena> Arena::Create(std::span<const BlockSpec> specs, DeviceSharing* device) {
  auto layout = PlanLayout(specs, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
                           device ? BlocksIn::kDeviceMemory : BlocksIn::kHostMemory);
  if (!layout) return layout.error();
  if (device != nullptr && specs.size() > kMaxDeviceBlocks) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("an arena has at most {} blocks on a device, {} were asked for",
                             kMaxDeviceBlocks, specs.size())};
  }
  std::uint64_t needed = layout->total_bytes;
  for (const BlockSpec& spec : specs) needed -= spec.spare && device == nullptr ? spec.bytes : 0;
  if (Status fits = CheckSize(layout->total_bytes, needed); !fits) return fits.error();
  auto fd = MakeFile();
  if (!fd) return fd.error();
  if (Status sized = Size(fd->get(), layout->total_bytes); !sized) return sized.error();
  auto mapping = Mapping::Map(fd->get(), layout->total_bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error();
  // FUTURE_WRITE leaves the mapping just made as the only way to write. A read-only descriptor
  // would not do, as its holder can open it again through /proc. It also forbids punching holes,
  // which would remove pages.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(fd->get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError(ErrorCode::kUnavailable, "cannot seal an arena (Linux 5.1 or later can)",
                       errno);
  }
  ArenaNonce nonce;
  const int drawn =
      RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size()));
  LOCKSTEP_CHECK(drawn == 1, "no random bytes to be had");
  if (device == nullptr) return Arena(*std::move(fd), *std::move(mapping), nonce, *layout);
  Arena arena(*std::move(fd), *std::move(mapping), nonce, *layout);
  arena.device_ = std::make_unique<OnDevice>(*device, specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (i > 0 && specs[i].spare) continue;
    if (auto backed = arena.Back(i); !backed) return backed.error();
  }
  return arena;
}

Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::~Arena() = default;

Arena::Arena(UniqueFd fd, Mapping mapping, const ArenaNonce& nonce, const ArenaLayout& layout)
    : fd_(std::move(fd)), mapping_(std::move(mapping)), nonce_(nonce) {
  for (std::size_t i = 0; i < layout.blocks.size(); ++i) {
    const BlockPlace& place = layout.blocks[i];
    auto* entry = new (mapping_.data() + EntryOffset(i)) BlockEntry{
        .offset = place.offset, .bytes = place.bytes, .name = {}, .generation = kNoGeneration};
    std::ranges::copy(place.name, entry->name.begin());
    blocks_.push_back({.place = place});
  }
  new (mapping_.data()) ArenaHeader{.magic = kArenaMagic,
                                    .version = kArenaVersion,
                                    .block_count = static_cast<std::uint32_t>(blocks_.size()),
                                    .total_bytes = layout.total_bytes,
                                    .nonce = nonce,
                                    .device_bytes = layout.device_bytes};
}

std::optional<std::size_t> Arena::Find(std::string_view name) const {
  const auto found = std::ranges::find(blocks_, name, [](const Block& b) { return b.place.name; });
  if (found == blocks_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - blocks_.begin());
}

std::span<std::byte> Arena::block(std::size_t i) const {
  LOCKSTEP_CHECK(i < blocks_.size(), "block {} of {}", i, blocks_.size());
  const BlockPlace& place = blocks_[i].place;
  if (device_ == nullptr) return {mapping_.data() + place.offset, place.bytes};
  std::byte* data = device_->data[i].load(std::memory_order_acquire);
  LOCKSTEP_CHECK(data != nullptr, "block '{}' has no memory yet", place.name);
  return {data, place.bytes};
}

Result<std::span<std::byte>> Arena::Back(std::size_t i) {
  if (backed(i)) return block(i);
  {
    const std::lock_guard lock(device_->mutex);
    if (!backed(i)) {
      auto exported = device_->sharing.Export(blocks_[i].place.bytes);
      if (!exported) return exported.error();
      device_->memory[i] = SharedDeviceMemory(device_->sharing, exported->data, exported->bytes);
      device_->exported->Put(i, std::move(exported->fd), exported->bytes);
      device_->data[i].store(exported->data, std::memory_order_release);
    }
  }
  return block(i);
}

bool Arena::backed(std::size_t i) const {
  LOCKSTEP_CHECK(i < blocks_.size(), "block {} of {}", i, blocks_.size());
  return device_ == nullptr || device_->data[i].load(std::memory_order_acquire) != nullptr;
}

std::shared_ptr<const ExportedBlocks> Arena::exported() const {
  return device_ ? device_->exported : nullptr;
}

DeviceName Arena::device_name() const { return device_ ? device_->sharing.name() : DeviceName(); }

std::atomic<std::uint64_t>& Arena::GenerationWord(std::size_t i) const {
  LOCKSTEP_CHECK(i < blocks_.size(), "block {} of {}", i, blocks_.size());
  return reinterpret_cast<BlockEntry*>(mapping_.data() + EntryOffset(i))->generation;
}

void Arena::BeginWrite(std::size_t i) {
  GenerationWord(i).store(kNoGeneration, std::memory_order_relaxed);
  StoreBeforeLaterWrites();
  blocks_[i].writing = true;
}

void Arena::Publish(std::size_t i, std::uint64_t generation) {
  auto& word = GenerationWord(i);
  Block& block = blocks_[i];
  LOCKSTEP_CHECK(block.writing, "block '{}' was not begun", block.place.name);
  LOCKSTEP_CHECK(generation > block.last, "block '{}' goes from generation {} to {}",
                 block.place.name, block.last, generation);
  block.writing = false;
  block.last = generation;
  WritesBeforeLaterStore();
  word.store(generation, std::memory_order_release);
}

}  // namespace lockstep::transport
