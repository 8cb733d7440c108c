// Which settings a resumed job may have otherwise than the one that wrote its checkpoint. All may
// but those that are named here: with others the tensors would mean something else, or samples
// would count twice or never in the epoch that is under way. docs/guides/resume.md lists them.
#pragma once

#include <map>
#include <string>

#include "base/job_config.h"
#include "base/result.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

// What of the config a checkpoint has to remember, by key, as the INI file has it.
std::map<std::string, std::string> SettingsToRemember(const JobConfig& config);

// kInvalid, one line that names the key: `config` cannot go on from `state`.
Status CheckResume(const JobState& state, const JobConfig& config);

}  // namespace lockstep::coordinator
