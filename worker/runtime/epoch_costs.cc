#include "worker/runtime/epoch_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "base/permutation.h"

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

// 16 bits for each sample: of a sum of many of them that is more than enough to plan by.
void EpochCosts::Tell(Epoch epoch, std::span<const float> costs) {
  constexpr double kLargest = std::numeric_limits<std::uint16_t>::max();
  const double scale = *std::ranges::max_element(costs) / kLargest;
  auto numbers = std::make_shared<std::vector<std::uint16_t>>(costs.size());
  std::ranges::transform(costs, numbers->begin(), [&](float cost) {
    return static_cast<std::uint16_t>(std::lround(std::min(cost / scale, kLargest)));
  });
  std::erase_if(kept_, [&](const event::CostsGiven& other) { return other.epoch == epoch; });
  kept_.push_back({epoch, scale, std::move(numbers)});
  if (kept_.size() > 2) kept_.pop_front();
  told_(kept_.back());
}

void EpochCosts::TellAgain() const {
  for (const event::CostsGiven& costs : kept_) told_(costs);
}

}  // namespace lockstep::worker
