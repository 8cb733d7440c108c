#include "worker/compute/cuda/copies.h"

#include <cstdint>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/pieces.h"

namespace lockstep::worker::cuda {
namespace {

struct Piece {
  const float* from;
  float* to;
  std::size_t count;
};

constexpr unsigned kFour = sizeof(float4) / sizeof(float);

// A row of blocks for each piece: fours where both lie as fours do, the rest one by one.
__global__ void CopyKernel(const __grid_constant__ Pieces<Piece> pieces) {
  const float* const from = pieces.of[blockIdx.y].from;
  float* const to = pieces.of[blockIdx.y].to;
  const std::size_t n = pieces.of[blockIdx.y].count;
  const auto at = [](const float* data) {
    return reinterpret_cast<std::uintptr_t>(data) / sizeof(float) % kFour;
  };
  const bool alike = at(from) == at(to);
  const std::size_t lead = min(n, (kFour - at(to)) % kFour);
  const std::size_t fours = alike ? (n - lead) / kFour : 0;
  const auto* const from_fours = reinterpret_cast<const float4*>(from + lead);
  auto* const to_fours = reinterpret_cast<float4*>(to + lead);
  for (std::size_t i = FirstElement(); i < fours; i += ElementStride()) {
    to_fours[i] = __ldcs(from_fours + i);
  }
  for (std::size_t i = FirstElement(); i < n - kFour * fours; i += ElementStride()) {
    const std::size_t one = i < lead || !alike ? i : i + kFour * fours;
    to[one] = __ldcs(from + one);
  }
}

}  // namespace

struct CopyBatch::Pending {
  Pieces<Piece> pieces;
};

CopyBatch::CopyBatch(cudaStream_t stream)
    : stream_(stream), pending_(std::make_unique<Pending>()) {}
CopyBatch::~CopyBatch() = default;

void CopyBatch::Add(float* to, const float* from, std::size_t n) {
  if (n == 0) return;
  if (pending_->pieces.full()) Ask();
  pending_->pieces.Add({from, to, n});
}

void CopyBatch::Ask() {
  const Pieces<Piece>& pieces = pending_->pieces;
  if (pieces.count == 0) return;
  const dim3 grid(GridFor(pieces.Longest() / kFour), pieces.count);
  CopyKernel<<<grid, kThreads, 0, stream_>>>(pieces);
  pending_->pieces.count = 0;
  CheckLaunch("copies");
}

}  // namespace lockstep::worker::cuda
