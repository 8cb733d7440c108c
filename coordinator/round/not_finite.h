// Contributions that are infinite or not numbers. Summed up, one such value makes all parameters
// such, with no way back. A worker says it of its own loss, or of its gradient where nobody else
// looks; else whoever sums the gradients says it (msg::NotFinite).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/context.h"
#include "coordinator/round/round_work.h"

namespace lockstep::coordinator {

// Describes the contribution, for people.
std::string NotFiniteText(const Job& job, const RoundWork& work, WorkerId worker,
                          std::span<const UnitTiming> units);

// Decides whether the round may go on without it, and logs that. False: the job ends (job.on_nan).
// `found_by`: whose word it is, if not that of the worker that it is about.
bool MayLeaveOut(Job* job, const std::string& what, std::optional<WorkerId> found_by = {});

}  // namespace lockstep::coordinator
