// Measures the limits that the memory and the loopback device of this machine set for an exchange.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

Status RunLimitsBench(const LimitsBenchOptions& options, Signals& signals);

}  // namespace lockstep::bench
