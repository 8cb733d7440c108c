// A kernel that reads the same memory over and over until it is told to stop.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::worker::cuda {

// In host memory that the device sees; the kernel writes all but `stop`.
struct LongReaderState {
  volatile std::uint32_t stop;
  volatile std::uint32_t passes;  // complete
  volatile std::uint32_t wrong;   // numbers that were not `expected`
};

// At most `most_passes`, so that it ends in any case.
void StartLongReader(cudaStream_t stream, const float* data, std::size_t n, float expected,
                     std::uint32_t most_passes, LongReaderState* state);

}  // namespace lockstep::worker::cuda
