// The words of a worker about an audited unit's gradient (msg::Audited).
#pragma once

#include <cstdint>
#include <string>

#include "worker/core/step_io.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// One pass over all values, on the calling thread. On a device they are copied to the host, some
// megabytes at a time.
event::AuditedGradient AuditGradient(ExchangeMemory& memory, const float* gradient,
                                     std::uint64_t count);

// For msg::Audited::arithmetic: `device` as in SessionOptions, the processor's name where that is
// "cpu", and how many processors this process may use.
std::string ArithmeticOf(const std::string& device);

}  // namespace lockstep::worker
