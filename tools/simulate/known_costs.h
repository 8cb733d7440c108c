// The costs that simulated programs say of their samples (msg::Costs): the same for all workers of
// a job.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "base/ids.h"
#include "worker/core/step_io.h"

namespace lockstep::simulate {

class KnownCosts {
 public:
  // `cost`: of the sample at a position of an epoch; none below 0, and one above it.
  KnownCosts(std::uint64_t epoch_samples, std::function<double(Epoch, std::uint64_t)> cost)
      : epoch_samples_(epoch_samples), cost_(std::move(cost)) {}

  const worker::event::CostsGiven& Of(Epoch epoch);

 private:
  const std::uint64_t epoch_samples_;
  const std::function<double(Epoch, std::uint64_t)> cost_;
  std::deque<worker::event::CostsGiven> made_;  // the last ones
};

}  // namespace lockstep::simulate
