// A look for what is no number, on device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::worker::cuda {

// *found, of memory that the host and the device have in common, becomes 1 where one of the values
// is infinite or not a number. One pass. Asked for when it returns.
void FindNotFinite(cudaStream_t stream, const float* data, std::size_t n, unsigned* found);

}  // namespace lockstep::worker::cuda
