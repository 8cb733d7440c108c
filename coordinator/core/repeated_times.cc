#include "coordinator/core/repeated_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/permutation.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint32_t kEpochs = 16;  // that a mark is a mean of
constexpr std::uint64_t kFewestRuns = 64;
constexpr double kBeyondChance = 5;  // standard deviations of the correlation of noise
constexpr double kSpread = 0.05;     // times that differ by less keep nobody waiting
constexpr double kMostTimes = 10;    // a single stall weighs no more

// A short run has more of a run's own cost in each sample, and the first one of a round more of a
// round's. With the same order in all epochs, the same samples would have that again. So runs are
// compared with those of their worker that are of the same kind.
constexpr std::uint32_t kLengths = 21;  // by powers of two

std::uint32_t GroupOf(const UnitRecord& run, bool first) {
  const auto length = static_cast<std::uint32_t>(std::bit_width(run.range.size())) - 1;
  return 2 * (run.worker.value * kLengths + std::min(length, kLengths - 1)) + (first ? 1 : 0);
}

}  // namespace

std::optional<RepeatedTimes::Verdict> RepeatedTimes::OnClosed(const RoundRecord& record,
                                                              std::uint64_t epoch_samples) {
  if (found_ || epoch_samples > kMostSamples) return std::nullopt;
  std::optional<Verdict> verdict;
  if (record.epoch != epoch_) {
    EndEpoch(epoch_samples);
    epoch_ = record.epoch;
    verdict = Judge();
  }
  if (verdict) {
    found_ = true;
    orders_ = {};
    return verdict;
  }
  std::optional<WorkerId> before;
  for (const UnitRecord& run : record.units) {
    const double seconds = (run.end - run.start) / static_cast<double>(run.range.size());
    const bool first = before != run.worker;
    before = run.worker;
    if (seconds <= 0 || run.range.to > epoch_samples || runs_.size() >= epoch_samples) continue;
    runs_.push_back({run.range, seconds, GroupOf(run, first), record.round});
  }
  return std::nullopt;
}

void RepeatedTimes::EndEpoch(std::uint64_t epoch_samples) {
  ++epochs_;
  MakeRelative();
  for (Order& order : orders_) order.marks.resize(epoch_samples, 0.0F);
  const auto shuffled = EpochOrder(seed_, epoch_, static_cast<std::uint32_t>(epoch_samples));
  for (const TimedRun& run : runs_) {
    ++times_;
    squares_ += (run.relative - 1) * (run.relative - 1);
    Compare(run, &shuffled, &orders_[0]);
    Compare(run, nullptr, &orders_[1]);
  }
  runs_.clear();
}

// Takes out of the times what belongs to a worker, and then what belongs to a round: what slows all
// workers is no sample's.
void RepeatedTimes::MakeRelative() {
  struct Mean {
    double sum = 0;
    double runs = 0;
    double Of(double value) const { return std::min(value * runs / sum, kMostTimes); }
    void Add(double value) {
      sum += value;
      ++runs;
    }
  };
  std::vector<Mean> groups;
  for (const TimedRun& run : runs_) {
    if (groups.size() <= run.group) groups.resize(run.group + 1);
    groups[run.group].Add(run.relative);
  }
  for (TimedRun& run : runs_) run.relative = groups[run.group].Of(run.relative);
  for (auto from = runs_.begin(); from != runs_.end();) {
    const auto to = std::find_if(from, runs_.end(),
                                 [&](const TimedRun& run) { return run.round != from->round; });
    Mean round;
    std::for_each(from, to, [&](const TimedRun& run) { round.Add(run.relative); });
    std::for_each(from, to, [&](TimedRun& run) { run.relative = round.Of(run.relative); });
    from = to;
  }
}

void RepeatedTimes::Compare(const TimedRun& run, const std::vector<std::uint32_t>* shuffled,
                            Order* order) const {
  const auto samples = static_cast<double>(run.range.size());
  const auto relative = static_cast<float>(run.relative);
  const float weight = 1 / static_cast<float>(std::min(epochs_, kEpochs));
  double sum = 0;
  bool all = true;
  for (std::uint64_t at = run.range.from; at < run.range.to; ++at) {
    float& mark = order->marks[shuffled != nullptr ? (*shuffled)[at] : at];
    all = all && mark > 0;
    sum += mark;
    mark = mark > 0 ? mark + (relative - mark) * weight : relative;
  }
  if (!all) return;
  const double marked = sum / samples - 1;
  const double timed = run.relative - 1;
  order->products += samples * marked * timed;
  order->marked += samples * marked * marked;
  order->timed += samples * timed * timed;
  ++order->runs;
}

std::optional<RepeatedTimes::Verdict> RepeatedTimes::Judge() const {
  const double spread = times_ > 0 ? std::sqrt(squares_ / static_cast<double>(times_)) : 0;
  if (spread < kSpread) return std::nullopt;
  for (const Order& order : orders_) {
    if (order.runs < kFewestRuns || order.marked <= 0 || order.timed <= 0) continue;
    const double correlation = order.products / std::sqrt(order.marked * order.timed);
    if (correlation * std::sqrt(static_cast<double>(order.runs)) < kBeyondChance) continue;
    return Verdict{correlation, order.runs, spread};
  }
  return std::nullopt;
}

}  // namespace lockstep::coordinator
