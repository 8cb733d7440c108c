// Turns the round's gradient sum into new parameters. It works elementwise: every result depends on
// its element alone, by correctly rounded operations. So slices may be done in any order, on any
// machine, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"

namespace lockstep::worker {

namespace rules {
class Loops;
}

// The scalars of one update; they are the same on every worker.
struct UpdateScalars {
  float scale = 1;          // of the gradient sum: 1 / samples
  float clip_factor = 1;    // 1 unless the gradient is longer than optimizer.clip
  float learning_rate = 0;  // by the schedule
  // The part of a step that this update is: above 0, seldom above 1. It is samples / global_batch
  // where the rate follows the samples (the linear scaling rule, Goyal et al. 2017).
  float fraction = 1;
  std::uint64_t steps = 1;  // the sum of all fractions, this one included, rounded up
};

// The elements that are updated at once: [first, first + count) of the whole vector. The pointers
// are to the first of these, in any memory.
struct Elements {
  std::size_t first = 0;  // settings of single parameters (grouped.h) use it
  std::size_t count = 0;
  float* parameters = nullptr;
  std::span<float* const> state;  // in the order of state_names()
  const float* gradient_sum = nullptr;
};

// It is immutable; several threads may use it on different slices.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The names of its tensors, each flat and as long as the parameters, zero before the first
  // update.
  virtual const std::vector<std::string>& state_names() const = 0;

  void Apply(const UpdateScalars& scalars, const Elements& elements) const;
  // The same where the pointers are memory that `loops` (rules.h) works on, such as a GPU's.
  virtual void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
                       const Elements& elements) const = 0;
};

// The rules, with g the mean gradient, times clip_factor, and f the fraction of a step:
//   sgd      g += weight_decay * p; v = momentum * v + g; p -= lr * (nesterov ? g + momentum * v :
//            v)
//   rmsprop  g += weight_decay * p; s = decay * s + (1 - decay) * g^2; v = momentum * v + lr * g
//            / sqrt(s + epsilon); p -= v
//            (with momentum, as Chen et al. 2016 train with; they take decay 0.9, momentum 0.9,
//            epsilon 1)
//   adamw    Loshchilov, Hutter 2019: m and s with bias correction; p -= lr * (m' / (sqrt(s') +
//            epsilon) + weight_decay * p)
// where f is 1. A smaller f goes that part of the way, in the parameters and in every average. It
// replaces lr by lr * f, and v = momentum * v + g by v = (1 - f * (1 - momentum)) * v + f * g. The
// averages s and m change likewise. So a sample has the same weight in the end, in a round of many
// samples or of few, and a round of few leaves the averages nearly unchanged. Without momentum, sgd
// and rmsprop keep no v. Errors name the key.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSection& config);

// For updates that the training program makes (`custom`): it has the state's names, "state1" and so
// on, and is never applied.
std::unique_ptr<Optimizer> MakeCustomOptimizer(std::uint32_t state_tensors);

// Adds one more tensor after its own, "factors", which it ignores: it holds the known factors of
// the gradient (exchange.compression = powersgd).
std::unique_ptr<Optimizer> WithFactors(std::unique_ptr<Optimizer> optimizer);

}  // namespace lockstep::worker
