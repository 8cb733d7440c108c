#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/square_sums.h"

namespace lockstep::worker::cuda {
namespace {

// Half a warp for each grain, a thread for each of reduce.h's lanes.
constexpr unsigned kLanes = 16;
constexpr unsigned kAllThreads = 0xffffffff;

__global__ void GrainSquaresKernel(const float* data, std::size_t n, std::size_t grain,
                                   std::size_t grains, double* out) {
  const unsigned lane = threadIdx.x % kLanes;
  const std::size_t stride = ElementStride() / kLanes;
  const std::size_t first = FirstElement() / kLanes;
  // Both halves of a warp make the same number of turns, since they shuffle together.
  const std::size_t turns = (grains + stride - 1) / stride;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const std::size_t g = first + turn * stride;
    double sum = 0;
    if (g < grains) {
      const std::size_t end = min(n, (g + 1) * grain);
      for (std::size_t i = g * grain + lane; i < end; i += kLanes) {
        const auto x = static_cast<double>(data[i]);
        sum = __dadd_rn(sum, __dmul_rn(x, x));
      }
    }
    for (unsigned half = kLanes / 2; half > 0; half /= 2) {
      sum = __dadd_rn(sum, __shfl_down_sync(kAllThreads, sum, half, kLanes));
    }
    if (g < grains && lane == 0) out[g] = sum;
  }
}

}  // namespace

void SumOfSquaresByGrain(cudaStream_t stream, const float* data, std::size_t n, std::size_t grain,
                         double* out) {
  if (n == 0) return;
  const std::size_t grains = (n + grain - 1) / grain;
  GrainSquaresKernel<<<GridFor(grains * kLanes), kThreads, 0, stream>>>(data, n, grain, grains,
                                                                        out);
  CheckLaunch("sums of squares");
}

}  // namespace lockstep::worker::cuda
