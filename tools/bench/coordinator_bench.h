// Measures how many rounds the coordinator drives, and the cost of a round for it.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// Prints the table and writes the JSON.
Status RunCoordinatorBench(const CoordinatorBenchOptions& options, Signals& signals);

}  // namespace lockstep::bench
