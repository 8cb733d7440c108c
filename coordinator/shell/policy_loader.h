// Loads a policy that is a shared library (policies/plugin.h).
#pragma once

#include <cstdint>

#include "base/job_config.h"
#include "base/result.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

// Loads section.plugin (it stays loaded until the process ends) and asks it for its policy. The
// error is one line that names the file: it cannot be loaded, is no plug-in, is one for another
// version, or throws. Policy::threw has the exceptions that its rules throw later.
Result<policies::Policy> LoadPolicy(const PolicySection& section, std::uint32_t workers);

}  // namespace lockstep::coordinator
