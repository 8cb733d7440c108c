#include "worker/memory/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "worker/optimizer/rules.h"

namespace lockstep::worker {
namespace {

// Large pages (of x86-64) save most of the misses of the processor's translation buffers in passes
// over all parameters.
constexpr std::uintptr_t kLargePage = 2u << 20;

// So many numbers stay in a core's own cache during the check.
constexpr std::size_t kWidened = 16u << 10;

}  // namespace

Result<std::byte*> HostMemory::Allocate(std::size_t bytes) {
  void* data = ::mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorCode::kUnavailable, fmt::format("cannot have {} MiB of memory: {}",
                                                      bytes >> 20, std::strerror(errno))};
  }
  return static_cast<std::byte*>(data);
}

// Only pages that lie within it as a whole count: none takes memory for a neighbour. Where the
// kernel gives none, or decides by itself, nothing changes.
void HostMemory::ExpectWhole(std::byte* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (begin + bytes) / kLargePage * kLargePage;
  if (first < end) (void)::madvise(memory + (first - begin), end - first, MADV_HUGEPAGE);
}

void HostMemory::ExpectLittle(std::byte* memory, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  if (first < begin + bytes) {
    (void)::madvise(memory + (first - begin), begin + bytes - first, MADV_NOHUGEPAGE);
  }
}

// UCX keeps memory registered that it has sent from or received to. It notices this call by a hook
// in the process (UCX_MEM_EVENTS; without it UCX keeps nothing).
void HostMemory::GiveBack(std::byte* memory, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + bytes) / page * page;
  if (first < end) (void)::madvise(memory + (first - begin), end - first, MADV_DONTNEED);
}

void HostMemory::Free(std::byte* memory, std::size_t bytes) {
  ::munmap(memory, std::max<std::size_t>(bytes, 1));
}

std::size_t HostMemory::Backed(const std::byte* memory, std::size_t bytes) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> resident;
  std::size_t pages = 0;
  for (std::size_t at = 0; at < bytes; at += resident.size() * page) {
    const std::size_t some = std::min(resident.size() * page, bytes - at);
    // The function takes memory that it only reads as a pointer to write to.
    auto* from = const_cast<std::byte*>(memory + at);
    if (::mincore(from, some, resident.data()) != 0) return bytes;
    pages += static_cast<std::size_t>(std::count_if(
        resident.begin(), resident.begin() + static_cast<std::ptrdiff_t>((some + page - 1) / page),
        [](unsigned char is) { return (is & 1u) != 0; }));
  }
  return std::min(bytes, pages * page);
}

bool HostMemory::WeightedSum(std::span<const Input> inputs, float* out, std::size_t n, bool large) {
  return worker::WeightedSum(inputs, out, n, large);
}

void HostMemory::SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                                     double* out) {
  worker::SumOfSquaresByGrain(data, n, grain, out);
}

bool HostMemory::AllFinite(const float* data, std::size_t n) { return worker::AllFinite(data, n); }

const rules::Loops& HostMemory::update_loops() const { return rules::HostLoops(); }

void HostMemory::Copy(float* to, const float* from, std::size_t n, bool large) {
  if (large) {
    CopyPastCaches(from, to, n);
  } else {
    std::memcpy(to, from, n * sizeof(float));
  }
}

bool HostMemory::WeightedSum(NumberType type, std::span<const NarrowInput> inputs,
                             std::uint16_t* out, std::size_t n, const Rounding& rounding,
                             std::uint64_t first) {
  return worker::WeightedSum(type, inputs, out, n, rounding, first);
}

void HostMemory::SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                                     std::size_t grain, double* out) {
  const std::size_t grains = std::max<std::size_t>(kWidened / grain, 1);
  std::vector<float> wide(std::min(n, grains * grain));
  for (std::size_t at = 0; at < n; at += wide.size()) {
    const std::size_t some = std::min(wide.size(), n - at);
    worker::Widen(type, data + at, wide.data(), some);
    worker::SumOfSquaresByGrain(wide.data(), some, grain, out);
    out += grains;
  }
}

void HostMemory::Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) {
  worker::Widen(type, from, to, n);
}

void HostMemory::Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) {
  std::memcpy(to, from, n * sizeof *to);
}

bool HostMemory::Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
                        const Rounding& rounding, std::uint64_t first) {
  return worker::Narrow(type, from, to, n, rounding, first);
}

void HostMemory::ToHost(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) std::memcpy(copy.host, copy.from, copy.bytes);
}

void HostMemory::FromHost(void* to, const void* host, std::size_t bytes) {
  std::memcpy(to, host, bytes);
}

void HostMemory::Zero(float* to, std::size_t n) { std::memset(to, 0, n * sizeof(float)); }

}  // namespace lockstep::worker
