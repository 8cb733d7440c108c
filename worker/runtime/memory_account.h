// How much memory a worker's buffers take: bytes that are backed by pages (on a device: allocated),
// not those that are only reserved. docs/reference/memory.md has the formula that they follow.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::worker {

struct MemoryAccount {
  std::uint64_t state = 0;          // the parameters and the optimizer's tensors
  std::uint64_t contributions = 0;  // of this worker
  std::uint64_t sums = 0;
  std::uint64_t staging = 0;    // what others contribute
  std::uint64_t snapshots = 0;  // for evaluation, checkpoints, and work on a copy
  std::uint64_t copies = 0;     // for joiners

  std::uint64_t total() const {
    return state + contributions + sums + staging + snapshots + copies;
  }
};

// One line: the total, and each kind as a multiple of `parameter_bytes` where these are 1 MiB or
// more.
std::string Describe(const MemoryAccount& account, std::uint64_t parameter_bytes);

}  // namespace lockstep::worker
