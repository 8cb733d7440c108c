#include "worker/compute/cuda/square_sums.h"

#include <cstdint>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/narrow_formulas.h"
#include "worker/compute/cuda/pieces.h"

namespace lockstep::worker::cuda {
namespace {

// There is half a warp for each grain, and a thread for each of reduce.h's lanes.
constexpr unsigned kLanes = 16;
constexpr unsigned kAllThreads = 0xffffffff;

struct Piece {
  const void* data;
  std::size_t count;
  double* out;
};

struct Fp32Number {
  static __device__ float At(const void* data, std::size_t i) {
    return static_cast<const float*>(data)[i];
  }
};
template <class Type>
struct Narrow {
  static __device__ float At(const void* data, std::size_t i) {
    return Type::Widen(static_cast<const std::uint16_t*>(data)[i]);
  }
};

// There is a row of blocks for each piece.
template <class Number>
__global__ void GrainSquaresKernel(const __grid_constant__ Pieces<Piece> pieces,
                                   std::size_t grain) {
  const void* const data = pieces.of[blockIdx.y].data;
  const std::size_t n = pieces.of[blockIdx.y].count;
  double* const out = pieces.of[blockIdx.y].out;
  const std::size_t grains = (n + grain - 1) / grain;
  const unsigned lane = threadIdx.x % kLanes;
  const std::size_t stride = ElementStride() / kLanes;
  const std::size_t first = FirstElement() / kLanes;
  // Both halves of a warp make the same number of iterations, since they shuffle together.
  const std::size_t turns = (grains + stride - 1) / stride;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const std::size_t g = first + turn * stride;
    double sum = 0;
    if (g < grains) {
      const std::size_t end = min(n, (g + 1) * grain);
      for (std::size_t i = g * grain + lane; i < end; i += kLanes) {
        const auto x = static_cast<double>(Number::At(data, i));
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
  NumberType type = NumberType::kFp32;
  std::size_t grain = 0;
  Pieces<Piece> pieces;
};

SquareBatch::SquareBatch(cudaStream_t stream)
    : stream_(stream), pending_(std::make_unique<Pending>()) {}
SquareBatch::~SquareBatch() = default;

void SquareBatch::Add(NumberType type, const void* data, std::size_t n, std::size_t grain,
                      double* out) {
  if (n == 0) return;
  if (pending_->pieces.full() || pending_->grain != grain || pending_->type != type) Ask();
  pending_->type = type;
  pending_->grain = grain;
  pending_->pieces.Add({data, n, out});
}

void SquareBatch::Ask() {
  const Pieces<Piece>& pieces = pending_->pieces;
  if (pieces.count == 0) return;
  const std::size_t grains = (pieces.Longest() + pending_->grain - 1) / pending_->grain;
  const dim3 grid(GridFor(grains * kLanes), pieces.count);
  const auto start = [&](auto* kernel) {
    kernel<<<grid, kThreads, 0, stream_>>>(pieces, pending_->grain);
  };
  switch (pending_->type) {
    case NumberType::kFp32:
      start(GrainSquaresKernel<Fp32Number>);
      break;
    case NumberType::kBf16:
      start(GrainSquaresKernel<Narrow<Bf16Number>>);
      break;
    case NumberType::kFp16:
      start(GrainSquaresKernel<Narrow<Fp16Number>>);
      break;
  }
  pending_->pieces.count = 0;
  CheckLaunch("sums of squares");
}

}  // namespace lockstep::worker::cuda
