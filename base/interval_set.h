// A set of positions, kept as the fewest half-open ranges: for instance the counted samples, or the
// floats of a vector that have arrived. `Range` is the caller's type of positions (SampleRange of
// base/messages.h, FloatRange of worker/layout/layout.h), so that samples and floats do not mix.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/messages.h"

namespace lockstep {

template <class Range>
concept PositionRange = requires(const Range range, std::uint64_t position) {
  { range.begin() } -> std::convertible_to<std::uint64_t>;
  { range.end() } -> std::convertible_to<std::uint64_t>;
  { Range::Between(position, position) } -> std::same_as<Range>;
};

// Invariant: the ranges ascend, none is empty, and between two of them lies a position that is not
// in the set. The ranges lie in a vector: positions mostly come in order, and there are few gaps at
// a time.
template <PositionRange Range>
class RangeSet {
 public:
  // Adds positions that must be new. It returns false and changes nothing when one of them is in
  // the set already.
  [[nodiscard]] bool Add(Range range) {
    if (Intersects(range)) return false;
    Merge(range);
    return true;
  }
  // Adds positions of which some may be in the set.
  void Merge(Range range);
  void Remove(Range range);
  // Removes and returns up to `limit` positions from the lowest range.
  Range TakeFront(std::uint64_t limit);

  bool empty() const { return ranges_.empty(); }
  std::uint64_t positions() const;
  std::size_t fragments() const { return ranges_.size(); }
  bool Covers(Range range) const;
  bool Intersects(Range range) const;
  const std::vector<Range>& Ranges() const { return ranges_; }
  // The parts of `range` that are in the set, and those that are not, each ascending.
  std::vector<Range> Within(Range range) const;
  std::vector<Range> Missing(Range range) const;
  bool operator==(const RangeSet&) const = default;

 private:
  static bool Empty(const Range& range) { return range.begin() >= range.end(); }
  // The first range of `ranges` that ends behind `position`, or, where `touching`, at it.
  static auto FirstBehind(auto& ranges, std::uint64_t position, bool touching = false) {
    return std::partition_point(ranges.begin(), ranges.end(), [&](const Range& r) {
      return touching ? r.end() < position : r.end() <= position;
    });
  }

  std::vector<Range> ranges_;
};

using IntervalSet = RangeSet<SampleRange>;

template <PositionRange Range>
void RangeSet<Range>::Merge(Range range) {
  if (Empty(range)) return;
  const auto begin = FirstBehind(ranges_, range.begin(), true);
  auto end = begin;
  std::uint64_t first = range.begin();
  std::uint64_t last = range.end();
  for (; end != ranges_.end() && end->begin() <= last; ++end) {
    first = std::min(first, end->begin());
    last = std::max(last, end->end());
  }
  ranges_.insert(ranges_.erase(begin, end), Range::Between(first, last));
}

template <PositionRange Range>
void RangeSet<Range>::Remove(Range range) {
  if (Empty(range)) return;
  std::vector<Range> kept;
  kept.reserve(ranges_.size() + 1);
  for (const Range& r : ranges_) {
    const Range before = Range::Between(r.begin(), std::min(r.end(), range.begin()));
    const Range behind = Range::Between(std::max(r.begin(), range.end()), r.end());
    if (r.begin() < range.begin()) kept.push_back(before);
    if (r.end() > range.end()) kept.push_back(behind);
  }
  ranges_ = std::move(kept);
}

template <PositionRange Range>
Range RangeSet<Range>::TakeFront(std::uint64_t limit) {
  LOCKSTEP_CHECK(!ranges_.empty() && limit > 0, "nothing to take");
  const std::uint64_t from = ranges_.front().begin();
  const std::uint64_t end = ranges_.front().end();
  const std::uint64_t to = from + std::min(limit, end - from);
  if (to < end) {
    ranges_.front() = Range::Between(to, end);
  } else {
    ranges_.erase(ranges_.begin());
  }
  return Range::Between(from, to);
}

template <PositionRange Range>
std::uint64_t RangeSet<Range>::positions() const {
  std::uint64_t total = 0;
  for (const Range& r : ranges_) total += r.end() - r.begin();
  return total;
}

template <PositionRange Range>
bool RangeSet<Range>::Covers(Range range) const {
  if (Empty(range)) return true;
  const auto at = FirstBehind(ranges_, range.begin());
  return at != ranges_.end() && at->begin() <= range.begin() && at->end() >= range.end();
}

template <PositionRange Range>
bool RangeSet<Range>::Intersects(Range range) const {
  if (Empty(range)) return false;
  const auto at = FirstBehind(ranges_, range.begin());
  return at != ranges_.end() && at->begin() < range.end();
}

template <PositionRange Range>
std::vector<Range> RangeSet<Range>::Within(Range range) const {
  std::vector<Range> inside;
  for (auto at = FirstBehind(ranges_, range.begin());
       at != ranges_.end() && at->begin() < range.end(); ++at) {
    inside.push_back(
        Range::Between(std::max(at->begin(), range.begin()), std::min(at->end(), range.end())));
  }
  return inside;
}

template <PositionRange Range>
std::vector<Range> RangeSet<Range>::Missing(Range range) const {
  std::vector<Range> missing;
  std::uint64_t position = range.begin();
  for (const Range& r : Within(range)) {
    if (r.begin() > position) missing.push_back(Range::Between(position, r.begin()));
    position = r.end();
  }
  if (position < range.end()) missing.push_back(Range::Between(position, range.end()));
  return missing;
}

}  // namespace lockstep
