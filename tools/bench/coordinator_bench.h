// How many rounds the coordinator drives, and what a round costs it.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// Prints the table, writes the JSON.
Status RunCoordinatorBench(const CoordinatorBenchOptions& options, Signals& signals);

}  // namespace lockstep::bench
