// A job's rule over parameter groups: one optimizer that has, for each run of parameters, that
// run's own settings.
#pragma once

#include <memory>
#include <string>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/parameter_group.h"

namespace lockstep::worker {

// What must be the same on all workers, for people; empty without groups.
std::string DigestOfGroups(const ParameterGroups& groups);

// `config` for all of them, each with its own settings; without groups as MakeOptimizer(config). A
// momentum of 0 has no state, so either all have one or none has. Errors name what is wrong.
Result<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSection& config,
                                                 const ParameterGroups& groups);

}  // namespace lockstep::worker
