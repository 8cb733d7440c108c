#include "coordinator/round/worker_share.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

// Both ends count positions in this queue: it grows at its end only, and by orders that the worker
// hears in the same sequence.
void WorkerShare::Append(std::uint32_t order, const std::vector<UnitIndex>& units) {
  LOCKSTEP_CHECK(!units.empty() && HasRoom(), "worker {} cannot take units", member.worker);
  LOCKSTEP_CHECK(given.empty() || given.back().order < order,
                 "worker {}: order {} is not above the last one", member.worker, order);
  queue.insert(queue.end(), units.begin(), units.end());
  given.push_back({order, static_cast<std::uint32_t>(units.size())});
}

// The plan is no order that could be refused.
std::optional<std::pair<std::size_t, std::size_t>> WorkerShare::PositionsOf(
    std::uint32_t order) const {
  std::size_t begin = 0;
  for (const GivenUnits& part : given) {
    if (part.order == order && order != 0) return std::pair(begin, begin + part.units);
    begin += part.units;
  }
  return std::nullopt;
}

// Orders whose units are all gone are forgotten, so that a later refusal of them is stale.
std::vector<UnitIndex> WorkerShare::Cut(std::size_t first, std::size_t last) {
  LOCKSTEP_CHECK(first <= last && last <= queue.size(), "units {} to {} of {}", first, last,
                 queue.size());
  const auto from = queue.begin() + static_cast<std::ptrdiff_t>(first);
  const auto to = queue.begin() + static_cast<std::ptrdiff_t>(last);
  std::vector<UnitIndex> units(from, to);
  queue.erase(from, to);
  std::size_t begin = 0;
  for (GivenUnits& part : given) {
    const std::size_t end = begin + part.units;
    const std::size_t cut_from = std::clamp(first, begin, end);
    const std::size_t cut_to = std::clamp(last, begin, end);
    part.units -= static_cast<std::uint32_t>(cut_to - cut_from);
    begin = end;
  }
  std::erase_if(given, [](const GivenUnits& part) { return part.units == 0; });
  return units;
}

// The numbers of its parts stay used: its earlier bytes may still be under way to owners, and must
// not be taken for later parts.
std::uint32_t WorkerShare::Void() {
  const std::uint32_t waited = undelivered();
  for (SealedPart& part : parts) {
    part = SealedPart{};
    part.is_void = true;
  }
  queue.clear();
  given.clear();
  sealed_units = 0;
  refused = false;
  revoke.reset();
  return waited;
}

// Of these the round waits for receipts.
std::uint32_t WorkerShare::undelivered() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      parts, [](const SealedPart& part) { return !part.is_void && !part.delivered_at; }));
}

void WorkerShare::CheckInvariants() const {
  std::size_t units = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    units += given[i].units;
    LOCKSTEP_CHECK(i == 0 || given[i - 1].order < given[i].order,
                   "the orders of worker {} do not ascend", member.worker);
  }
  LOCKSTEP_CHECK(units == queue.size(), "worker {} was given {} units and has {}", member.worker,
                 units, queue.size());
  LOCKSTEP_CHECK(sealed_units <= queue.size(), "I2: worker {} has sealed {} units of {}",
                 member.worker, sealed_units, queue.size());
  LOCKSTEP_CHECK(parts.size() <= kMaxParts, "I7: worker {} has {} parts", member.worker,
                 parts.size());
  for (const SealedPart& part : parts) {
    LOCKSTEP_CHECK(part.is_void == part.units.empty(),
                   "a part of worker {} is void and has units, or neither", member.worker);
    LOCKSTEP_CHECK(!part.is_void || !part.delivered_at, "a void part of worker {} is delivered",
                   member.worker);
  }
}

}  // namespace lockstep::coordinator
