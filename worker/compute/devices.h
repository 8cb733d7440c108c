// What a worker can compute on, by the names of device_memory.h.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/compute/device_memory.h"

namespace lockstep::worker {

// `precision` as compute.precision in the job's config; the CPU has fp32 only. Errors as
// CheckDevice.
Result<std::unique_ptr<Compute>> MakeCompute(const std::string& name, const std::string& precision);

}  // namespace lockstep::worker
