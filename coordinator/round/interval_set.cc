#include "coordinator/round/interval_set.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lockstep::coordinator {

bool IntervalSet::Intersects(SampleRange range) const {
  if (range.from >= range.to) return false;
  auto next = ranges_.lower_bound(range.from);
  if (next != ranges_.end() && next->first < range.to) return true;
  return next != ranges_.begin() && std::prev(next)->second > range.from;
}

bool IntervalSet::Covers(SampleRange range) const {
  if (range.from >= range.to) return true;
  auto next = ranges_.upper_bound(range.from);
  return next != ranges_.begin() && std::prev(next)->second >= range.to;
}

bool IntervalSet::Add(SampleRange range) {
  if (range.from >= range.to) return true;
  // Mostly they come in order: behind all that is there.
  if (ranges_.empty() || ranges_.rbegin()->second <= range.from) {
    positions_ += range.size();
    if (!ranges_.empty() && ranges_.rbegin()->second == range.from) {
      ranges_.rbegin()->second = range.to;
    } else {
      ranges_.emplace_hint(ranges_.end(), range.from, range.to);
    }
    return true;
  }
  if (Intersects(range)) return false;
  positions_ += range.size();
  auto next = ranges_.lower_bound(range.from);
  if (next != ranges_.end() && next->first == range.to) {
    range.to = next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin() && std::prev(next)->second == range.from) {
    std::prev(next)->second = range.to;
  } else {
    ranges_.emplace_hint(next, range.from, range.to);
  }
  return true;
}

SampleRange IntervalSet::TakeFront(std::uint64_t limit) {
  LOCKSTEP_CHECK(!ranges_.empty() && limit > 0, "nothing to take");
  const auto first = ranges_.begin();
  const SampleRange taken{first->first, std::min(first->second, first->first + limit)};
  const std::uint64_t end = first->second;
  ranges_.erase(first);
  if (taken.to < end) ranges_.emplace(taken.to, end);
  positions_ -= taken.size();
  return taken;
}

std::vector<SampleRange> IntervalSet::Within(SampleRange range) const {
  std::vector<SampleRange> inside;
  auto at = ranges_.upper_bound(range.from);
  if (at != ranges_.begin()) --at;
  for (; at != ranges_.end() && at->first < range.to; ++at) {
    const SampleRange clipped{std::max(at->first, range.from), std::min(at->second, range.to)};
    if (clipped.from < clipped.to) inside.push_back(clipped);
  }
  return inside;
}

std::vector<SampleRange> IntervalSet::Ranges() const {
  std::vector<SampleRange> ranges;
  ranges.reserve(ranges_.size());
  for (const auto& [from, to] : ranges_) ranges.push_back({from, to});
  return ranges;
}

}  // namespace lockstep::coordinator
