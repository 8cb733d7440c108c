// Replaces the folder's devices and their memory in programs without CUDA.
#include "worker/compute/cuda/cuda_device.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

Result<int> CudaDeviceCount() {
  return Error{ErrorCode::kUnavailable, "this build of Lockstep has no CUDA"};
}

std::string CudaPciAddress(int /*number*/) { return {}; }

Result<std::shared_ptr<ExchangeMemory>> MakeCudaExchangeMemory(int /*number*/) {
  return CudaDeviceCount().error();
}

}  // namespace lockstep::worker
