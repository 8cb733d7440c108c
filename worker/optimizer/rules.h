// The loops over the elements of a slice, with variants for another device's memory. They are for
// worker/optimizer and the devices.
#pragma once

#include <cstddef>

namespace lockstep::worker::rules {

struct Slice {
  std::size_t count = 0;
  float* parameters = nullptr;
  const float* gradient_sum = nullptr;
  float factor = 1;  // from the sum to the gradient
};

// In all of them, learning_rate includes the fraction, and `keep` is 1 - fraction * (1 - momentum).
struct SgdFactors {
  float weight_decay, learning_rate;
  bool operator==(const SgdFactors&) const = default;
};

struct MomentumFactors {
  float momentum, keep, fraction;
  bool operator==(const MomentumFactors&) const = default;
};

struct RmsPropFactors {
  float weight_decay, learning_rate, decay, rest, epsilon;  // rest = 1 - decay
  bool operator==(const RmsPropFactors&) const = default;
};

struct AdamFactors {
  float weight_decay, learning_rate, beta1, rest1, beta2, rest2, correction1, correction2, epsilon;
  bool operator==(const AdamFactors&) const = default;
};

// Each function is one pass over a slice. The formulae are those of rules.cc, operation by
// operation, each correctly rounded and none contracted: the same bits on every device. The other
// pointers are to the slice's first element too.
class Loops {
 public:
  virtual ~Loops() = default;
  virtual void SgdPlain(const Slice& slice, const SgdFactors& factors) const = 0;
  virtual void SgdMomentum(const Slice& slice, const SgdFactors& factors,
                           const MomentumFactors& momentum, bool nesterov,
                           float* velocity) const = 0;
  virtual void RmsPropPlain(const Slice& slice, const RmsPropFactors& factors,
                            float* square) const = 0;
  virtual void RmsPropMomentum(const Slice& slice, const RmsPropFactors& factors,
                               const MomentumFactors& momentum, float* square,
                               float* velocity) const = 0;
  virtual void AdamWStep(const Slice& slice, const AdamFactors& factors, float* moment,
                         float* square) const = 0;
};

// They work on the host's memory, and are done when they return.
const Loops& HostLoops();

}  // namespace lockstep::worker::rules
