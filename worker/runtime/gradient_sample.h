// How large a gradient is, by some of its values: what the coordinator compares between workers to
// find one whose gradients are wrong.
//
// A pass over all of a gradient would be as long as its sum is; 64 pieces of 4 KiB tell nearly as
// much and cost some microseconds. They lie evenly over all layers, so that no layer is missed, and
// elsewhere in each round, so that no part of a layer is. All workers look at the same places in a
// round: what differs between them is their values.
#pragma once

#include <cstdint>
#include <optional>

#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// The sum of squares of the values that are looked at in this round, in double precision; nullopt:
// one of them is infinite or not a number. On a device fewer pieces are looked at: each is a copy.
std::optional<double> SampledSquares(ExchangeMemory& memory, const float* gradient,
                                     std::uint64_t count, std::uint64_t round);

}  // namespace lockstep::worker
