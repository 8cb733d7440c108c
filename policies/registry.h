// Makes the rules that policy.name names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/compatibility.h"
#include "base/job_config.h"
#include "base/result.h"
#include "policies/policy.h"

namespace lockstep::policies {

// Makes the policy of the name `plugin` (policies/plugin.h); loading is not for pure code.
using PluginMaker = Result<Policy> (*)(const PolicySection& section, std::uint32_t workers);

// `policy.name` is a closing rule and a work rule joined by "+", in either order; the default for a
// missing one is `full` or `none`. Or it is `local`, alone or joined with a closing rule. Or it is
// a whole policy (`auto`, `async`, `plugin`). `workers`: --workers. The error line names the key.
Result<Policy> MakePolicy(const PolicySection& section, std::uint32_t workers,
                          PluginMaker plugin = nullptr);

// job.min_workers where the config says nothing: all of the job's workers, less those that the
// closing rule can spare. Where work moves within a round, others can do a lost worker's share, so
// more than half are enough. At least 1.
std::uint32_t DefaultMinWorkers(const Policy& policy, std::uint32_t workers);

// The policy's properties that other choices of the job depend on. `name`: for people.
PolicyTraits TraitsOf(const Policy& policy, std::string name);

std::vector<std::string> ClosingRuleNames();
std::vector<std::string> WorkRuleNames();
std::vector<std::string> WholePolicyNames();  // auto, async, plugin: not joined with others

}  // namespace lockstep::policies
