// The parts that a session computes and exchanges with, made out of the job's config and of what
// the program says of its model. These are the optimizer, the buckets and the buffers. Errors are
// ErrorCode::kInvalid, or say what of the memory cannot be had.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "worker/optimizer/optimizer.h"
#include "worker/runtime/data_plane.h"
#include "worker/runtime/final_buckets.h"
#include "worker/runtime/job_description.h"
#include "worker/runtime/local_steps.h"
#include "worker/runtime/session.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

// Each is made with those before it.
struct SessionParts {
  JobDescription description;
  std::shared_ptr<LocalSteps> local_steps;  // null: the policy is not local
  std::unique_ptr<Optimizer> optimizer;
  std::optional<FinalBuckets> buckets;
  bool sums_apart = false;                 // see MachineConfig
  std::string no_arena;                    // why peers on this host cannot map this worker's memory
  std::shared_ptr<WorkerBuffers> buffers;  // not the session's alone: Session::Keep

  const Layout& layout() const { return buckets->layout(); }
  std::uint32_t state_tensors() const {
    return static_cast<std::uint32_t>(optimizer->state_names().size());
  }
};

Result<std::unique_ptr<SessionParts>> MakeParts(const JobConfig& config, std::uint32_t workers,
                                                const std::string& device,
                                                JobDescription description);

// How the data plane is started, but for its callbacks and the address that it listens on.
DataPlane::Setup SetupOf(const JobConfig& config, const msg::Welcome& welcome,
                         const SessionOptions& options, const SessionParts& parts);

// Raises this process's limit for the connections to peers, or warns where it is too low.
void AllowOpenFiles(const JobConfig& config, std::uint32_t workers);

}  // namespace lockstep::worker
