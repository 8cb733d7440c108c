// What emulate.unit_time is the time of.
#pragma once

#include <cstdint>

#include "base/job_config.h"

namespace lockstep {

// Where job.units is auto, a unit of so many samples, a quarter of an equal share; others take time
// in proportion. So a round takes as long under all policies, however finely they have it cut.
// Else 0: each unit takes it.
inline double EmulatedUnitSamples(const JobConfig& config, std::uint32_t workers) {
  if (config.job.units > 0 || workers == 0) return 0;
  return static_cast<double>(config.job.global_batch) / (4.0 * workers);
}

}  // namespace lockstep
