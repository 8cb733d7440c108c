#include "worker/compute/cuda/handles.h"

#include <fmt/format.h>

#include "worker/compute/compute.h"

namespace lockstep::worker::cuda {

void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // it was reported: the next kernel's check must not
                                          // report it again
  throw DeviceError(fmt::format("the GPU failed: {}: {} ({})", what, cudaGetErrorString(status),
                                cudaGetErrorName(status)));
}

}  // namespace lockstep::worker::cuda
