// Parameters with a rate, weight decay or momentum of their own: torch.optim's parameter groups.
// Examples are biases and norms without decay, or the last layer of a fine-tuned model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::worker {

struct ParameterGroup {
  double lr_factor = 1;  // of the rate by the schedule, at least 0
  // nullopt: the job's value.
  std::optional<double> weight_decay = std::nullopt;
  std::optional<double> momentum = std::nullopt;  // for sgd and rmsprop
  bool operator==(const ParameterGroup&) const = default;
};

// Consecutive parameters, in model order. The runs together are all parameters, or there are none
// where all are alike.
struct GroupRun {
  std::uint64_t parameters = 0;
  ParameterGroup group;
};
using ParameterGroups = std::vector<GroupRun>;

}  // namespace lockstep::worker
