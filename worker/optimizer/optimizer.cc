#include "worker/optimizer/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/suggest.h"
#include "worker/optimizer/rules.h"

namespace lockstep::worker {
namespace {

// The share of its old value that an average keeps in an update that is `fraction` of a step.
double Keep(double decay, const UpdateScalars& scalars) {
  if (scalars.fraction == 1) return decay;
  return std::max(0.0, 1.0 - static_cast<double>(scalars.fraction) * (1.0 - decay));
}

// The share of the new value.
double Take(double decay, const UpdateScalars& scalars) {
  return std::min(1.0, static_cast<double>(scalars.fraction) * (1.0 - decay));
}

rules::MomentumFactors MomentumOf(double momentum, const UpdateScalars& scalars) {
  return {static_cast<float>(momentum), static_cast<float>(Keep(momentum, scalars)),
          scalars.fraction};
}

rules::Slice SliceOf(const Elements& elements, const UpdateScalars& scalars) {
  return {elements.count, elements.parameters, elements.gradient_sum,
          scalars.scale * scalars.clip_factor};
}

float RateOf(const UpdateScalars& scalars) { return scalars.learning_rate * scalars.fraction; }

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerSection& config)
      : momentum_(config.momentum),
        weight_decay_(static_cast<float>(config.weight_decay)),
        nesterov_(config.nesterov) {
    if (momentum_ != 0) names_ = {"momentum"};
  }
  const std::vector<std::string>& state_names() const override { return names_; }
  void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
               const Elements& elements) const override {
    LOCKSTEP_CHECK(elements.state.size() == names_.size());
    const rules::Slice slice = SliceOf(elements, scalars);
    const rules::SgdFactors factors{weight_decay_, RateOf(scalars)};
    if (names_.empty()) {
      loops.SgdPlain(slice, factors);
    } else {
      loops.SgdMomentum(slice, factors, MomentumOf(momentum_, scalars), nesterov_,
                        elements.state[0]);
    }
  }

 private:
  const double momentum_;
  const float weight_decay_;
  const bool nesterov_;
  std::vector<std::string> names_;
};

class RmsProp final : public Optimizer {
 public:
  explicit RmsProp(const OptimizerSection& config)
      : decay_(config.decay),
        epsilon_(static_cast<float>(config.epsilon)),
        momentum_(config.momentum),
        weight_decay_(static_cast<float>(config.weight_decay)),
        names_(momentum_ != 0 ? std::vector<std::string>{"square", "momentum"}
                              : std::vector<std::string>{"square"}) {}
  const std::vector<std::string>& state_names() const override { return names_; }
  void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
               const Elements& elements) const override {
    LOCKSTEP_CHECK(elements.state.size() == names_.size());
    const rules::Slice slice = SliceOf(elements, scalars);
    const rules::RmsPropFactors factors{weight_decay_, RateOf(scalars),
                                        static_cast<float>(Keep(decay_, scalars)),
                                        static_cast<float>(Take(decay_, scalars)), epsilon_};
    if (names_.size() == 1) {
      loops.RmsPropPlain(slice, factors, elements.state[0]);
    } else {
      loops.RmsPropMomentum(slice, factors, MomentumOf(momentum_, scalars), elements.state[0],
                            elements.state[1]);
    }
  }

 private:
  const double decay_;
  const float epsilon_;
  const double momentum_;
  const float weight_decay_;
  const std::vector<std::string> names_;
};

