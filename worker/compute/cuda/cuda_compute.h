// Compute on an NVIDIA GPU: cuBLAS for matrix products, and kernels of our own for the other
// operations. Programs are built with or without it (LOCKSTEP_WITH_CUDA); without it, the functions
// return that as an error.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/compute/cuda/cuda_device.h"

namespace lockstep::worker {

// Makes it on GPU `number`, below CudaDeviceCount(). `precision`: fp32, tf32 or bf16, to which
// cuBLAS may round the factors of products; sums are FP32. Failures, there and later, are
// DeviceErrors. It is deterministic: no atomics on floats, a workspace and a stream of its own for
// cuBLAS.
Result<std::unique_ptr<Compute>> MakeCudaCompute(int number, const std::string& precision);

}  // namespace lockstep::worker
