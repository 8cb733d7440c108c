// Saves the parameters of a session in the run directory when no coordinator takes over (rescue.h).
#pragma once

#include <string>

#include "base/job_config.h"
#include "base/messages.h"
#include "worker/core/step_io.h"
#include "worker/runtime/session_parts.h"

namespace lockstep::worker {

// Blocks, as SaveRescue does; nobody changes the buffers meanwhile. Returns one line for the user:
// where the parameters are saved, or why this worker saves nothing, and how to go on.
std::string SaveParameters(const JobConfig& config, const msg::Welcome& welcome,
                           const SessionParts& parts, const action::Detached& detached);

}  // namespace lockstep::worker
