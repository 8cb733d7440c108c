// A made-up data set: for each class a random pattern, each sample its class's pattern under noise.
// Every model learns it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {

// The same bytes on every machine for the same seed and sizes. A square number of features makes
// square images.
Result<std::unique_ptr<Dataset>> MakeSynthetic(const DataSection& config, std::uint64_t seed);

}  // namespace lockstep::worker
