#include "tools/simulate/known_costs.h"

#include <algorithm>
#include <vector>

#include "worker/core/cost_report.h"

namespace lockstep::simulate {

const worker::event::CostsGiven& KnownCosts::Of(Epoch epoch) {
  constexpr std::size_t kKept = 4;
  const auto made = std::ranges::find(made_, epoch, &worker::event::CostsGiven::epoch);
  if (made != made_.end()) return *made;
  std::vector<float> costs(epoch_samples_);
  for (std::uint64_t i = 0; i < epoch_samples_; ++i) {
    costs[i] = static_cast<float>(cost_(epoch, i));
  }
  made_.push_back(worker::CostsOf(epoch, costs));
  if (made_.size() > kKept) made_.pop_front();
  return made_.back();
}

}  // namespace lockstep::simulate
