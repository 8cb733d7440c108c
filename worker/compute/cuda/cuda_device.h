// NVIDIA GPUs as far as a program needs them that computes there by itself. Programs are built with
// CUDA or without (LOCKSTEP_WITH_CUDA); without, all of this says so.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace lockstep::worker {

class ExchangeMemory;

// How many GPUs there are, at least one. The error says, without naming a device, why there is
// none: built without CUDA, no driver, no device.
Result<int> CudaDeviceCount();

// Where GPU `number` hangs on PCI, "0000:3B:00.0"; empty where that is not known.
std::string CudaPciAddress(int number);

// Of GPU `number`, below CudaDeviceCount(). The calling thread's device stays what it was. Throws a
// DeviceError where it cannot be used.
Result<std::shared_ptr<ExchangeMemory>> MakeCudaExchangeMemory(int number);

}  // namespace lockstep::worker
