#include <cuda_runtime_api.h>

#include <array>

#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {

std::string CudaPciAddress(int number) {
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), address.size(), number) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return address.data();
}

}  // namespace lockstep::worker
