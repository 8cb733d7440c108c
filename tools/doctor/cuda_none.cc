#include "tools/doctor/cuda.h"

namespace lockstep::doctor {

CudaFacts AskCuda() { return {}; }

}  // namespace lockstep::doctor
