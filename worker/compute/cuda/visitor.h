// Makes a GPU the calling thread's for a while, and then restores the thread's earlier one. Threads
// of a program that computes on other GPUs need that too.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "worker/compute/cuda/driver_call.h"

namespace lockstep::worker::cuda {

inline constexpr const char* kChoosing = "choosing the device";  // the failed operation, for people

// It uses the driver's contexts: cudaSetDevice back to an unused GPU would take memory there.
class Visitor {
 public:
  explicit Visitor(int number) {
    if (FindDriverCall("cuCtxGetCurrent", get_) && FindDriverCall("cuCtxSetCurrent", set_)) {
      const CUresult got = get_(&before_);
      // Nothing is current before the process has used the driver.
      if (got != CUDA_SUCCESS) before_ = nullptr;
      known_ = got == CUDA_SUCCESS || got == CUDA_ERROR_NOT_INITIALIZED;
    }
    status_ = cudaSetDevice(number);
  }
  ~Visitor() {
    if (known_) set_(before_);
  }
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  // The status of choosing the GPU.
  cudaError_t status() const { return status_; }

 private:
  decltype(&cuCtxGetCurrent) get_ = nullptr;
  decltype(&cuCtxSetCurrent) set_ = nullptr;
  CUcontext before_ = nullptr;
  bool known_ = false;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace lockstep::worker::cuda
