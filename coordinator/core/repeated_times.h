// Finds out whether unit times belong to the data: whether the samples that took long in one epoch
// take long in the next one too, whoever computes them. A slow machine and a busy one do not do
// that.
//
// At an epoch's end each run has a relative time: its time for a sample over the worker's mean in
// this epoch. Each sample is marked with the mean relative time of the runs that it was in, one in
// each epoch. The mean mark of a run's samples predicts its time. With n samples in a run, of
// unequal costs, the correlation of the two is about 1/sqrt(n), so some hundred runs show it. The
// order of samples is not known here. Two are tried, the shuffled one (base/permutation.h) and the
// same one in all epochs; with another order nothing is ever found.
//
// Pure: closed rounds in, a verdict out. A round costs O(its runs), the first one of an epoch
// O(samples of an epoch).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

class RepeatedTimes {
 public:
  // Of an epoch; nothing is found out about a larger one. The memory is at most 52 bytes for each.
  static constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 20;

  struct Verdict {
    double correlation = 0;  // of the times of runs with those of their samples before
    std::uint64_t runs = 0;  // that were compared
    double spread = 0;       // standard deviation of the relative times of runs
  };

  explicit RepeatedTimes(std::uint64_t seed) : seed_(seed) {}

  // Takes a closed round of a job whose epochs have so many samples. Returns the verdict that times
  // belong to the data, once.
  std::optional<Verdict> OnClosed(const RoundRecord& record, std::uint64_t epoch_samples);
  bool found() const { return found_; }

 private:
  struct TimedRun {
    SampleRange range;
    double relative = 0;  // at first the seconds of a sample
    std::uint32_t group = 0;
    RoundId round;
  };
  // One possible order, with the marks of the samples by it.
  struct Order {
    std::vector<float> marks;  // by sample; 0: not seen
    // Sums over runs of the product and the squares of deviations from 1, each with the weight n,
    // since the variance of both falls as 1/n.
    double products = 0;
    double marked = 0;
    double timed = 0;
    std::uint64_t runs = 0;
  };
  void EndEpoch(std::uint64_t epoch_samples);
  void MakeRelative();
  void Compare(const TimedRun& run, const std::vector<std::uint32_t>* shuffled, Order* order) const;
  std::optional<Verdict> Judge() const;

  std::uint64_t seed_;
  Epoch epoch_;
  std::vector<TimedRun> runs_;  // of this epoch
  std::array<Order, 2> orders_;
  std::uint32_t epochs_ = 0;  // that have ended
  std::uint64_t times_ = 0;   // runs of all epochs, and the squares of their deviations
  double squares_ = 0;
  bool found_ = false;
};

}  // namespace lockstep::coordinator
