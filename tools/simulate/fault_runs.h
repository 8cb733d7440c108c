// Many small jobs with faults, each in a process of its own, so that one that ends in a check does
// not end the others.
#pragma once

#include "base/result.h"
#include "tools/simulate/fault_job.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {

// An error: their policy is none for so many workers.
Status CheckFaultJobs(const SimulateOptions& options);

// Runs the seeds of the options and prints what came of them: of the first that fails the reason,
// the command that runs it again and, with --shrink, the fewest faults that it takes and what
// happened. False: one has failed.
bool RunFaultSeeds(const SimulateOptions& options);

// The job of one seed, as the options have it.
FaultJob FaultJobOf(const SimulateOptions& options, std::uint64_t seed);

// Takes away faults as long as the rest still makes `fails` true (Zeller and Hildebrandt's ddmin,
// 2002): first many at a time, in the end each one alone.
std::vector<Fault> ShrinkFaults(std::vector<Fault> faults,
                                const std::function<bool(const std::vector<Fault>&)>& fails);

}  // namespace lockstep::simulate
