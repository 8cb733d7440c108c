// Replaces the computing of the folder in programs without CUDA.
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {

Result<std::unique_ptr<Compute>> MakeCudaCompute(int /*number*/, const std::string& /*precision*/) {
  return CudaDeviceCount().error();
}

}  // namespace lockstep::worker
