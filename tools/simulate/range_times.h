// How long each range of samples took in a recorded run. The time may belong to its samples, as
// with sequences of different lengths, or to the worker that computed it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/records.h"

namespace lockstep::simulate {

class RangeTimes {
 public:
  struct Entry {
    SampleRange range;
    WorkerId worker;
    std::uint64_t units = 1;   // of equal times
    double seconds = 0;        // of all of them, without their part of their run's cost
    double start = 0;          // since the first round's start
    double round_seconds = 0;  // of their round, from its start to its commit
  };

  void Add(Epoch epoch, const Entry& entry) { epochs_[epoch].push_back(entry); }
  // Call it when all are added. Of two entries with the same samples it keeps one.
  void Sort();
  // The entries that these samples are of, in order; none if some samples are of no entry.
  std::span<const Entry> Find(Epoch epoch, const SampleRange& range) const;

 private:
  std::map<Epoch, std::vector<Entry>> epochs_;
};

// Whether the times of a run evidently belong to its samples. If so, it returns how long each
// worker takes beside the others; else, nothing. There must be a spread within the shares of
// workers, and three signs that only the samples made it:
// - apart from lasting differences between workers and between rounds, the means of shares differ
//   hardly more than means of units at random;
// - no worker has much more spread than the others;
// - all that is known from at least four rounds in which all workers counted.
// `run_cost`: as in RunTimes.
std::vector<double> WorkerFactorsIfTimesAreOfSamples(
    const std::vector<coordinator::RoundRecord>& records, std::uint32_t workers, double run_cost);

}  // namespace lockstep::simulate
