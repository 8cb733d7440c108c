// Calls of the CUDA driver, looked up when they are needed: programs start without a driver.
#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::worker::cuda {

// The call has the meaning of CUDA 12.0's driver. False: this driver lacks it, or there is no
// driver.
template <class Function>
bool FindDriverCall(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult known = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &known);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &known);
#endif
  if (status != cudaSuccess || known != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  function = reinterpret_cast<Function>(found);
  return true;
}

}  // namespace lockstep::worker::cuda
