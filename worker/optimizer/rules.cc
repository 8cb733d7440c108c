#include "worker/optimizer/rules.h"

#include <cmath>

#include "worker/compute/vector_clones.h"

namespace lockstep::worker::rules {
namespace {

LOCKSTEP_VECTOR_CLONES
void SgdPlain(const Slice& slice, float weight_decay, float learning_rate) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + weight_decay * p[i];
    p[i] -= learning_rate * g;
  }
}

LOCKSTEP_VECTOR_CLONES
void SgdMomentum(const Slice& slice, float weight_decay, float learning_rate, float momentum,
                 bool nesterov, float* __restrict velocity) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + weight_decay * p[i];
    const float v = momentum * velocity[i] + g;
    velocity[i] = v;
    p[i] -= learning_rate * (nesterov ? g + momentum * v : v);
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
void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors, float momentum,
                     float* __restrict square, float* __restrict velocity) {
  float* __restrict p = slice.parameters;
  const float* __restrict sum = slice.gradient_sum;
  const float factor = slice.factor;
  const RmsPropFactors f = factors;
  for (std::size_t i = 0; i < slice.count; ++i) {
    const float g = sum[i] * factor + f.weight_decay * p[i];
    const float s = f.decay * square[i] + f.rest * (g * g);
    square[i] = s;
    const float v = momentum * velocity[i] + f.learning_rate * g / std::sqrt(s + f.epsilon);
    velocity[i] = v;
    p[i] -= v;
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
  void SgdPlain(const Slice& slice, float weight_decay, float learning_rate) const override {
    rules::SgdPlain(slice, weight_decay, learning_rate);
  }
  void SgdMomentum(const Slice& slice, float weight_decay, float learning_rate, float momentum,
                   bool nesterov, float* velocity) const override {
    rules::SgdMomentum(slice, weight_decay, learning_rate, momentum, nesterov, velocity);
  }
  void RmsPropPlain(const Slice& slice, const RmsPropFactors& factors,
                    float* square) const override {
    rules::RmsPropPlain(slice, factors, square);
  }
  void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors, float momentum,
                       float* square, float* velocity) const override {
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
