// The optimizer's formulae for one element, equal to those of optimizer/rules.cc operation by
// operation. `sum` is the gradient sum's element, `root` a correctly rounded square root. It uses
// nothing of CUDA, so that a test can compare it with the CPU's bits on any machine; kernels are
// compiled without contraction into fused multiply-adds.
#pragma once

#include "worker/optimizer/rules.h"

namespace lockstep::worker::cuda {

constexpr void SgdPlainStep(float sum, float factor, const rules::SgdFactors& f, float& p) {
  const float g = sum * factor + f.weight_decay * p;
  p -= f.learning_rate * g;
}

constexpr void SgdMomentumStep(float sum, float factor, const rules::SgdFactors& f,
                               const rules::MomentumFactors& m, bool nesterov, float& p,
                               float& velocity) {
  const float g = sum * factor + f.weight_decay * p;
  const float v = m.keep * velocity + m.fraction * g;
  velocity = v;
  p -= f.learning_rate * (nesterov ? g + m.momentum * v : v);
}

template <class Root>
constexpr void RmsPropPlainStep(float sum, float factor, const rules::RmsPropFactors& f, float& p,
                                float& square, Root root) {
  const float g = sum * factor + f.weight_decay * p;
  const float s = f.decay * square + f.rest * (g * g);
  square = s;
  p -= f.learning_rate * g / root(s + f.epsilon);
}

template <class Root>
constexpr void RmsPropMomentumStep(float sum, float factor, const rules::RmsPropFactors& f,
                                   const rules::MomentumFactors& m, float& p, float& square,
                                   float& velocity, Root root) {
  const float g = sum * factor + f.weight_decay * p;
  const float s = f.decay * square + f.rest * (g * g);
  square = s;
  const float v = m.keep * velocity + f.learning_rate * g / root(s + f.epsilon);
  velocity = v;
  p -= m.fraction * v;
}

template <class Root>
constexpr void AdamWElementStep(float sum, float factor, const rules::AdamFactors& f, float& p,
                                float& moment, float& square, Root root) {
  const float g = sum * factor;
  const float m = f.beta1 * moment + f.rest1 * g;
  const float s = f.beta2 * square + f.rest2 * (g * g);
  moment = m;
  square = s;
  const float step = m * f.correction1 / (root(s * f.correction2) + f.epsilon);
  p -= f.learning_rate * (step + f.weight_decay * p);
}

}  // namespace lockstep::worker::cuda
