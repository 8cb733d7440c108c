// Measures how long n workers take to sum their gradients, without any computation.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

// Prints the table and writes the JSON.
Status RunExchangeBench(const ExchangeBenchOptions& options, Signals& signals);

}  // namespace lockstep::bench
