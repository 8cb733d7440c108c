// How many units a worker computes together.
//
// A run is computed as one batch, which costs less than its units one by one; but none of its units
// can move until it is done. So a worker takes all it has at once where nobody is slow and a run
// costs something, and short runs where it is late or somebody becomes slow every now and then
// (guided self-scheduling, Polychronopoulos and Kuck, IEEE Trans. Computers 1987: no more than half
// of what is left, so that single units remain at the end).
//
// Decided from what is measured: the cost of a run beside its units; how late each worker would
// have been with its share as one run (lateness, as a share of a round in which nobody waits); and
// how much later than it was before the worst of a round is (surprise). A run that is a fraction f
// of a round makes it longer by f (lateness + surprise), so the f is taken for which this and the
// cost of the runs are least.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

std::unique_ptr<RunRule> MakeGuidedRuns();

}  // namespace lockstep::policies
