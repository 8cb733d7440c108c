// The variants of narrow.h's loops for the instruction sets of this machine. They are for narrow.cc
// and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/memory/narrow.h"

namespace lockstep::worker {

struct NarrowKernels {
  // The loops of one type.
  struct Loops {
    bool (*narrow)(const float* from, std::uint16_t* to, std::size_t n);
    void (*widen)(const std::uint16_t* from, float* to, std::size_t n);
    // It takes at least one input.
    bool (*weighted_sum)(std::span<const NarrowInput> inputs, std::uint16_t* out, std::size_t n);
    // It rounds stochastically.
    bool (*narrow_at_random)(const float* from, std::uint16_t* to, std::size_t n, std::uint64_t key,
                             std::uint64_t first);
    bool (*weighted_sum_at_random)(std::span<const NarrowInput> inputs, std::uint16_t* out,
                                   std::size_t n, std::uint64_t key, std::uint64_t first);
  };
  const char* name;  // "avx512f", "avx2", "generic", "single": number by number
  Loops bf16;
  Loops fp16;
};

// The kernels that this CPU can run, the fastest first.
std::span<const NarrowKernels> AvailableNarrowKernels();

}  // namespace lockstep::worker
