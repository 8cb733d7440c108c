// Closing rule `full`: the round closes when every worker has delivered all of its units.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

std::unique_ptr<ClosingRule> MakeFull();

}  // namespace lockstep::policies
