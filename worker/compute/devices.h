// What a worker can compute on: "cpu", "cuda:0", "cuda:1" ..; "cuda" is cuda:0.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "worker/compute/compute.h"

namespace lockstep::worker {

// Whether there is such a device and this program can use it. The error names it and says why not
// and what there is.
Status CheckDevice(const std::string& name);

// Where a GPU hangs on PCI, "0000:3B:00.0"; empty for other devices and where that is not known.
std::string PciAddress(const std::string& name);

// `precision` as compute.precision in the job's config; the CPU has fp32 only. Errors as
// CheckDevice.
Result<std::unique_ptr<Compute>> MakeCompute(const std::string& name, const std::string& precision);

}  // namespace lockstep::worker
