#include "worker/core/cost_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace lockstep::worker {

event::CostsGiven CostsOf(Epoch epoch, std::span<const float> costs, bool exact) {
  constexpr double kLargest = std::numeric_limits<std::uint16_t>::max();
  const double scale = *std::ranges::max_element(costs) / kLargest;
  auto numbers = std::make_shared<std::vector<std::uint16_t>>(costs.size());
  std::ranges::transform(costs, numbers->begin(), [&](float cost) {
    return static_cast<std::uint16_t>(std::lround(std::min(cost / scale, kLargest)));
  });
  event::CostsGiven given{epoch, scale, std::move(numbers)};
  if (exact) {
    given.exact = std::make_shared<const std::vector<float>>(costs.begin(), costs.end());
  }
  return given;
}

void CostReport::OnGiven(const event::CostsGiven& e) {
  if (e.costs == nullptr || e.costs->empty()) return;
  std::erase_if(given_, [&](const Given& given) { return given.costs.epoch == e.epoch; });
  const auto after =
      std::ranges::find_if(given_, [&](const Given& given) { return given.costs.epoch > e.epoch; });
  given_.insert(after, Given{e});
  if (given_.size() > kMost) given_.pop_front();
  TellMore();
}

void CostReport::OnPlan(const Plan& plan) {
  epoch_ = plan.epoch;
  const bool tells = !plan.members.empty() && plan.members.front() == context_.config.self;
  // Another one may have told the first pieces of it.
  if (tells && !std::exchange(tells_, tells)) {
    for (Given& given : given_) given.told = 0;
  }
  tells_ = tells;
  TellMore();
}

std::shared_ptr<const std::vector<float>> CostReport::Of(Epoch epoch) const {
  const auto given = std::ranges::find(given_, epoch, [](const Given& g) { return g.costs.epoch; });
  return given == given_.end() ? nullptr : given->costs.exact;
}

void CostReport::TellMore() {
  if (!tells_ || !context_.config.takes_costs) return;
  for (Given& given : given_) {
    const std::vector<std::uint16_t>& costs = *given.costs.costs;
    if (given.costs.epoch < epoch_ || given.costs.epoch > epoch_.Next()) continue;
    const std::size_t count = std::min(costs.size() - given.told, msg::Costs::kMost);
    if (count == 0) continue;
    msg::Costs piece{given.costs.epoch, given.told, given.costs.scale, {}};
    piece.costs.reserve(2 * count);
    for (std::size_t i = given.told; i < given.told + count; ++i) {
      piece.costs.push_back(static_cast<std::byte>(costs[i] & 0xff));
      piece.costs.push_back(static_cast<std::byte>(costs[i] >> 8));
    }
    given.told += count;
    context_.Tell(std::move(piece));
    return;
  }
}

}  // namespace lockstep::worker
