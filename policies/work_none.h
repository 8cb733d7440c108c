// Work rule `none`: equal shares, and nothing moves within a round.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

std::unique_ptr<WorkRule> MakeWorkNone();

}  // namespace lockstep::policies
