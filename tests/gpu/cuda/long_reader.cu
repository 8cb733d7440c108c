#include "tests/gpu/cuda/long_reader.h"
#include "worker/compute/cuda/launch.cuh"

namespace lockstep::worker::cuda {
namespace {

// One block.
__global__ void LongReaderKernel(const float* data, std::size_t n, float expected,
                                 std::uint32_t most_passes, LongReaderState* state) {
  __shared__ std::uint32_t wrong;
  __shared__ bool stop;
  for (std::uint32_t pass = 0; pass < most_passes; ++pass) {
    if (threadIdx.x == 0) wrong = 0;
    __syncthreads();
    std::uint32_t mine = 0;
    for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) {
      mine += __ldcv(data + i) != expected ? 1 : 0;
    }
    atomicAdd(&wrong, mine);
    __syncthreads();
    if (threadIdx.x == 0) {
      state->wrong = state->wrong + wrong;
      __threadfence_system();
      state->passes = pass + 1;
      stop = state->stop != 0;
    }
    __syncthreads();
    if (stop) return;
  }
}

}  // namespace

void StartLongReader(cudaStream_t stream, const float* data, std::size_t n, float expected,
                     std::uint32_t most_passes, LongReaderState* state) {
  LongReaderKernel<<<1, 1024, 0, stream>>>(data, n, expected, most_passes, state);
  CheckLaunch("a long reader");
}

}  // namespace lockstep::worker::cuda
