// The models in double precision, by plain loops: what the real ones are compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/batch.h"
#include "worker/models/model.h"

namespace lockstep::worker::reference {

struct Outcome {
  double loss_sum = 0;
  std::uint64_t correct = 0;
};

// `training`: with dropout.
Outcome Loss(const ModelSpec& spec, const std::vector<double>& parameters, const Batch& batch,
             bool training);

}  // namespace lockstep::worker::reference
