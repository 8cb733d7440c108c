// The words of CUDA that kernels are written in, for the CPU: to be included before a kernel's
// header. Threads come one after the other, so this is for kernels whose threads have nothing to do
// with each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__

namespace lockstep::worker::cuda {

using std::min;

struct Place {
  unsigned x = 1;
  unsigned y = 1;
};
inline Place blockIdx, blockDim, threadIdx, gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

// A device faults where a word does not lie by multiples of its size.
template <class T>
T __ldcs(const T* from) {
  LOCKSTEP_CHECK(reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0, "a word that lies askew");
  return *from;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }

template <class Kernel, class... Arguments>
void Start(Place grid, unsigned threads, Kernel* kernel, Arguments... arguments) {
  gridDim = grid;
  blockDim = {threads, 1};
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
      for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel(arguments...);
    }
  }
}

}  // namespace lockstep::worker::cuda
