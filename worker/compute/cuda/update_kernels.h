// The optimizer's step on device memory, with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "worker/optimizer/rules.h"

namespace lockstep::worker::cuda {

// Consecutive steps of the same kind, for slices that do not overlap, are one kernel. Many small
// ones would take longer to start than to run. It belongs to one thread.
class UpdateLoops final : public rules::Loops {
 public:
  explicit UpdateLoops(cudaStream_t stream);
  ~UpdateLoops() override;

  void SgdPlain(const rules::Slice& slice, const rules::SgdFactors& factors) const override;
  void SgdMomentum(const rules::Slice& slice, const rules::SgdFactors& factors,
                   const rules::MomentumFactors& momentum, bool nesterov,
                   float* velocity) const override;
  void RmsPropPlain(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                    float* square) const override;
  void RmsPropMomentum(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                       const rules::MomentumFactors& momentum, float* square,
                       float* velocity) const override;
  void AdamWStep(const rules::Slice& slice, const rules::AdamFactors& factors, float* moment,
                 float* square) const override;

  // Starts the collected steps on the stream now, if they have not started before.
  void Ask() const;

 private:
  class Pending;

  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
