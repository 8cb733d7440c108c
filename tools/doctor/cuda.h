// The seam to CUDA: one function, and no header of CUDA. cuda_none.cc is it in a build without; a
// build with CUDA puts another definition in its place.
#pragma once

#include "tools/doctor/facts.h"

namespace lockstep::doctor {

CudaFacts AskCuda();

}  // namespace lockstep::doctor
