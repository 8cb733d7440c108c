// Puts messages and actions into words, one line each, for transcripts.
#pragma once

#include <string>

#include "base/messages.h"
#include "coordinator/job/step_io.h"

namespace lockstep::coordinator {

std::string Describe(const msg::FromWorker& message);
std::string Describe(const msg::ToWorker& message);
std::string Describe(const RoundRecord& record);
std::string Describe(const JobResult& result);

}  // namespace lockstep::coordinator
