#include "coordinator/round/cost_plan.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {

std::vector<std::vector<std::uint32_t>> ShareByCost(std::span<const float> costs,
                                                    std::span<const std::uint32_t> shares,
                                                    std::uint32_t bound,
                                                    const std::vector<bool>& trusted) {
  // Equal shares differ by one where they do not go up.
  const auto [least, most] = std::ranges::minmax(shares);
  const bool equal = most - least <= 1;
  std::vector<double> speeds(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) speeds[i] = equal ? 1 : shares[i];
  const bool any_trusted = std::ranges::any_of(trusted, [](bool is) { return is; });

  std::vector<std::uint32_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order,
                           [&](std::uint32_t a, std::uint32_t b) { return costs[a] > costs[b]; });
  std::vector<double> loads(shares.size());
  std::vector<std::vector<std::uint32_t>> units(shares.size());
  const auto give = [&](std::uint32_t unit, std::size_t worker) {
    loads[worker] += costs[unit];
    units[worker].push_back(unit);
  };
  if (equal && !(bound > 0 && any_trusted)) {
    // The least loaded is the soonest, too.
    using Load = std::pair<double, std::size_t>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least_loaded;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (speeds[i] > 0) least_loaded.emplace(0, i);
    }
    for (const std::uint32_t unit : order) {
      const std::size_t worker = least_loaded.top().second;
      least_loaded.pop();
      give(unit, worker);
      least_loaded.emplace(loads[worker], worker);
    }
    return units;
  }
  for (const std::uint32_t unit : order) {
    // Where only those that get nothing are trusted, it is one of the others.
    std::optional<std::size_t> best;
    double soonest = 0;
    for (const bool only_trusted : {unit < bound && any_trusted, false}) {
      for (std::size_t i = 0; i < shares.size(); ++i) {
        if (speeds[i] == 0 || (only_trusted && !trusted[i])) continue;
        const double end = (loads[i] + costs[unit]) / speeds[i];
        if (best && end >= soonest) continue;
        best = i;
        soonest = end;
      }
      if (best) break;
    }
    LOCKSTEP_CHECK(best.has_value(), "I2: {} units are shared out among nobody", costs.size());
    give(unit, *best);
  }
  return units;
}

}  // namespace lockstep::coordinator
