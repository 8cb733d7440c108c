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

class ComputeQueue;

// To a coordinator.
struct CoordinatorChannel {
  // A coordinator that breaks the protocol before this worker has begun ends what `compute` has.
  explicit CoordinatorChannel(ComputeQueue& compute);

  CoordinatorInbox inbox;
  std::unique_ptr<ControlLink> link;  // gone before what its thread calls
};

struct Joined {
  msg::Welcome welcome;
  JobConfig config;  // with this worker's overrides
};

// How long a coordinator is tried.
struct JoinPatience {
  Duration reach;    // until connected
  Duration welcome;  // then until its first answer
  bool once = false;
};

// Blocks. The channel has a link afterwards, unless there is an error. All that the coordinator
// says behind its welcome waits in the channel's inbox. Errors are one line for people; kTryAgain
// and kRefused: the coordinator refuses this worker.
Result<Joined> Join(const SessionOptions& options, CoordinatorChannel& channel,
                    std::function<msg::RunInHand()> run_in_hand, const JoinPatience& patience);
// With the options' patience.
Result<Joined> Join(const SessionOptions& options, CoordinatorChannel& channel,
                    std::function<msg::RunInHand()> run_in_hand);

// The reason of a worker that leaves on its own.
inline constexpr char kWorkerEnds[] = "the worker ends";

// Equal on all processes of one running kernel.
std::string HostId();

}  // namespace lockstep::worker
