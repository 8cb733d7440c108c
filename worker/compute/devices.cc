#include "worker/compute/devices.h"

#include "worker/compute/cpu/cpu_compute.h"
#include "worker/compute/cuda/cuda_compute.h"

namespace lockstep::worker {

Result<std::unique_ptr<Compute>> MakeCompute(const std::string& name,
                                             const std::string& precision) {
  if (Status there = CheckDevice(name); !there.ok()) return there.error();
  if (name == "cpu") return MakeCpuCompute();
  return MakeCudaCompute(*GpuNumber(name), precision);
}

}  // namespace lockstep::worker
