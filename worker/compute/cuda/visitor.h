// A GPU is the calling thread's for a while, and afterwards the thread has what it had before:
// threads of a program that computes on other GPUs too.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "worker/compute/cuda/driver_call.h"

namespace lockstep::worker::cuda {

inline constexpr const char* kChoosing = "choosing the device";  // what failed, for people

// By the driver's contexts: cudaSetDevice back to a GPU that nobody has used would take memory
// there.
class Visitor {
 public:
  explicit Visitor(int number) {
    if (FindDriverCall("cuCtxGetCurrent", get_) && FindDriverCall("cuCtxSetCurrent", set_)) {
      const CUresult got = get_(&before_);
      // Nothing is current where nobody in the process has begun with the driver.
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

  // Of choosing the GPU.
  cudaError_t status() const { return status_; }

 private:
  decltype(&cuCtxGetCurrent) get_ = nullptr;
  decltype(&cuCtxSetCurrent) set_ = nullptr;
  CUcontext before_ = nullptr;
  bool known_ = false;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace lockstep::worker::cuda
