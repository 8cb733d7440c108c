#include "worker/core/interval_set.h"

#include <algorithm>

namespace lockstep::worker {

namespace {

// First range that ends at or after `position`.
auto FirstReaching(std::vector<FloatRange>& ranges, std::uint64_t position) {
  return std::lower_bound(ranges.begin(), ranges.end(), position,
                          [](const FloatRange& r, std::uint64_t p) { return r.end() < p; });
}

}  // namespace

void IntervalSet::Add(FloatRange range) {
  if (range.count == 0) return;
  const auto begin = FirstReaching(ranges_, range.first);
  auto end = begin;
  std::uint64_t first = range.first;
  std::uint64_t last = range.end();
  for (; end != ranges_.end() && end->first <= last; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->end());
  }
  const auto at = ranges_.erase(begin, end);
  ranges_.insert(at, FloatRange{first, last - first});
}

void IntervalSet::Remove(FloatRange range) {
  if (range.count == 0) return;
  std::vector<FloatRange> kept;
  kept.reserve(ranges_.size() + 1);
  for (const FloatRange& r : ranges_) {
    if (r.end() <= range.first || r.first >= range.end()) {
      kept.push_back(r);
      continue;
    }
    if (r.first < range.first) kept.push_back({r.first, range.first - r.first});
    if (r.end() > range.end()) kept.push_back({range.end(), r.end() - range.end()});
  }
  ranges_ = std::move(kept);
}

bool IntervalSet::Contains(FloatRange range) const {
  if (range.count == 0) return true;
  auto at = std::upper_bound(ranges_.begin(), ranges_.end(), range.first,
                             [](std::uint64_t p, const FloatRange& r) { return p < r.first; });
  if (at == ranges_.begin()) return false;
  --at;
  return at->end() >= range.end();
}

std::vector<FloatRange> IntervalSet::Missing(FloatRange range) const {
  std::vector<FloatRange> missing;
  std::uint64_t position = range.first;
  for (const FloatRange& r : ranges_) {
    if (r.end() <= position) continue;
    if (r.first >= range.end()) break;
    if (r.first > position) missing.push_back({position, r.first - position});
    position = r.end();
  }
  if (position < range.end()) missing.push_back({position, range.end() - position});
  return missing;
}

std::uint64_t IntervalSet::Total() const {
  std::uint64_t total = 0;
  for (const FloatRange& r : ranges_) total += r.count;
  return total;
}

}  // namespace lockstep::worker
