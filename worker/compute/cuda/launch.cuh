// The launch of kernels: grids for loops over counts and over rows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "worker/compute/cuda/element.cuh"
#include "worker/compute/cuda/handles.h"

namespace lockstep::worker::cuda {

constexpr unsigned kThreads = 256;

inline unsigned CeilDiv(std::size_t count, std::size_t by, std::size_t most) {
  return static_cast<unsigned>(
      std::clamp<std::size_t>(count / by + (count % by != 0 ? 1 : 0), 1, most));
}

// For kernels that go through `count` elements in strides of the whole grid.
inline unsigned GridFor(std::size_t count) { return CeilDiv(count, kThreads, 8192); }

// For kernels that go through the elements of a row by x, and through the rows by y, in strides.
inline dim3 GridForRows(std::size_t rows, std::size_t elements) {
  return {CeilDiv(elements, kThreads, 8192), CeilDiv(rows, 1, 32768), 1};
}

// Call it after each launch.
inline void CheckLaunch(const char* kernel) { Check(cudaGetLastError(), kernel); }

}  // namespace lockstep::worker::cuda
