#include "coordinator/owners.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Differences below this are scheduling noise, not a slow machine.
constexpr Duration kNoise = std::chrono::milliseconds(5);
constexpr std::uint32_t kSlowRounds = 8;    // in a row, to lose half the weight
constexpr std::uint32_t kQuickRounds = 32;  // in a row, to get it back

}  // namespace

void OwnerWeights::OnRoundPublished(std::span<const MemberId> owners,
                                    std::span<const Duration> took) {
  if (owners.size() < 2) return;
  std::vector<Duration> sorted(took.begin(), took.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const Duration median = *middle;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    Slot& slot = slots_[owners[i].worker.value];
    if (slot.incarnation != owners[i].incarnation) {
      slot = {};
      slot.incarnation = owners[i].incarnation;
    }
    slot.mean = slot.mean == Duration{} ? took[i] : slot.mean + (took[i] - slot.mean) / 8;
    const bool slow = slot.mean > 2 * median + kNoise;
    const bool quick = slot.mean < median + median / 2 + kNoise;
    slot.slow_rounds = slow ? slot.slow_rounds + 1 : 0;
    slot.quick_rounds = quick ? slot.quick_rounds + 1 : 0;
    if (slot.slow_rounds >= kSlowRounds) slot.half = true;
    if (slot.quick_rounds >= kQuickRounds) slot.half = false;
  }
}

OwnerMap OwnerWeights::Choose(std::uint32_t version, std::span<const MemberId> candidates,
                              const Members& members) const {
  LOCKSTEP_CHECK(!candidates.empty(), "nobody can own anything");
  const auto faults = [&members](const MemberId& id) {
    return members.BrokenEdges(id.worker) * 2 + (members.at(id.worker).owner_on_trial ? 1 : 0);
  };
  std::uint32_t fewest = ~0u;
  for (const MemberId& id : candidates) fewest = std::min(fewest, faults(id));
  OwnerMap map{version, {}};
  bool any_full = false;
  for (const MemberId& id : candidates) {
    if (faults(id) != fewest) continue;
    const Slot& slot = slots_[id.worker.value];
    const bool half = slot.half && slot.incarnation == id.incarnation;
    any_full = any_full || !half;
    map.owners.push_back({id, half ? 1u : 2u});
  }
  const bool all_full = std::all_of(map.owners.begin(), map.owners.end(),
                                    [](const OwnerShare& share) { return share.weight == 2; });
  if (!any_full || all_full) {
    for (OwnerShare& share : map.owners) share.weight = 1;
  }
  return map;
}

}  // namespace lockstep::coordinator
