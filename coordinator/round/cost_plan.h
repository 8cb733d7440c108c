// Shares the units of a round out by their costs. The dearest goes first, each to the worker that
// is done with it soonest (Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on
// Applied Mathematics 17(2), 1969: longest processing time first).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::coordinator {

// Returns for each worker the positions of its units in `costs`, by falling cost, so that what is
// taken from the end of its queue is cheap. `shares`: the number of usual units that the work rule
// gives each of them, by which their speeds are known; none for a worker: it gets nothing.
// Positions below `bound` go only to workers with `trusted`, if there are any.
std::vector<std::vector<std::uint32_t>> ShareByCost(std::span<const float> costs,
                                                    std::span<const std::uint32_t> shares,
                                                    std::uint32_t bound,
                                                    const std::vector<bool>& trusted);

}  // namespace lockstep::coordinator
