// Writes and reads the job's state beside a checkpoint's tensors, as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

// Without the digest and a checksum, for the journal: what is the same throughout a job, and what
// each commit changes, which is these numbers and sampler.uncounted. Together they are the state.
nlohmann::json LastingToJson(const JobState& state);
std::array<std::pair<const char*, std::uint64_t>, 10> ProgressNumbers(const JobState& state);
Result<JobState> JobStateFromParts(const nlohmann::json& lasting, const nlohmann::json& progress);

// With a checksum of itself.
std::string ToJson(const JobState& state);
// Takes nothing that ToJson cannot have written: errors are one line and say what is wrong.
Result<JobState> JobStateFromJson(std::string_view text);

}  // namespace lockstep::coordinator
