// The optimizer's step on device memory, with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "worker/optimizer/rules.h"

namespace lockstep::worker::cuda {

// Steps that are called for one behind the other, of slices that do not overlap and in the same
// way, are one kernel, since many small ones would take longer to start than to run. One thread.
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

  // What was called for is asked of the stream now, if it was not before.
  void Ask() const;

 private:
  class Pending;

  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
