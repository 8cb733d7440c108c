// The optimizer's step on device memory, with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/optimizer/rules.h"

namespace lockstep::worker::cuda {

// Asked for on the stream when a call returns.
class UpdateLoops final : public rules::Loops {
 public:
  explicit UpdateLoops(cudaStream_t stream) : stream_(stream) {}

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

 private:
  cudaStream_t stream_;
};

}  // namespace lockstep::worker::cuda
