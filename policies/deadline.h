// Closing rule `deadline`: a round closes over who has arrived when median + k x MAD of the recent
// arrivals is over, with a minimum of contributors. A later worker is excluded from the round; its
// units come again.
#pragma once

#include <memory>

#include "policies/arrival_rule.h"

namespace lockstep::policies {

std::unique_ptr<ClosingRule> MakeDeadline(const ArrivalOptions& options);

}  // namespace lockstep::policies
