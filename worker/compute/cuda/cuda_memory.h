// A GPU's memory for the exchange.
#pragma once

#include <memory>

#include "worker/memory/exchange_memory.h"

namespace lockstep::worker::cuda {

// Of GPU `number`; the calling thread's device stays what it was. Operations have a stream of their
// own, beside those that compute.
std::unique_ptr<ExchangeMemory> MakeCudaMemory(int number);

}  // namespace lockstep::worker::cuda
