// The exchange's sums of squares on device memory: reduce.h's SumOfSquaresByGrain with the same
// bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "worker/memory/numbers.h"

namespace lockstep::worker::cuda {

// Consecutive ones, of which none reads what another writes, are one kernel. It belongs to one
// thread.
class SquareBatch {
 public:
  explicit SquareBatch(cudaStream_t stream);
  ~SquareBatch();

  // out[g] = the sum of squares of data[g * grain .. min(n, (g + 1) * grain)), in double precision
  // and reduce.h's order. All memory is on the device. `data`: n floats, or numbers of 16 bits.
  void Add(NumberType type, const void* data, std::size_t n, std::size_t grain, double* out);
  // Starts the collected sums on the stream now, if they have not started before.
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
