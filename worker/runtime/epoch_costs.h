// The costs of samples that the program says, in the form in which the core tells them on
// (event::CostsGiven). The compute thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "worker/core/step_io.h"

namespace lockstep::worker {

// Errors: there are not so many as samples, one is below 0 or no number, or all are 0.
Status CheckCosts(std::span<const float> costs, std::uint64_t samples);

class EpochCosts {
 public:
  // `by_sample`: of JobDescription; empty: the program may tell each epoch's by itself.
  // `exact`: runs are bounded by them. `told` gets what is new.
  EpochCosts(std::vector<float> by_sample, std::uint64_t seed, bool exact,
             std::function<void(event::CostsGiven)> told)
      : by_sample_(std::move(by_sample)), seed_(seed), exact_(exact), told_(std::move(told)) {}

  // Work of this epoch has come, whose order of samples this is. Tells also of the next one.
  void OnEpoch(Epoch epoch, std::span<const std::uint32_t> order);
  // By position; the program's own order.
  void Tell(Epoch epoch, std::span<const float> costs);
  // Another core knows nothing yet.
  void TellAgain() const;

 private:
  void TellInOrder(Epoch epoch, std::span<const std::uint32_t> order);

  const std::vector<float> by_sample_;
  const std::uint64_t seed_;
  const bool exact_;
  const std::function<void(event::CostsGiven)> told_;
  std::deque<event::CostsGiven> kept_;  // the last two epochs
  Epoch next_;                          // the first that was not told by sample
};

}  // namespace lockstep::worker
