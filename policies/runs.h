// Decides how many units a worker computes together.
//
// A run is computed as one batch, which costs less than its units one by one; but none of its units
// can move until it is done. So a worker takes all it has at once where nobody is slow and a run
// costs something. It takes short runs where it is late, or where workers become slow at times
// (guided self-scheduling, Polychronopoulos and Kuck, IEEE Trans. Computers 1987: no more than half
// of what is left, so that single units remain at the end).
//
// Three measurements decide: the cost of a run beside its units; each worker's lateness, with its
// share as one run; and the surprise. The surprise is how much later than before the slowest worker
// is. Lateness is a share of a round in which nobody waits. A run that is a fraction f of a round
// makes it longer by f (lateness + surprise). The rule takes the f with the least sum of this and
// the runs' cost.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

std::unique_ptr<RunRule> MakeGuidedRuns();

}  // namespace lockstep::policies
