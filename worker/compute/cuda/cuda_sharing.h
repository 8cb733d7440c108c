// A GPU's memory for other processes of the host: allocations of the driver that can be exported as
// file descriptors. The physical memory lives as long as anybody has it mapped or holds the
// descriptor.
#pragma once

#include <memory>

#include "transport/mapping/device_sharing.h"

namespace lockstep::worker::cuda {

// Makes it for GPU `number`. Every call leaves the calling thread's device as it was.
std::unique_ptr<transport::DeviceSharing> MakeCudaSharing(int number);

}  // namespace lockstep::worker::cuda
