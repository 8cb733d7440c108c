// A GPU's memory for the exchange.
#pragma once

#include <memory>

#include "worker/memory/exchange_memory.h"

namespace lockstep::worker::cuda {

// Makes the memory of GPU `number`; the calling thread's current device does not change. Operations
// have a stream of their own, beside the compute streams.
std::unique_ptr<ExchangeMemory> MakeCudaMemory(int number);

}  // namespace lockstep::worker::cuda
