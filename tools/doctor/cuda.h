// The seam to CUDA, without a header of CUDA. cuda_none.cc implements it in a build without CUDA,
// cuda/cuda_there.cc in one with it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "tools/doctor/facts.h"

namespace lockstep::doctor {

CudaFacts AskCuda();

// Memory of a GPU.
Result<std::shared_ptr<std::byte>> AllocateOn(int device, std::size_t bytes);
// Makes a GPU the one of this thread.
Status UseDevice(int device);

struct Copied {
  std::string path;
  double gb_per_second = 0;
};
// Copies for about `length` between two GPUs, or between one and pinned memory of the host
// (nullopt, at one end).
Result<Copied> MeasureCopy(std::optional<int> from, std::optional<int> to, Duration length);

}  // namespace lockstep::doctor
