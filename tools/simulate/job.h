// Runs one simulated job into a run directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "coordinator/core/coordinator.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {

struct JobOutcome {
  coordinator::JobResult result;
  std::uint64_t events = 0;  // events in the simulation
  std::uint64_t coordinator_steps = 0;
  double coordinator_seconds = 0;  // real time spent in them
  double seconds = 0;              // real time spent in all
};

using OnRound = std::function<Status(const coordinator::RoundRecord&)>;

// The error with which the coordinator refuses the config of the options, before anything is
// written.
Status CheckStart(const SimulateOptions& options);

// Runs the job that the options describe; each closed round is handed to `on_round`. Errors: a
// config that cannot work (kInvalid), a job that stands still (kTimeout), a broken invariant
// (kClosed), and errors of `on_round`.
Result<JobOutcome> SimulateJob(const SimulateOptions& options, ComputeModel* compute,
                               const OnRound& on_round);

// The same with the compute model of the options, into options.run_dir.
Result<JobOutcome> SimulateIntoRunDirectory(const SimulateOptions& options);

}  // namespace lockstep::simulate
