#include "coordinator/round/owner_weights.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Differences below these are scheduling noise, not a slow machine or link.
constexpr Duration kNoise = std::chrono::milliseconds(5);
constexpr Duration kReceiptNoise = std::chrono::milliseconds(20);
constexpr std::uint32_t kSlowRounds = 8;    // in a row, to lose half the weight
constexpr std::uint32_t kQuickRounds = 32;  // in a row, to get it back
constexpr std::uint32_t kLateRounds = 4;    // more than others, to lose all of it
// Rounds in a row until it may own again; doubled each time that was too early, so that the map
// comes to rest.
constexpr std::uint32_t kPromptRounds = 32;
constexpr std::uint32_t kMostDoublings = 6;

// The lower one; zero of nothing.
Duration Median(std::vector<Duration> values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// Another incarnation is another machine, as far as is known: it begins without a history.
OwnerWeights::Slot& OwnerWeights::SlotOf(const MemberId& id) {
  Slot& slot = slots_[id.worker.value];
  if (slot.incarnation != id.incarnation) {
    slot = {};
    slot.incarnation = id.incarnation;
  }
  return slot;
}

// Compared with the median of the same round: what slows all down is nobody's fault. Half the
// weight is the only step. It takes many rounds in a row both ways, so that maps stay.
void OwnerWeights::OnRoundPublished(std::span<const MemberId> owners,
                                    std::span<const Duration> took) {
  LOCKSTEP_CHECK(owners.size() == took.size(), "{} owners took {} times", owners.size(),
                 took.size());
  if (owners.size() < 2) return;
  const Duration median = Median({took.begin(), took.end()});
  for (std::size_t i = 0; i < owners.size(); ++i) {
    Slot& slot = SlotOf(owners[i]);
    // Smoothed, so that one pause does not make a slow owner; the rounds in a row are counted of
    // the mean, not of the single time.
    slot.mean = slot.mean == Duration{} ? took[i] : slot.mean + (took[i] - slot.mean) / 8;
    const bool slow = slot.mean > 2 * median + kNoise;
    const bool quick = slot.mean < median + median / 2 + kNoise;
    slot.slow_rounds = slow ? slot.slow_rounds + 1 : 0;
    slot.quick_rounds = quick ? slot.quick_rounds + 1 : 0;
    if (slot.slow_rounds >= kSlowRounds) slot.half = true;
    if (slot.quick_rounds >= kQuickRounds) slot.half = false;
  }
}

// The usual time is the median of this very round, separately for receipts and control messages: in
// a round with large contributions all are late, and then nobody is slow.
std::vector<OwnerChange> OwnerWeights::OnRoundDelivered(std::span<const LinkResponse> responses) {
  std::vector<Duration> receipts;
  std::vector<Duration> controls;
  for (const LinkResponse& response : responses) {
    if (response.receipts) receipts.push_back(*response.receipts);
    controls.push_back(response.control);
  }
  const Duration usual_receipts = Median(std::move(receipts));
  const Duration usual_control = Median(std::move(controls));
  std::vector<OwnerChange> changes;
  for (const LinkResponse& response : responses) {
    Slot& slot = SlotOf(response.member);
    const bool turns = slot.slow_link ? TurnsQuick(response, usual_control, &slot)
                                      : TurnsSlow(response, usual_receipts, usual_control, &slot);
    if (!turns) continue;
    slot.slow_link = !slot.slow_link;
    slot.late_rounds = slot.prompt_rounds = 0;
    changes.push_back({response.member.worker, !slot.slow_link});
  }
  return changes;
}

// Late receipts may be the contributors' fault; with late control messages it is this link.
bool OwnerWeights::TurnsSlow(const LinkResponse& response, Duration usual_receipts,
                             Duration usual_control, Slot* slot) {
  if (response.delivered) {
    const Duration took = *response.delivery;
    slot->delivery =
        slot->delivery == Duration{} ? took : slot->delivery + (took - slot->delivery) / 4;
  }
  if (!response.receipts) return false;
  if (*response.receipts > 4 * usual_receipts + kReceiptNoise &&
      response.control > 4 * usual_control + kNoise) {
    ++slot->late_rounds;
  } else if (slot->late_rounds > 0) {
    --slot->late_rounds;
  }
  if (slot->late_rounds < kLateRounds) return false;
  // Half of the time that it took while the link carried an owner's traffic is the mark for being
  // quick again.
  slot->delivery_when_slow = slot->delivery;
  ++slot->times_slow;
  return true;
}

// While it owns nothing there are no receipts of it to judge by: its own delivery is what tells.
bool OwnerWeights::TurnsQuick(const LinkResponse& response, Duration usual_control, Slot* slot) {
  if (response.control > 2 * usual_control + kNoise ||
      (response.delivery && 2 * *response.delivery > slot->delivery_when_slow)) {
    slot->prompt_rounds = 0;
  } else if (response.delivered) {
    ++slot->prompt_rounds;
  }
  LOCKSTEP_CHECK(slot->times_slow > 0, "a link is quick again that never was slow");
  return slot->prompt_rounds >= kPromptRounds << std::min(slot->times_slow - 1, kMostDoublings);
}

void OwnerWeights::CheckInvariants() const {
  for (const Slot& slot : slots_) {
    LOCKSTEP_CHECK(slot.slow_rounds == 0 || slot.quick_rounds == 0,
                   "an owner is slow in {} rounds and quick in {}, in a row", slot.slow_rounds,
                   slot.quick_rounds);
    LOCKSTEP_CHECK(slot.slow_link ? slot.late_rounds == 0 : slot.prompt_rounds == 0,
                   "a link is late in {} rounds and prompt in {}", slot.late_rounds,
                   slot.prompt_rounds);
    LOCKSTEP_CHECK(!slot.slow_link || slot.times_slow > 0, "a link is slow that never became it");
  }
}

// All those with the fewest faults own, not the best one: the more owners, the less each one sums
// and sends. A map in which all weights are halved equals one in which none is, and is written as
// the latter. So the weights of a map are comparable only within it.
OwnerMap OwnerWeights::Choose(std::uint32_t version, std::span<const MemberId> candidates,
                              const Members& members) const {
  LOCKSTEP_CHECK(!candidates.empty(), "nobody can own anything");
  const auto slow_link = [this](const MemberId& id) {
    const Slot& slot = slots_[id.worker.value];
    return slot.slow_link && slot.incarnation == id.incarnation;
  };
  // The worst first: over a broken edge nothing comes at all, and from who failed again and again
  // as an owner nothing came.
  const auto faults = [&](const MemberId& id) {
    const OwnerTrial& trial = members.at(id.worker).owner_trial;
    const std::uint32_t repeated = trial.failures() > 1 ? trial.failures() - 1 : 0;
    return members.BrokenEdges(id.worker) * 4 + (trial.on() ? 2 + 8 * repeated : 0) +
           (slow_link(id) ? 1 : 0);
  };
  std::uint32_t fewest = ~0u;
  for (const MemberId& id : candidates) fewest = std::min(fewest, faults(id));
  OwnerMap map{version, {}};
  bool any_full = false;
  for (const MemberId& id : candidates) {
    if (faults(id) != fewest) continue;
    const Slot& slot = slots_[id.worker.value];
    LOCKSTEP_CHECK(map.owners.empty() || map.owners.back().owner < id,
                   "owners are not ascending at worker {}", id.worker);
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
