// Applies a job's rule to parameter groups: one optimizer with separate settings for each run of
// parameters.
#pragma once

#include <memory>
#include <string>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/parameter_group.h"

namespace lockstep::worker {

// A digest of the settings that must be equal on all workers, for people; empty without groups.
std::string DigestOfGroups(const ParameterGroups& groups);

// Makes `config` for all of them, each with its own settings; without groups it is
// MakeOptimizer(config). A momentum of 0 has no state, so either all have one or none has. Errors
// name the defect.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSection& config,
                                                 const ParameterGroups& groups);

}  // namespace lockstep::worker
