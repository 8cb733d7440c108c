#include "worker/runtime/local_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/schedule.h"
#include "worker/optimizer/grouped.h"

namespace lockstep::worker {

OptimizerSection OuterOptimizer(const JobConfig& config) {
  OptimizerSection outer;
  outer.name = "sgd";
  outer.lr = config.policy.local_rate;
  outer.momentum = config.policy.local_momentum;
  outer.nesterov = false;
  outer.weight_decay = 0;
  outer.clip = 0;
  outer.linear_scaling = false;
  return outer;
}

Result<LocalSteps> LocalSteps::Make(const JobConfig& config, std::uint32_t workers,
                                    std::uint64_t parameter_count, const ParameterGroups& groups) {
  auto optimizer = MakeOptimizer(config.optimizer, groups);
  if (!optimizer) return optimizer.error();
  const std::uint64_t parts = std::uint64_t{workers} * config.policy.local_steps;
  const std::uint64_t samples = std::max<std::uint64_t>(1, config.job.global_batch / parts);
  return LocalSteps(std::move(*optimizer), config.optimizer, samples, parameter_count);
}

LocalSteps::LocalSteps(std::unique_ptr<Optimizer> optimizer, const OptimizerSection& config,
                       std::uint64_t step_samples, std::uint64_t parameter_count)
    : optimizer_(std::move(optimizer)),
      clip_(config.clip),
      linear_scaling_(config.linear_scaling),
      step_samples_(step_samples),
      parameters_(parameter_count),
      gradient_(parameter_count),
      state_(optimizer_->state_names().size(), std::vector<float>(parameter_count)) {}

void LocalSteps::Begin(std::span<const float> base, float rate) {
  std::copy(base.begin(), base.end(), parameters_.begin());
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  for (std::vector<float>& tensor : state_) std::fill(tensor.begin(), tensor.end(), 0.0f);
  rate_ = rate;
  steps_ = gathered_ = divisor_ = weight_ = 0;
}

void LocalSteps::UnitDone(std::uint64_t samples, std::uint64_t divisor) {
  gathered_ += samples;
  divisor_ += divisor;
  weight_ += divisor;
  if (gathered_ >= step_samples_) Step();
}

void LocalSteps::Step() {
  UpdateScalars scalars;
  scalars.scale = divisor_ > 0 ? static_cast<float>(1.0 / static_cast<double>(divisor_)) : 0.0f;
  scalars.learning_rate = rate_;
  if (linear_scaling_) {
    // More than a step's samples are one step all the same.
    scalars.fraction = static_cast<float>(std::min(1.0, StepFraction(gathered_, step_samples_)));
  }
  scalars.steps = ++steps_;
  if (clip_ > 0) {
    double squares = 0;
    for (const float g : gradient_) squares += static_cast<double>(g) * static_cast<double>(g);
    const double norm = static_cast<double>(scalars.scale) * std::sqrt(squares);
    if (norm > clip_) scalars.clip_factor = static_cast<float>(clip_ / norm);
  }
  std::vector<float*> state;
  for (std::vector<float>& tensor : state_) state.push_back(tensor.data());
  optimizer_->Apply(scalars, {.first = 0,
                              .count = parameters_.size(),
                              .parameters = parameters_.data(),
                              .state = state,
                              .gradient_sum = gradient_.data()});
  std::fill(gradient_.begin(), gradient_.end(), 0.0f);
  gathered_ = divisor_ = 0;
}

void LocalSteps::Seal(std::span<const float> base, std::span<float> contribution) {
  if (gathered_ > 0) Step();
  const auto weight = static_cast<float>(weight_);
  for (std::size_t i = 0; i < contribution.size(); ++i) {
    contribution[i] = weight * (base[i] - parameters_[i]);
  }
}

}  // namespace lockstep::worker
