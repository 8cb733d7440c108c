// Whether a number is one.
#pragma once

#include <cfloat>

namespace lockstep::worker::cuda {

// Neither infinite nor not a number.
__device__ inline bool Finite(float x) { return fabsf(x) <= FLT_MAX; }

}  // namespace lockstep::worker::cuda
