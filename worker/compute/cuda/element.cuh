// The elements that a thread of a kernel takes: strides of the whole grid, by x.
#pragma once

#include <cstddef>

namespace lockstep::worker::cuda {

__device__ inline std::size_t FirstElement() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t ElementStride() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

}  // namespace lockstep::worker::cuda
