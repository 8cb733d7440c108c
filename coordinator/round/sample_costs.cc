#include "coordinator/round/sample_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/sometimes.h"

namespace lockstep::coordinator {
namespace {

// In usual samples. A worker may say what it likes, and sums of these stay numbers.
constexpr double kDearest = 1e6;

}  // namespace

Status SampleCosts::Take(const MemberId& from, const msg::Costs& message,
                         std::uint64_t epoch_samples, Epoch current) {
  const std::size_t count = message.costs.size() / 2;
  if (message.from > epoch_samples || count > epoch_samples - message.from) {
    return Error{ErrorCode::kInvalid, "told costs of samples beyond the epoch"};
  }
  while (!known_.empty() && known_.front().epoch < current) known_.pop_front();
  if (message.epoch < current || message.epoch > current.Next()) return {};
  auto known = std::ranges::find(known_, message.epoch, &Known::epoch);
  if (known == known_.end()) {
    if (message.from != 0) return {};
    const auto after = std::ranges::find_if(
        known_, [&](const Known& other) { return other.epoch > message.epoch; });
    known = known_.insert(after, {message.epoch, from, {}});
  } else if (message.from == 0 && known->from != from) {
    Sometimes<"costs: another worker tells them anew">();
    *known = {message.epoch, from, {}};
  }
  if (known->from != from || known->costs.size() != message.from) return {};
  if (known->costs.size() + count > kMost) return {};
  std::vector<double> costs(count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto low = std::to_integer<std::uint32_t>(message.costs[2 * i]);
    const auto high = std::to_integer<std::uint32_t>(message.costs[2 * i + 1]);
    costs[i] = message.scale * (low | high << 8);
    sum += costs[i];
  }
  if (!usual_) {
    if (sum <= 0 || !std::isfinite(sum)) return {};
    usual_ = sum / static_cast<double>(count);
  }
  known->costs.reserve(known->costs.size() + count);
  for (const double cost : costs) {
    known->costs.push_back(static_cast<float>(std::min(cost / *usual_, kDearest)));
  }
  return {};
}

std::optional<double> SampleCosts::Of(Epoch epoch, SampleRange range) const {
  const auto known = std::ranges::find(known_, epoch, &Known::epoch);
  if (known == known_.end() || range.to > known->costs.size()) return std::nullopt;
  double sum = 0;
  for (std::uint64_t i = range.from; i < range.to; ++i) sum += known->costs[i];
  return sum;
}

}  // namespace lockstep::coordinator
