// Compute on the calling thread, with OpenBLAS for matrix products. It is the reference for every
// other device.
#pragma once

#include <memory>

#include "worker/compute/compute.h"

namespace lockstep::worker {

// Holds OpenBLAS to one thread, for the whole process: a machine runs several workers, and one
// thread always adds in the same order. Make the first call before there are threads that read the
// environment.
std::unique_ptr<Compute> MakeCpuCompute();

}  // namespace lockstep::worker
