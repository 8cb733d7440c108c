// Compute on an NVIDIA GPU: cuBLAS for matrix products, kernels of our own for what stands between
// them. Programs are built with it or without (LOCKSTEP_WITH_CUDA); without, this says so.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/compute/cuda/cuda_device.h"

namespace lockstep::worker {

// On GPU `number`, below CudaDeviceCount(). `precision`: fp32, tf32 or bf16, what cuBLAS may round
// the factors of products to; sums are FP32. Failures, there and later, are DeviceErrors.
// Deterministic: no atomics on floats, a workspace and a stream of its own for cuBLAS.
Result<std::unique_ptr<Compute>> MakeCudaCompute(int number, const std::string& precision);

}  // namespace lockstep::worker
