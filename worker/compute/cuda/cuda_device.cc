#include "worker/compute/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "worker/compute/cuda/cuda_memory.h"

namespace lockstep::worker {

Result<int> CudaDeviceCount() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorInsufficientDriver) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("there is no CUDA driver for CUDA {}.{} or newer on this machine",
                             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)};
  }
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    return Error{ErrorCode::kUnavailable, "there is no CUDA device to be seen on this machine"};
  }
  return Error{ErrorCode::kUnavailable,
               fmt::format("CUDA cannot be used: {}", cudaGetErrorString(status))};
}

std::string CudaPciAddress(int number) {
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), address.size(), number) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return address.data();
}

Result<std::shared_ptr<ExchangeMemory>> MakeCudaExchangeMemory(int number) {
  return std::shared_ptr<ExchangeMemory>(cuda::MakeCudaMemory(number));
}

}  // namespace lockstep::worker
