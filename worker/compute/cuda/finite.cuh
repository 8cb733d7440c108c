// Whether a number is finite.
#pragma once

#include <cfloat>

namespace lockstep::worker::cuda {

// True if it is neither infinite nor not a number.
__device__ inline bool Finite(float x) { return fabsf(x) <= FLT_MAX; }

}  // namespace lockstep::worker::cuda
