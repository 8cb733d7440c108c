// The exchange's sums of squares on device memory: reduce.h's SumOfSquaresByGrain with the same
// bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::worker::cuda {

// out[g] = the sum of squares of data[g * grain .. min(n, (g + 1) * grain)), in double precision
// and reduce.h's order. All of it on the device. Asked for when it returns.
void SumOfSquaresByGrain(cudaStream_t stream, const float* data, std::size_t n, std::size_t grain,
                         double* out);

}  // namespace lockstep::worker::cuda
