// Makes the devices of a worker, by the names of device_memory.h.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/compute/device_memory.h"

namespace lockstep::worker {

// `precision` is compute.precision of the job's config; the CPU has fp32 only. Errors are those of
// CheckDevice.
Result<std::unique_ptr<Compute>> MakeCompute(const std::string& name, const std::string& precision);

}  // namespace lockstep::worker
