// A set of positions as disjoint, merged, half-open ranges.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/messages.h"

namespace lockstep::coordinator {

class IntervalSet {
 public:
  // False, and nothing changes, when some position of `range` is in the set already.
  [[nodiscard]] bool Add(SampleRange range);
  // Removes and returns up to `limit` positions from the lowest range.
  SampleRange TakeFront(std::uint64_t limit);

  bool empty() const { return ranges_.empty(); }
  std::uint64_t positions() const { return positions_; }
  std::size_t fragments() const { return ranges_.size(); }
  bool Covers(SampleRange range) const;
  bool Intersects(SampleRange range) const;
  std::vector<SampleRange> Ranges() const;                   // ascending
  std::vector<SampleRange> Within(SampleRange range) const;  // the same, clipped to `range`
  bool operator==(const IntervalSet&) const = default;

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // from -> to
  std::uint64_t positions_ = 0;
};

}  // namespace lockstep::coordinator
