#include "worker/optimizer/rules.h"

#include <cmath>

#include "base/vector_clones.h"

namespace lockstep::worker::rules {
namespace {

LOCKSTEP_VECTOR_CLONES
void SgdPlain(const Slice& slice, const SgdFactors& factors) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const SgdFactors f = factors;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + f.weight_decay * p[i];
    p[i] -= f.learning_rate * g;
  }
}

LOCKSTEP_VECTOR_CLONES
void SgdMomentum(const Slice& slice, const SgdFactors& factors, const MomentumFactors& momentum,
                 bool nesterov, float* __restrict velocity) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const SgdFactors f = factors;
  const MomentumFactors m = momentum;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + f.weight_decay * p[i];
    const float v = m.keep * velocity[i] + m.fraction * g;
    velocity[i] = v;
    p[i] -= f.learning_rate * (nesterov ? g + m.momentum * v : v);
  }
}

LOCKSTEP_VECTOR_CLONES
void RmsPropPlain(const Slice& slice, const RmsPropFactors& factors, float* __restrict square) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const RmsPropFactors f = factors;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + f.weight_decay * p[i];
    const float s = f.decay * square[i] + f.rest * (g * g);
    square[i] = s;
    p[i] -= f.learning_rate * g / std::sqrt(s + f.epsilon);
  }
}

LOCKSTEP_VECTOR_CLONES
void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors,
                     const MomentumFactors& momentum, float* __restrict square,
                     float* __restrict velocity) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const RmsPropFactors f = factors;
  const MomentumFactors m = momentum;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + f.weight_decay * p[i];
    const float s = f.decay * square[i] + f.rest * (g * g);
    square[i] = s;
    const float v = m.keep * velocity[i] + f.learning_rate * g / std::sqrt(s + f.epsilon);
    velocity[i] = v;
    p[i] -= m.fraction * v;
  }
}

LOCKSTEP_VECTOR_CLONES
void AdamWStep(const Slice& slice, const AdamFactors& factors, float* __restrict moment,
               float* __restrict square) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const AdamFactors f = factors;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor;
    const float m = f.beta1 * moment[i] + f.rest1 * g;
    const float s = f.beta2 * square[i] + f.rest2 * (g * g);
    moment[i] = m;
    square[i] = s;
    const float step = m * f.correction1 / (std::sqrt(s * f.correction2) + f.epsilon);
    p[i] -= f.learning_rate * (step + f.weight_decay * p[i]);
  }
}

class OnHost final : public Loops {
 public:
  void SgdPlain(const Slice& slice, const SgdFactors& factors) const override {
    rules::SgdPlain(slice, factors);
  }
  void SgdMomentum(const Slice& slice, const SgdFactors& factors, const MomentumFactors& momentum,
                   bool nesterov, float* velocity) const override {
    rules::SgdMomentum(slice, factors, momentum, nesterov, velocity);
  }
  void RmsPropPlain(const Slice& slice, const RmsPropFactors& factors,
                    float* square) const override {
    rules::RmsPropPlain(slice, factors, square);
  }
  void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors,
                       const MomentumFactors& momentum, float* square,
                       float* velocity) const override {
    rules::RmsPropMomentum(slice, factors, momentum, square, velocity);
  }
  void AdamWStep(const Slice& slice, const AdamFactors& factors, float* moment,
                 float* square) const override {
    rules::AdamWStep(slice, factors, moment, square);
  }
};

}  // namespace

const Loops& HostLoops() {
  static const OnHost loops;
  return loops;
}

}  // namespace lockstep::worker::rules
