// The exchange's sum on device memory: reduce.h's WeightedSum with the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "worker/memory/reduce.h"

namespace lockstep::worker::cuda {

// out[i] = (..((w0 * x0[i]) + w1 * x1[i]) + ..), each product and each sum rounded; zeros for no
// inputs. Data and `out` are on the device, at any multiple of a float's size; `out` overlaps no
// input. One pass over all inputs, up to 64 of them; more take a pass for each 64. Asked for when
// it returns.
void WeightedSum(cudaStream_t stream, std::span<const Input> inputs, float* out, std::size_t n);

}  // namespace lockstep::worker::cuda
