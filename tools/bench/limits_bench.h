// What the memory and the loopback device of this machine allow an exchange at best.
#pragma once

#include "base/result.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

Status RunLimitsBench(const LimitsBenchOptions& options, Signals& signals);

}  // namespace lockstep::bench
