// Ranges of positions in the flat parameter vector, and sets of them.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::worker {

// [first, first + count), in floats.
struct FloatRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t end() const { return first + count; }
  auto operator<=>(const FloatRange&) const = default;
};

// A set of positions, kept as the fewest ranges: which part of a vector has arrived, or was asked
// for.
class IntervalSet {
 public:
  void Add(FloatRange range);
  void Remove(FloatRange range);
  void Clear() { ranges_.clear(); }
  bool empty() const { return ranges_.empty(); }
  bool Contains(FloatRange range) const;
  // What of `range` is not in the set, ascending.
  std::vector<FloatRange> Missing(FloatRange range) const;
  std::uint64_t Total() const;
  // Ascending, neither touching nor overlapping.
  const std::vector<FloatRange>& ranges() const { return ranges_; }
  bool operator==(const IntervalSet&) const = default;

 private:
  std::vector<FloatRange> ranges_;
};

}  // namespace lockstep::worker
