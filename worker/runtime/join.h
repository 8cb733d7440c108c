// Joins a job: reaches the coordinator, says Hello and gets its welcome, which says which worker
// this one is and what the job's config is.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "worker/runtime/control_link.h"
#include "worker/runtime/coordinator_inbox.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {

struct Joined {
  std::unique_ptr<ControlLink> link;
  msg::Welcome welcome;
  JobConfig config;  // with this worker's overrides
};

// Blocks. What the coordinator says goes to the inbox, which outlives the link; what comes behind
// the welcome waits there. Errors are one line for people; kTryAgain and kRefused: the coordinator
// refuses this worker.
Result<Joined> Join(const SessionOptions& options, CoordinatorInbox& inbox,
                    std::function<msg::RunInHand()> run_in_hand);

// The reason of a worker that leaves on its own.
inline constexpr char kWorkerEnds[] = "the worker ends";

// Equal on all processes of one running kernel.
std::string HostId();

}  // namespace lockstep::worker
