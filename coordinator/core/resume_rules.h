// Lists the settings that a resumed job must share with the one that wrote its checkpoint. All
// other settings may change. With a change in one of these the tensors would mean something else,
// or samples of the present epoch would count twice or never. docs/guides/resume.md lists them.
#pragma once

#include <map>
#include <string>

#include "base/job_config.h"
#include "base/result.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

// Returns the settings that a checkpoint has to remember, by key, as in the INI file.
std::map<std::string, std::string> SettingsToRemember(const JobConfig& config);

// kInvalid, one line that names the key: `config` cannot go on from `state`.
Status CheckResume(const JobState& state, const JobConfig& config);

// All rounds of the job are in that state.
bool IsAtEnd(const JobState& state, const JobSection& job);

}  // namespace lockstep::coordinator
