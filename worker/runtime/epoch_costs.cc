#include "worker/runtime/epoch_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/permutation.h"
#include "worker/core/cost_report.h"

namespace lockstep::worker {

Status CheckCosts(std::span<const float> costs, std::uint64_t samples) {
  if (costs.size() != samples) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("costs of {} samples, and there are {}", costs.size(), samples)};
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (std::isfinite(costs[i]) && costs[i] >= 0) continue;
    return Error{ErrorCode::kInvalid,
                 fmt::format("the cost of sample {} is {}: it is at least 0", i, costs[i])};
  }
  if (std::ranges::none_of(costs, [](float cost) { return cost > 0; })) {
    return Error{ErrorCode::kInvalid, "costs that are all 0"};
  }
  return {};
}

void EpochCosts::OnEpoch(Epoch epoch, std::span<const std::uint32_t> order) {
  if (by_sample_.empty() || epoch < next_) return;
  TellInOrder(epoch, order);
  // Its first round is planned while this epoch is on.
  TellInOrder(epoch.Next(),
              EpochOrder(seed_, epoch.Next(), static_cast<std::uint32_t>(order.size())));
  next_ = epoch.Next();
}

void EpochCosts::TellInOrder(Epoch epoch, std::span<const std::uint32_t> order) {
  const auto known = [&](const event::CostsGiven& costs) { return costs.epoch == epoch; };
  if (std::ranges::any_of(kept_, known)) return;
  std::vector<float> costs(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) costs[i] = by_sample_[order[i]];
  Tell(epoch, costs);
}

void EpochCosts::Tell(Epoch epoch, std::span<const float> costs) {
  std::erase_if(kept_, [&](const event::CostsGiven& other) { return other.epoch == epoch; });
  kept_.push_back(CostsOf(epoch, costs, exact_));
  if (kept_.size() > 2) kept_.pop_front();
  told_(kept_.back());
}

void EpochCosts::TellAgain() const {
  for (const event::CostsGiven& costs : kept_) told_(costs);
}

}  // namespace lockstep::worker
