// A search for infinities and NaNs in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::worker::cuda {

// *found, in memory that the host and the device share, becomes 1 where one of the values is
// infinite or not a number. It takes one pass, and has only been started when it returns.
void FindNotFinite(cudaStream_t stream, const float* data, std::size_t n, unsigned* found);

}  // namespace lockstep::worker::cuda
