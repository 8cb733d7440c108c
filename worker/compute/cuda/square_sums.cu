#include "worker/compute/cuda/square_sums.h"

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/pieces.h"

namespace lockstep::worker::cuda {
namespace {

// Half a warp for each grain, a thread for each of reduce.h's lanes.
constexpr unsigned kLanes = 16;
constexpr unsigned kAllThreads = 0xffffffff;

struct Piece {
  const float* data;
  std::size_t count;
  double* out;
};

// A row of blocks for each piece.
__global__ void GrainSquaresKernel(const __grid_constant__ Pieces<Piece> pieces,
                                   std::size_t grain) {
  const float* const data = pieces.of[blockIdx.y].data;
  const std::size_t n = pieces.of[blockIdx.y].count;
  double* const out = pieces.of[blockIdx.y].out;
  const std::size_t grains = (n + grain - 1) / grain;
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

struct SquareBatch::Pending {
  std::size_t grain = 0;
  Pieces<Piece> pieces;
};

SquareBatch::SquareBatch(cudaStream_t stream)
    : stream_(stream), pending_(std::make_unique<Pending>()) {}
SquareBatch::~SquareBatch() = default;

void SquareBatch::Add(const float* data, std::size_t n, std::size_t grain, double* out) {
  if (n == 0) return;
  if (pending_->pieces.full() || pending_->grain != grain) Ask();
  pending_->grain = grain;
  pending_->pieces.Add({data, n, out});
}

void SquareBatch::Ask() {
  const Pieces<Piece>& pieces = pending_->pieces;
  if (pieces.count == 0) return;
  const std::size_t grains = (pieces.Longest() + pending_->grain - 1) / pending_->grain;
  const dim3 grid(GridFor(grains * kLanes), pieces.count);
  GrainSquaresKernel<<<grid, kThreads, 0, stream_>>>(pieces, pending_->grain);
  pending_->pieces.count = 0;
  CheckLaunch("sums of squares");
}

}  // namespace lockstep::worker::cuda
