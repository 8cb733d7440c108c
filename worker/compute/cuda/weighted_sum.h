// The exchange's sum on device memory: reduce.h's WeightedSum with the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>

#include "worker/memory/reduce.h"

namespace lockstep::worker::cuda {

// Consecutive sums, of which none reads what another writes. Sums of pieces of the same vectors are
// one kernel, since many small ones would take longer to start than to run. It belongs to one
// thread.
class SumBatch {
 public:
  // `*not_finite`, in memory that the host and the device share, becomes 1 where a sum is infinite
  // or not a number.
  SumBatch(cudaStream_t stream, unsigned* not_finite);
  ~SumBatch();

  // out[i] = (..((w0 * x0[i]) + w1 * x1[i]) + ..), each product and each sum rounded; zeros for no
  // inputs. Data and `out` are on the device, at any multiple of a float's size; `out` overlaps no
  // input. It takes one pass over all inputs, up to 64 of them; more take a pass for each 64.
  void Add(std::span<const Input> inputs, float* out, std::size_t n);
  // Starts the collected sums on the stream now, if they have not started before.
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  unsigned* const not_finite_;
  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
