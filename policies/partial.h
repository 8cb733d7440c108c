// Closing rule `partial`: at the deadline every worker seals what it has done, and the round closes
// over that, weighted by samples. After Giladi et al., "DropCompute: simple and more robust
// distributed synchronous training via compute variance reduction", NeurIPS'23, section 3. The
// deadline is median + k x MAD of the times that the workers' whole shares take; what is left out
// comes again in a later round of the epoch.
#pragma once

#include <memory>

#include "policies/arrival_rule.h"

namespace lockstep::policies {

std::unique_ptr<ClosingRule> MakePartial(const ArrivalOptions& options);

}  // namespace lockstep::policies
