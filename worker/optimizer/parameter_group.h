// Parameters that have a rate, a weight decay or a momentum of their own, as biases and norms that
// are not to decay, or the last layer of a model that is fine-tuned: torch.optim's parameter
// groups.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::worker {

struct ParameterGroup {
  double lr_factor = 1;  // of the rate that the schedule says, at least 0
  // nullopt: the job's.
  std::optional<double> weight_decay = std::nullopt;
  std::optional<double> momentum = std::nullopt;  // of sgd and rmsprop
  bool operator==(const ParameterGroup&) const = default;
};

// Consecutive parameters, in model order; together all of them, or none where all are alike.
struct GroupRun {
  std::uint64_t parameters = 0;
  ParameterGroup group;
};
using ParameterGroups = std::vector<GroupRun>;

}  // namespace lockstep::worker
