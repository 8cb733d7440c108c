// Finds the settings of the exchange that are quickest between given workers.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// Prints the table and the lines for the config, and writes the JSON.
Status RunTuneBench(const TuneOptions& options, Signals& signals);

}  // namespace lockstep::bench
