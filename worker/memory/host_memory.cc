#include "worker/memory/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "worker/optimizer/rules.h"

namespace lockstep::worker {

Result<std::byte*> HostMemory::Allocate(std::size_t bytes) {
  void* data = ::mmap(nullptr, std::max<std::size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorCode::kUnavailable, fmt::format("cannot have {} MiB of memory: {}",
                                                      bytes >> 20, std::strerror(errno))};
  }
  return static_cast<std::byte*>(data);
}

void HostMemory::Free(std::byte* memory, std::size_t bytes) {
  ::munmap(memory, std::max<std::size_t>(bytes, 1));
}

void HostMemory::WeightedSum(std::span<const Input> inputs, float* out, std::size_t n) {
  worker::WeightedSum(inputs, out, n);
}

void HostMemory::SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                                     double* out) {
  worker::SumOfSquaresByGrain(data, n, grain, out);
}

bool HostMemory::AllFinite(const float* data, std::size_t n) { return worker::AllFinite(data, n); }

const rules::Loops& HostMemory::update_loops() const { return rules::HostLoops(); }

void HostMemory::Copy(float* to, const float* from, std::size_t n) {
  std::memcpy(to, from, n * sizeof(float));
}

void HostMemory::ToHost(void* host, const void* from, std::size_t bytes) {
  std::memcpy(host, from, bytes);
}

void HostMemory::FromHost(void* to, const void* host, std::size_t bytes) {
  std::memcpy(to, host, bytes);
}

void HostMemory::Zero(float* to, std::size_t n) { std::memset(to, 0, n * sizeof(float)); }

}  // namespace lockstep::worker
