#include "tools/doctor/cuda.h"

namespace lockstep::doctor {
namespace {

Error NotBuilt() { return {ErrorCode::kUnavailable, "this program was built without CUDA"}; }

}  // namespace

CudaFacts AskCuda() { return {}; }

Result<std::shared_ptr<std::byte>> AllocateOn(int /*device*/, std::size_t /*bytes*/) {
  return NotBuilt();
}

Status UseDevice(int /*device*/) { return NotBuilt(); }

Result<Copied> MeasureCopy(std::optional<int> /*from*/, std::optional<int> /*to*/,
                           Duration /*length*/) {
  return NotBuilt();
}

}  // namespace lockstep::doctor
