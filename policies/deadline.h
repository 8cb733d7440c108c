// Closing rule `deadline`: a round closes over who has arrived when median + k x MAD of the recent
// arrivals is over, with a minimum of contributors. Who arrives later is excluded from the round;
// its units come again.
#pragma once

#include <cstdint>
#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

struct DeadlineOptions {
  double k = 4;
  std::uint32_t min_contributors = 1;
  std::uint32_t workers = 1;  // of the job
  std::uint32_t window = 20;  // rounds
};

std::unique_ptr<ClosingRule> MakeDeadline(const DeadlineOptions& options);

}  // namespace lockstep::policies
