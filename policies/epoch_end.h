// Makes a policy that leaves workers out move units in the last round of an epoch.
#pragma once

#include <memory>

#include "policies/flexrr.h"
#include "policies/policy.h"

namespace lockstep::policies {

// The last round of an epoch is exact: it leaves nobody out. A closing rule that leaves workers out
// would wait there for a slow worker, and for a stopped one until it is lost. In that round its
// units move as under flexrr; in all others nothing moves. `shares` says who is given what, and
// gives the name.
std::unique_ptr<WorkRule> MakeEpochEnd(const FlexrrOptions& options,
                                       std::unique_ptr<WorkRule> shares);

}  // namespace lockstep::policies
