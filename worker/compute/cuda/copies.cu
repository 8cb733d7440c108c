#include "worker/compute/cuda/copies.h"

#include <cstdint>

#include "worker/compute/cuda/copy_kernel.cuh"
#include "worker/compute/cuda/launch.cuh"

namespace lockstep::worker::cuda {
struct CopyBatch::Pending {
  Pieces<CopyPiece> pieces;
};

CopyBatch::CopyBatch(cudaStream_t stream)
    : stream_(stream), pending_(std::make_unique<Pending>()) {}
CopyBatch::~CopyBatch() = default;

void CopyBatch::Add(std::uint16_t* to, const std::uint16_t* from, std::size_t n) {
  if (n == 0) return;
  if (pending_->pieces.full()) Ask();
  pending_->pieces.Add({from, to, n});
}

void CopyBatch::Ask() {
  const Pieces<CopyPiece>& pieces = pending_->pieces;
  if (pieces.count == 0) return;
  const dim3 grid(GridFor(pieces.Longest() / (sizeof(uint4) / sizeof(std::uint16_t))),
                  pieces.count);
  CopyKernel<<<grid, kThreads, 0, stream_>>>(pieces);
  pending_->pieces.count = 0;
  CheckLaunch("copies");
}

}  // namespace lockstep::worker::cuda
