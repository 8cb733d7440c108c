// Words that several rules share.
#pragma once

#include <string>

#include "policies/policy.h"

namespace lockstep::policies {

// "waiting for worker 3 (2 of 8 units done) and 2 others": names the one with the most work left.
std::string WaitingFor(const RoundView& view);

// Returns all delivered parts of the workers that are not fenced, by worker, then part.
std::vector<PartChoice> AllDelivered(const RoundView& view);

}  // namespace lockstep::policies
