#include "worker/compute/cuda/finite.h"

#include "worker/compute/cuda/finite.cuh"
#include "worker/compute/cuda/launch.cuh"

namespace lockstep::worker::cuda {
namespace {

__global__ void NotFiniteKernel(const float* data, std::size_t n, unsigned* found) {
  bool finite = true;
  for (std::size_t i = FirstElement(); i < n; i += ElementStride()) {
    finite = finite && Finite(__ldcs(data + i));
  }
  if (!finite) *found = 1;
}

}  // namespace

void FindNotFinite(cudaStream_t stream, const float* data, std::size_t n, unsigned* found) {
  if (n == 0) return;
  NotFiniteKernel<<<GridFor(n), kThreads, 0, stream>>>(data, n, found);
  CheckLaunch("a look for what is no number");
}

}  // namespace lockstep::worker::cuda
