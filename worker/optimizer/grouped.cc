#include "worker/optimizer/grouped.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/digest.h"

namespace lockstep::worker {
namespace {

constexpr std::size_t kShownGroups = 4;

// The optimizer of its group updates each run; the rules are elementwise, so the cut of a slice
// does not matter.
class Grouped final : public Optimizer {
 public:
  struct Kind {
    std::unique_ptr<Optimizer> optimizer;
    double lr_factor = 1;
  };
  struct Run {
    std::uint64_t end = 0;
    std::size_t kind = 0;
  };
  Grouped(std::vector<Kind> kinds, std::vector<Run> runs)
      : kinds_(std::move(kinds)), runs_(std::move(runs)) {}

  const std::vector<std::string>& state_names() const override {
    return kinds_.front().optimizer->state_names();
  }
  void ApplyBy(const rules::Loops& loops, const UpdateScalars& scalars,
               const Elements& elements) const override {
    std::size_t first = elements.first;
    const std::size_t end = first + elements.count;
    LOCKSTEP_CHECK(end <= runs_.back().end, "{} parameters, of {} in groups", end,
                   runs_.back().end);
    std::vector<float*> state(elements.state.size());
    auto run = std::ranges::upper_bound(runs_, first, {}, &Run::end);
    for (; first < end; ++run) {
      const Kind& kind = kinds_[run->kind];
      const std::size_t stop = std::min<std::size_t>(end, run->end);
      UpdateScalars own = scalars;
      own.learning_rate =
          static_cast<float>(static_cast<double>(scalars.learning_rate) * kind.lr_factor);
      const std::size_t behind = first - elements.first;
      std::ranges::transform(elements.state, state.begin(),
                             [&](float* tensor) { return tensor + behind; });
      kind.optimizer->ApplyBy(loops, own,
                              {.first = first,
                               .count = stop - first,
                               .parameters = elements.parameters + behind,
                               .state = state,
                               .gradient_sum = elements.gradient_sum + behind});
      first = stop;
    }
  }

 private:
  const std::vector<Kind> kinds_;  // at least one
  const std::vector<Run> runs_;    // ascending, at least one
};

std::vector<ParameterGroup> Different(const ParameterGroups& groups) {
  std::vector<ParameterGroup> different;
  for (const GroupRun& run : groups) {
    if (std::ranges::find(different, run.group) == different.end()) different.push_back(run.group);
  }
  return different;
}

std::string Words(const ParameterGroup& group) {
  std::string words = fmt::format("lr x {}", group.lr_factor);
  if (group.weight_decay) words += fmt::format(", weight_decay {}", *group.weight_decay);
  if (group.momentum) words += fmt::format(", momentum {}", *group.momentum);
  return words;
}

Error NoGroups(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

}  // namespace

std::string DigestOfGroups(const ParameterGroups& groups) {
  if (groups.empty()) return {};
  const std::vector<ParameterGroup> different = Different(groups);
  std::string words;
  for (std::size_t i = 0; i < std::min(different.size(), kShownGroups); ++i) {
    words += fmt::format("{}{}", i == 0 ? "" : " | ", Words(different[i]));
  }
  DigestStream digest;
  const auto add = [&digest](auto x) { digest.Update(std::as_bytes(std::span(&x, 1))); };
  for (const GroupRun& run : groups) {
    add(run.parameters);
    for (const double x : {run.group.lr_factor, run.group.weight_decay.value_or(-1),
                           run.group.momentum.value_or(-1)}) {
      add(x);
    }
  }
  return fmt::format("{} parameter groups ({}) {}", different.size(), words,
                     ToString(digest.Digest()));
}

Result<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSection& config,
                                                 const ParameterGroups& groups) {
  if (groups.empty()) return MakeOptimizer(config);
  const std::vector<ParameterGroup> different = Different(groups);
  std::vector<Grouped::Kind> kinds;
  for (const ParameterGroup& group : different) {
    if (!std::isfinite(group.lr_factor) || group.lr_factor < 0) {
      return NoGroups(
          fmt::format("a parameter group's rate is {} times the job's: it must be 0 or "
                      "more",
                      group.lr_factor));
    }
    OptimizerSection own = config;
    own.weight_decay = group.weight_decay.value_or(config.weight_decay);
    own.momentum = group.momentum.value_or(config.momentum);
    auto optimizer = MakeOptimizer(own);
    if (!optimizer) {
      return NoGroups(
          fmt::format("a parameter group ({}): {}", Words(group), optimizer.error().message));
    }
    kinds.push_back({std::move(*optimizer), group.lr_factor});
    if (kinds.back().optimizer->state_names() != kinds.front().optimizer->state_names()) {
      return NoGroups(
          "some parameter groups have a momentum, and others have none: they would keep "
          "other state");
    }
  }
  std::vector<Grouped::Run> runs;
  std::uint64_t end = 0;
  for (const GroupRun& run : groups) {
    const auto kind =
        static_cast<std::size_t>(std::ranges::find(different, run.group) - different.begin());
    end += run.parameters;
    if (!runs.empty() && runs.back().kind == kind) {
      runs.back().end = end;
    } else {
      runs.push_back({end, kind});
    }
  }
  return std::unique_ptr<Optimizer>(std::make_unique<Grouped>(std::move(kinds), std::move(runs)));
}

}  // namespace lockstep::worker
