// Compute on an NVIDIA GPU: cuBLAS for matrix products, kernels of our own for what stands between
// them. Programs are built with it or without (LOCKSTEP_WITH_CUDA); without, both functions say so.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"

namespace lockstep::worker {

// How many GPUs there are, at least one. The error says, without naming a device, why there is
// none: built without CUDA, no driver, no device.
Result<int> CudaDeviceCount();

// Where GPU `number` hangs on PCI, "0000:3B:00.0"; empty where that is not known.
std::string CudaPciAddress(int number);

// On GPU `number`, below CudaDeviceCount(). `precision`: fp32, tf32 or bf16, what cuBLAS may round
// the factors of products to; sums are FP32. Failures, there and later, are DeviceErrors.
// Deterministic: no atomics on floats, a workspace and a stream of its own for cuBLAS.
Result<std::unique_ptr<Compute>> MakeCudaCompute(int number, const std::string& precision);

}  // namespace lockstep::worker
