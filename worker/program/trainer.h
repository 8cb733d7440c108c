// The built-in trainer: a model and a dataset from the job's config, on a device, driven by a
// Session.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {

// Trains until the job ends. Errors before training (data, model, refusal) have
// ErrorCode::kInvalid, kNotFound or kRefused; a failed job is kClosed, a failed device kIo.
// `device`: "cpu", "cuda:0" (compute/devices.h).
Status Train(Session& session, const std::string& device);

// The same on a device that the caller makes.
Status TrainOn(Session& session,
               const std::function<Result<std::unique_ptr<Compute>>()>& make_compute);

}  // namespace lockstep::worker
