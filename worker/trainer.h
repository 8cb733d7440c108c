// The built-in trainer: a model and a dataset out of the job's config, on a device, driven by a
// Session.
#pragma once

#include <string>

#include "base/result.h"
#include "worker/session.h"

namespace lockstep::worker {

// Trains until the job ends. Errors that come before training (data, model, refusal) have
// ErrorCode::kInvalid, kNotFound or kRefused; a job that failed is kClosed, a device that failed
// kIo. `device`: "cpu", "cuda:0" (compute/devices.h).
Status Train(Session& session, const std::string& device);

}  // namespace lockstep::worker
