// Local SGD (policy `local`): the steps that a worker takes on its own between two averages. Each
// round begins with the common parameters and an empty optimizer state, so what a part comes to
// depends on the parameters and the units alone. The contribution is the way that was gone, base
// minus local parameters, times what the part counts for (its samples, or what the program says).
// The weighted mean of such contributions leads from the base to the average of the local
// parameters.
//
// Sources: parameter averaging, Zinkevich et al., NIPS 2010, algorithm 3, and McMahan et al.,
// AISTATS 2017, algorithm 1 (weighted by samples). The outer step with a rate and momentum is as in
// SlowMo, Wang et al., ICLR 2020, algorithm 1.
//
// The compute thread's own; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/parameter_group.h"

namespace lockstep::worker {

// The optimizer of the step from a round's old parameters to their average, which all workers take
// alike; the section that the user gave is for the local steps.
OptimizerSection OuterOptimizer(const JobConfig& config);

class LocalSteps {
 public:
  // A step has config.job.global_batch / (workers * local.steps) samples, rounded up to whole
  // units.
  static Result<LocalSteps> Make(const JobConfig& config, std::uint32_t workers,
                                 std::uint64_t parameter_count, const ParameterGroups& groups = {});

  // A part begins at `base`, which stays as it is until Seal; the rate is that of its steps.
  void Begin(std::span<const float> base, float rate);
  // Of the next unit: its parameters, and where its gradient sum is added.
  std::span<const float> parameters() const { return parameters_; }
  std::span<float> gradient() { return gradient_; }
  // `divisor`: what the gradient's mean is over.
  void UnitDone(std::uint64_t samples, std::uint64_t divisor);
  // Takes the last step, with the samples that there are, and writes the contribution.
  void Seal(std::span<const float> base, std::span<float> contribution);

 private:
  LocalSteps(std::unique_ptr<Optimizer> optimizer, const OptimizerSection& config,
             std::uint64_t step_samples, std::uint64_t parameter_count);
  void Step();

  std::unique_ptr<Optimizer> optimizer_;
  double clip_;
  bool linear_scaling_;
  std::uint64_t step_samples_;
  std::vector<float> parameters_;
  std::vector<float> gradient_;
  std::vector<std::vector<float>> state_;
  float rate_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t gathered_ = 0;  // samples, since the last step
  std::uint64_t divisor_ = 0;   // likewise
  std::uint64_t weight_ = 0;    // of the part: all divisors
};

}  // namespace lockstep::worker