// Computes base^n by squaring: it has multiplications only, so it is the same on every machine,
// unlike pow().
double Power(double base, std::uint64_t n) {
  double result = 1;
  for (; n > 0; n >>= 1) {
    if (n & 1) result *= base;
    base *= base;
  }
  return result;
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const OptimizerSection& config) : config_(config) {}
  const std::vector<std::string>& state_names() const override { return names_; }
  void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
               const Elements& elements) const override {
    LOCKSTEP_CHECK(elements.state.size() == names_.size() && scalars.steps > 0);
    const rules::Slice slice = SliceOf(elements, scalars);
    rules::AdamFactors factors;
    factors.weight_decay = static_cast<float>(config_.weight_decay);
    factors.learning_rate = RateOf(scalars);
    factors.beta1 = static_cast<float>(Keep(config_.beta1, scalars));
    factors.rest1 = static_cast<float>(Take(config_.beta1, scalars));
    factors.beta2 = static_cast<float>(Keep(config_.beta2, scalars));
    factors.rest2 = static_cast<float>(Take(config_.beta2, scalars));
    factors.correction1 = static_cast<float>(1.0 / (1.0 - Power(config_.beta1, scalars.steps)));
    factors.correction2 = static_cast<float>(1.0 / (1.0 - Power(config_.beta2, scalars.steps)));
    factors.epsilon = static_cast<float>(config_.epsilon);
    loops.AdamWStep(slice, factors, elements.state[0], elements.state[1]);
  }

 private:
  const OptimizerSection config_;
  const std::vector<std::string> names_ = {"moment", "square"};
};

class Custom final : public Optimizer {
 public:
  explicit Custom(std::uint32_t state_tensors) {
    for (std::uint32_t t = 1; t <= state_tensors; ++t) names_.push_back(fmt::format("state{}", t));
  }
  const std::vector<std::string>& state_names() const override { return names_; }
  void ApplyBy(const rules::Loops& /*loops*/, const UpdateScalars& /*scalars*/,
               const Elements& /*elements*/) const override {
    LOCKSTEP_CHECK(false, "the session makes an update that is the program's to make");
  }

 private:
  std::vector<std::string> names_;
};

class FactorsBehind final : public Optimizer {
 public:
  explicit FactorsBehind(std::unique_ptr<Optimizer> optimizer) : optimizer_(std::move(optimizer)) {
    names_ = optimizer_->state_names();
    names_.emplace_back("factors");
  }
  const std::vector<std::string>& state_names() const override { return names_; }
  void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
               const Elements& elements) const override {
    LOCKSTEP_CHECK(elements.state.size() == names_.size());
    Elements own = elements;
    own.state = elements.state.first(names_.size() - 1);
    optimizer_->ApplyBy(loops, scalars, own);
  }

 private:
  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::string> names_;
};

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

bool Share(double x) { return x >= 0 && x < 1; }

}  // namespace

void Optimizer::Apply(const UpdateScalars& scalars, const Elements& elements) const {
  ApplyBy(rules::HostLoops(), scalars, elements);
}

std::unique_ptr<Optimizer> MakeCustomOptimizer(std::uint32_t state_tensors) {
  return std::make_unique<Custom>(state_tensors);
}

std::unique_ptr<Optimizer> WithFactors(std::unique_ptr<Optimizer> optimizer) {
  return std::make_unique<FactorsBehind>(std::move(optimizer));
}

Result<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSection& config) {
  const std::vector<std::string> known = {"sgd", "rmsprop", "adamw"};
  if (!Share(config.momentum) || !Share(config.decay) || !Share(config.beta1) ||
      !Share(config.beta2)) {
    return Invalid("optimizer: momentum, decay, beta1 and beta2 must be in [0, 1)");
  }
  if (!(config.weight_decay >= 0)) return Invalid("optimizer.weight_decay: must not be negative");
  // Otherwise a parameter without gradient would be divided by zero.
  if (config.name != "sgd" && !(static_cast<float>(config.epsilon) > 0)) {
    return Invalid("optimizer.epsilon: must be above 0");
  }
  if (config.name == "sgd") {
    if (config.nesterov && config.momentum == 0) {
      return Invalid("optimizer.nesterov: needs a momentum above 0");
    }
    return std::unique_ptr<Optimizer>(std::make_unique<Sgd>(config));
  }
  if (config.name == "rmsprop") {
    return std::unique_ptr<Optimizer>(std::make_unique<RmsProp>(config));
  }
  if (config.custom()) {
    return Invalid("optimizer.name = custom: this program makes no updates of its own");
  }
  if (config.name == "adamw") return std::unique_ptr<Optimizer>(std::make_unique<AdamW>(config));
  return Invalid(NotOneOf("optimizer.name", config.name, known));
}

}  // namespace lockstep::worker
