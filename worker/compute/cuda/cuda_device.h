// NVIDIA GPUs, for a program that computes there by itself. Programs are built with or without CUDA
// (LOCKSTEP_WITH_CUDA); without it, all functions return that.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace lockstep::worker {

class ExchangeMemory;

// The number of GPUs, at least one. The error says, without naming a device, why there is none:
// built without CUDA, no driver, no device.
Result<int> CudaDeviceCount();

// The PCI address of GPU `number`, "0000:3B:00.0"; empty where it is unknown.
std::string CudaPciAddress(int number);

// The memory of GPU `number`, below CudaDeviceCount(). The calling thread's current device does not
// change. It throws a DeviceError where the GPU cannot be used.
Result<std::shared_ptr<ExchangeMemory>> MakeCudaExchangeMemory(int number);

}  // namespace lockstep::worker
