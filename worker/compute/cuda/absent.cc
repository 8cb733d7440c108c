// Stands in for the whole folder in programs without CUDA.
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {

Result<int> CudaDeviceCount() {
  return Error{ErrorCode::kUnavailable, "this program was built without CUDA"};
}

std::string CudaPciAddress(int /*number*/) { return {}; }

Result<std::unique_ptr<Compute>> MakeCudaCompute(int /*number*/, const std::string& /*precision*/) {
  return CudaDeviceCount().error();
}

}  // namespace lockstep::worker
