// A program's own streams on a GPU, beside which the exchange works.
#pragma once

#include <memory>

#include "worker/memory/program_streams.h"

namespace lockstep::worker::cuda {

// Makes them for GPU `number`.
std::unique_ptr<ProgramStreams> MakeCudaStreams(int number);

}  // namespace lockstep::worker::cuda
