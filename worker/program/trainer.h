// The built-in trainer: a model and a dataset out of the job's config, on a device, driven by a
// Session.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {

// Trains until the job ends. Errors that come before training (data, model, refusal) have
// ErrorCode::kInvalid, kNotFound or kRefused; a job that failed is kClosed, a device that failed
// kIo. `device`: "cpu", "cuda:0" (compute/devices.h).
Status Train(Session& session, const std::string& device);

// The same on a device that the caller makes.
Status TrainOn(Session& session,
               const std::function<Result<std::unique_ptr<Compute>>()>& make_compute);

}  // namespace lockstep::worker
