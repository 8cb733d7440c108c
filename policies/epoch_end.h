// Makes a policy that leaves workers out move units in the last round of an epoch.
#pragma once

#include <memory>

#include "policies/flexrr.h"
#include "policies/policy.h"

namespace lockstep::policies {

// The last round of an epoch is exact: nobody can be left out of it, so a closing rule that does so
// everywhere else would wait there for whoever is slow, and for one that is stopped until it is
// lost. In that round its units move as under flexrr; in all others nothing moves. `shares` says
// who is given what, and gives the name.
std::unique_ptr<WorkRule> MakeEpochEnd(const FlexrrOptions& options,
                                       std::unique_ptr<WorkRule> shares);

}  // namespace lockstep::policies
