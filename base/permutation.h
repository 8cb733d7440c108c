// The epoch's sample order: it maps a position to a sample index, by the job's seed. Coordinator
// and plans speak of positions only; each worker turns positions into samples by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace lockstep {

// A uniform permutation of 0 .. size-1 (Fisher-Yates over a counter-based generator), the same on
// every machine.
std::vector<std::uint32_t> EpochOrder(std::uint64_t seed, Epoch epoch, std::uint32_t size);

}  // namespace lockstep
