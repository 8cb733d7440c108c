// How long a worker's units take, and what its runs cost beside them, out of the times of its
// parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/time.h"

namespace lockstep::coordinator {

// A worker's usual time for one unit and its spread: the median of its last three parts, and the
// exponentially weighted distance from it. Each part tells once, however many units it has: those
// of a run share its fate. Where workers share processors, a thread sometimes waits for one as long
// as many units take; in a part of few units that makes slow ones. A mean that follows makes the
// share smaller still, where the next wait weighs more, and it stays small.
class UnitTimes {
 public:
  // The mean time of a part's units, without what their runs have cost.
  void Add(Duration unit);
  // The longest time of a unit of a part.
  void AddLongest(Duration unit);
  Duration Longest() const;  // of the last sixteen parts; zero: nothing is known

  Duration mean{};  // zero: nothing is known
  Duration deviation{};
  bool beside_cost = false;  // what a run costs was known, and is not in them

 private:
  int parts_ = 0;  // that are known; 2: or more
  Duration before_{};
  Duration before_that_{};
  std::array<Duration, 16> longest_{};
  std::size_t next_longest_ = 0;
};

// The time of a run beside its units, in unit times. Because of it the units of a short run seem
// longer than those of a long one. Old samples weigh less and less as new parts come in.
class RunCost {
 public:
  struct Run {
    std::uint64_t units = 0;
    Duration took{};
  };
  // The runs of a part. Runs of equal length tell nothing.
  void Add(std::span<const Run> runs);
  struct Estimate {
    double units = 0;  // below zero where noise says so
    // Of the line that shows the cost, and how far off that may be by chance, because units take
    // different times: once in twenty times, and once in ten thousand.
    double slope = 0;
    double error = 0;
    double surely = 0;
    double mean_x = 0;                     // of the runs: 1 over their length
    double Likely() const;                 // the nearer to zero the more it may be by chance
    bool DiffersFrom(double usual) const;  // by more than chance makes of one of many
  };
  std::optional<Estimate> estimate() const;

 private:
  // Sums over units, of deviations from the means of their part: x is 1 / the units of the unit's
  // run, y its time over the part's mean.
  double xx_ = 0;
  double xy_ = 0;
  double yy_ = 0;
  double free_ = 0;     // lengths of runs beside the first one of each part
  double mean_xy_ = 0;  // xy times the part's mean of x
};

}  // namespace lockstep::coordinator
