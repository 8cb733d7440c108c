// Closing rule `partial`: at the deadline every worker seals what it has done, and the round closes
// over that, weighted by samples. After Giladi et al., "DropCompute: simple and more robust
// distributed synchronous training via compute variance reduction", NeurIPS'23, section 3. The
// deadline is median + k x MAD of the times that the workers' whole shares take; what is left out
// comes again in a later round of the epoch.
#pragma once

#include <cstdint>
#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

struct PartialOptions {
  double k = 4;
  std::uint32_t min_contributors = 1;
  std::uint32_t workers = 1;  // of the job
  std::uint32_t window = 20;  // rounds
};

std::unique_ptr<ClosingRule> MakePartial(const PartialOptions& options);

}  // namespace lockstep::policies
