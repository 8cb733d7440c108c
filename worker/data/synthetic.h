// A synthetic data set: each class has a random pattern, and each sample is its class's pattern
// with noise. Every model learns it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {

// It has the same bytes on every machine for the same seed and sizes. A square number of features
// makes square images.
Result<std::unique_ptr<Dataset>> MakeSynthetic(const DataSection& config, std::uint64_t seed);

}  // namespace lockstep::worker
