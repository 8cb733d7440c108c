// A run of units while it is computed: its units one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/random.h"
#include "base/time.h"
#include "tools/simulate/compute_model.h"
#include "worker/core/unit_queue.h"

namespace lockstep::simulate {

// The count of the positions of a range in a job with weights other than samples: from 0 to 4 each,
// in whatever unit they are.
std::uint64_t DivisorOf(const SampleRange& range);

class ComputedRun {
 public:
  // The run that was taken begins now.
  ComputedRun(const worker::UnitQueue& queue, const worker::UnitQueue::Take& take, WorkerId worker,
              RoundId round, Epoch epoch, Time now, ComputeModel* compute, RandomStream& random);

  Time start() const { return began_; }
  Time end() const { return ends_.back(); }
  const std::vector<Unit>& units() const { return units_; }
  std::uint64_t samples() const;
  std::uint64_t divisor() const;  // DivisorOf its units
  // When the worker leaves the run, if it becomes void now.
  std::optional<Time> LetsGo(Time now) const;
  // The timings of its units when it ends now, perhaps early.
  std::vector<UnitTiming> Timings(Time now) const;

 private:
  Time Began(std::size_t unit) const { return unit == 0 ? began_ : ends_[unit - 1]; }

  WorkerId worker_;
  RoundId round_;
  const ComputeModel* compute_;
  Time began_;
  std::vector<Unit> units_;  // at least one
  std::vector<Time> ends_;   // end of each unit
};

}  // namespace lockstep::simulate
