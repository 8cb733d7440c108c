#include "worker/compute/cuda/update_kernels.h"

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/update_formulas.h"

namespace lockstep::worker::cuda {
namespace {

// Correctly rounded as long as nobody asks for fast mathematics.
struct Root {
  __host__ __device__ float operator()(float x) const { return sqrtf(x); }
};

__global__ void SgdPlainKernel(rules::Slice slice, rules::SgdFactors factors) {
  for (std::size_t i = FirstElement(); i < slice.count; i += ElementStride()) {
    SgdPlainStep(slice.gradient_sum[i], slice.factor, factors, slice.parameters[i]);
  }
}

__global__ void SgdMomentumKernel(rules::Slice slice, rules::SgdFactors factors,
                                  rules::MomentumFactors momentum, bool nesterov, float* velocity) {
  for (std::size_t i = FirstElement(); i < slice.count; i += ElementStride()) {
    SgdMomentumStep(slice.gradient_sum[i], slice.factor, factors, momentum, nesterov,
                    slice.parameters[i], velocity[i]);
  }
}

__global__ void RmsPropPlainKernel(rules::Slice slice, rules::RmsPropFactors factors,
                                   float* square) {
  for (std::size_t i = FirstElement(); i < slice.count; i += ElementStride()) {
    RmsPropPlainStep(slice.gradient_sum[i], slice.factor, factors, slice.parameters[i], square[i],
                     Root());
  }
}

__global__ void RmsPropMomentumKernel(rules::Slice slice, rules::RmsPropFactors factors,
                                      rules::MomentumFactors momentum, float* square,
                                      float* velocity) {
  for (std::size_t i = FirstElement(); i < slice.count; i += ElementStride()) {
    RmsPropMomentumStep(slice.gradient_sum[i], slice.factor, factors, momentum, slice.parameters[i],
                        square[i], velocity[i], Root());
  }
}

__global__ void AdamWKernel(rules::Slice slice, rules::AdamFactors factors, float* moment,
                            float* square) {
  for (std::size_t i = FirstElement(); i < slice.count; i += ElementStride()) {
    AdamWElementStep(slice.gradient_sum[i], slice.factor, factors, slice.parameters[i], moment[i],
                     square[i], Root());
  }
}

}  // namespace

void UpdateLoops::SgdPlain(const rules::Slice& slice, const rules::SgdFactors& factors) const {
  if (slice.count == 0) return;
  SgdPlainKernel<<<GridFor(slice.count), kThreads, 0, stream_>>>(slice, factors);
  CheckLaunch("an update");
}

void UpdateLoops::SgdMomentum(const rules::Slice& slice, const rules::SgdFactors& factors,
                              const rules::MomentumFactors& momentum, bool nesterov,
                              float* velocity) const {
  if (slice.count == 0) return;
  SgdMomentumKernel<<<GridFor(slice.count), kThreads, 0, stream_>>>(slice, factors, momentum,
                                                                    nesterov, velocity);
  CheckLaunch("an update");
}

void UpdateLoops::RmsPropPlain(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                               float* square) const {
  if (slice.count == 0) return;
  RmsPropPlainKernel<<<GridFor(slice.count), kThreads, 0, stream_>>>(slice, factors, square);
  CheckLaunch("an update");
}

void UpdateLoops::RmsPropMomentum(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                                  const rules::MomentumFactors& momentum, float* square,
                                  float* velocity) const {
  if (slice.count == 0) return;
  RmsPropMomentumKernel<<<GridFor(slice.count), kThreads, 0, stream_>>>(slice, factors, momentum,
                                                                        square, velocity);
  CheckLaunch("an update");
}

void UpdateLoops::AdamWStep(const rules::Slice& slice, const rules::AdamFactors& factors,
                            float* moment, float* square) const {
  if (slice.count == 0) return;
  AdamWKernel<<<GridFor(slice.count), kThreads, 0, stream_>>>(slice, factors, moment, square);
  CheckLaunch("an update");
}

}  // namespace lockstep::worker::cuda
