// The loops over the elements of a slice. Internal to worker/optimizer.
#pragma once

#include <cstddef>

namespace lockstep::worker::rules {

struct Slice {
  std::size_t count = 0;
  float* parameters = nullptr;
  const float* gradient_sum = nullptr;
  float factor = 1;  // from the sum to the gradient
};

void SgdPlain(const Slice& slice, float weight_decay, float learning_rate);
void SgdMomentum(const Slice& slice, float weight_decay, float learning_rate, float momentum,
                 bool nesterov, float* velocity);

struct RmsPropFactors {
  float weight_decay, learning_rate, decay, rest, epsilon;  // rest = 1 - decay
};
void RmsPropPlain(const Slice& slice, const RmsPropFactors& factors, float* square);
void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors, float momentum,
                     float* square, float* velocity);

struct AdamFactors {
  float weight_decay, learning_rate, beta1, rest1, beta2, rest2, correction1, correction2, epsilon;
};
void AdamWStep(const Slice& slice, const AdamFactors& factors, float* moment, float* square);

}  // namespace lockstep::worker::rules
