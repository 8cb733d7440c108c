// The variants of reduce.h's loops for the instruction sets of this machine. They are for
// reduce.cc, its tests and benchmarks.
#pragma once

#include <cstddef>
#include <span>

#include "worker/memory/reduce.h"

namespace lockstep::worker {

struct ReduceKernels {
  const char* name;  // "avx512f", "avx2", "generic"
  // It takes at least one input. `streaming`: stores bypass the caches where the machine can; a
  // fence follows.
  bool (*weighted_sum)(std::span<const Input> inputs, float* out, std::size_t n, bool streaming);
  void (*sum_of_squares)(const float* data, std::size_t n, std::size_t grain, double* out);
  bool (*all_finite)(const float* data, std::size_t n);
};

// The kernels that this CPU can run, the fastest first; never empty.
std::span<const ReduceKernels> AvailableReduceKernels();

}  // namespace lockstep::worker
