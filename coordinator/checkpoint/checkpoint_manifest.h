// How a checkpoint's file keeps the job's state beside the tensors: as JSON.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

// With a checksum of itself.
std::string ToJson(const JobState& state);
// Takes nothing that ToJson cannot have written: errors are one line and say what is wrong.
Result<JobState> JobStateFromJson(std::string_view text);

}  // namespace lockstep::coordinator
