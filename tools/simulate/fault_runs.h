// Runs many small jobs with faults, each in a process of its own, so that one that ends in a check
// does not end the others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "tools/simulate/fault_job.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {

// Returns an error when their policy is not valid for so many workers.
Status CheckFaultJobs(const SimulateOptions& options);

// Runs the seeds of the options and prints the results. For the first seed that fails it prints the
// reason and the command that runs it again. With --shrink it adds the fewest faults that cause it
// and a history. Meanwhile it says on standard error how many have run. After SIGINT or SIGTERM it
// prints the results so far.
enum class SeedsEnd : std::uint8_t { kAllPassed, kOneFailed, kInterrupted };
SeedsEnd RunFaultSeeds(const SimulateOptions& options);

// The job of one seed, by the options.
FaultJob FaultJobOf(const SimulateOptions& options, std::uint64_t seed);

// Takes away faults as long as `fails` stays true for the rest (Zeller and Hildebrandt's ddmin,
// 2002): first many at a time, in the end each one alone.
std::vector<Fault> ShrinkFaults(std::vector<Fault> faults,
                                const std::function<bool(const std::vector<Fault>&)>& fails);

}  // namespace lockstep::simulate
