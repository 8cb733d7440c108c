// From policy.name to rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "policies/policy.h"

namespace lockstep::policies {

// `policy.name` is a closing rule and a work rule joined by "+", in either order; one alone goes
// with the other kind's default, `full` or `none`. `workers`: --workers. The error is one line that
// names the key.
Result<Policy> MakePolicy(const PolicySection& section, std::uint32_t workers);

std::vector<std::string> ClosingRuleNames();
std::vector<std::string> WorkRuleNames();

}  // namespace lockstep::policies
