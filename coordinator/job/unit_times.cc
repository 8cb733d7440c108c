#include "coordinator/job/unit_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace lockstep::coordinator {

void UnitTimes::Add(Duration unit) {
  const auto [low, high] = std::minmax({before_, unit});
  if (parts_ == 0) {
    mean = unit;
  } else {
    mean = parts_ == 1 ? (low + high) / 2 : std::clamp(before_that_, low, high);
    // Weight 1/4, as TCP's round-trip estimator has it (RFC 6298).
    deviation += (std::chrono::abs(unit - mean) - deviation) / 4;
  }
  before_that_ = std::exchange(before_, unit);
  parts_ = std::min(parts_ + 1, 2);
}

void UnitTimes::AddLongest(Duration unit) {
  longest_[next_longest_] = unit;
  next_longest_ = (next_longest_ + 1) % longest_.size();
}

Duration UnitTimes::Longest() const { return std::ranges::max(longest_); }

// In a part whose units take b beside their runs, those of a run of r take y = b (1 + c x), x = 1 /
// r, and c is the unknown. By least squares y - mean y = b c (x - mean x), where b = mean y / (1 +
// c mean x), so c = xy / (xx - mean x * xy). The sums are added up over parts: a worker may be
// slower in one part than in another, and that makes all of the part slower. Parts weigh by how
// much their runs differ in length; where they hardly do, noise is all that is seen.
//
// Runs of one length count with their median: a thread that waits for its processor makes a few
// runs many times as long.
void RunCost::Add(std::span<const Run> runs) {
  constexpr double kEnough = 32;  // about as many parts of runs of all lengths
  struct Length {
    double units;  // of all its runs
    double x;
    double unit_seconds;
  };
  std::map<std::uint64_t, std::vector<double>> by_length;
  for (const Run& run : runs) {
    if (run.units == 0) continue;
    by_length[run.units].push_back(Seconds(run.took) / static_cast<double>(run.units));
  }
  std::vector<Length> lengths;
  double units = 0;
  double x_mean = 0;
  double y_mean = 0;
  for (auto& [of_run, unit_seconds] : by_length) {
    const auto middle = unit_seconds.begin() + (std::ssize(unit_seconds) - 1) / 2;
    std::nth_element(unit_seconds.begin(), middle, unit_seconds.end());
    const auto count = static_cast<double>(unit_seconds.size());
    const auto length = static_cast<double>(of_run);
    lengths.push_back({count * length, 1 / length, *middle});
    units += count * length;
    x_mean += count;
    y_mean += count * length * *middle;
  }
  if (y_mean <= 0) return;
  x_mean /= units;
  y_mean /= units;
  double xx = 0;
  double xy = 0;
  double yy = 0;
  for (const Length& length : lengths) {
    const double y = length.unit_seconds / y_mean - 1;
    xx += length.units * (length.x - x_mean) * (length.x - x_mean);
    xy += length.units * (length.x - x_mean) * y;
    yy += length.units * y * y;
  }
  const double kept = xx_ + xx <= kEnough ? 1 : xx < kEnough ? (kEnough - xx) / xx_ : 0;
  xx_ = xx_ * kept + xx;
  xy_ = xy_ * kept + xy;
  yy_ = yy_ * kept + yy;
  free_ = free_ * kept + static_cast<double>(lengths.size() - 1);
  mean_xy_ = mean_xy_ * kept + x_mean * xy;
}

// The error is the slope's: the variance of a unit's time, as far as the runs' lengths do not
// explain it, over xx. Where runs cost nearly all of the time, a slope that is well known makes a
// cost that is not, so costs are compared by their slopes.
std::optional<RunCost::Estimate> RunCost::estimate() const {
  // A part of four units in runs of 2, 1 and 1 is worth 0.25, one of 16 in runs of 8 to 1 is 1.3. A
  // worker that never shows more than that, because it has few units, takes the others' cost.
  constexpr double kTellsNothing = 0.5;
  constexpr double kLeastUnit = 0.05;  // of the time: the cost is all but never all
  // As if that much had shown that runs cost nothing: a few units that were slow by themselves must
  // not make the others look as if they took no time.
  constexpr double kDoubt = 0.1;
  if (xx_ < kTellsNothing) return std::nullopt;
  Estimate estimate;
  estimate.units = xy_ / (std::max(xx_ - mean_xy_, kLeastUnit * xx_) + kDoubt);
  estimate.slope = xy_ / xx_;
  estimate.mean_x = xy_ == 0 ? 1 : mean_xy_ / xy_;
  // About the quantiles of Student's distribution that one in twenty and one in ten thousand
  // exceed. Two parts may lie on a line by chance.
  const double left = std::max(free_ - 1, 1.0);
  const double variance = std::max(yy_ - xy_ * xy_ / xx_, 0.0) / left;
  const double deviation = std::sqrt(variance / xx_);
  estimate.error = (2 + 10 / (left * left)) * deviation;
  constexpr double kFew = 3;
  estimate.surely =
      left < kFew ? std::numeric_limits<double>::infinity() : (4 + 180 / (left * left)) * deviation;
  return estimate;
}

double RunCost::Estimate::Likely() const {
  const double chance = (error / 2) * (error / 2);
  return slope == 0 ? 0 : units * slope * slope / (slope * slope + chance);
}

bool RunCost::Estimate::DiffersFrom(double usual) const {
  constexpr double kLeastPart = 0.05;
  return std::abs(slope - usual / std::max(1 + usual * mean_x, kLeastPart)) > surely;
}

}  // namespace lockstep::coordinator
