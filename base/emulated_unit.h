// The samples of a unit that takes emulate.unit_time.
#pragma once

#include <cstdint>

#include "base/job_config.h"

namespace lockstep {

// With job.units = auto, the time belongs to a unit of so many samples, a quarter of an equal
// share; other units take time in proportion. So a round takes as long under all policies, however
// finely they cut it. Otherwise the result is 0: each unit takes that time.
inline double EmulatedUnitSamples(const JobConfig& config, std::uint32_t workers) {
  if (config.job.units > 0 || workers == 0) return 0;
  return static_cast<double>(config.job.global_batch) / (4.0 * workers);
}

}  // namespace lockstep
