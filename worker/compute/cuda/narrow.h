// Numbers of 16 bits on device memory: memory/narrow.h's operations with the same bits (but for
// those of a NaN).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "worker/memory/numbers.h"

namespace lockstep::worker::cuda {

// narrow.h's Narrow, which has only been started on the stream when it returns. *too_large, in
// memory that the host and the device share, becomes 1 where Narrow returns false.
void NarrowNumbers(cudaStream_t stream, NumberType type, const float* from, std::uint16_t* to,
                   std::size_t n, const Rounding& rounding, std::uint64_t first,
                   unsigned* too_large);

// Consecutive sums, of which none reads what another writes. Sums of pieces of the same vectors are
// one kernel. It belongs to one thread.
class NarrowSumBatch {
 public:
  // `*too_large` is as above.
  NarrowSumBatch(cudaStream_t stream, unsigned* too_large);
  ~NarrowSumBatch();

  // narrow.h's WeightedSum, in one pass over all inputs.
  void Add(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out, std::size_t n,
           const Rounding& rounding, std::uint64_t first);
  // Starts the collected sums on the stream now, if they have not started before.
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  unsigned* const too_large_;
  const std::unique_ptr<Pending> pending_;
};

// Like NarrowSumBatch, for widened numbers. It belongs to one thread.
class WidenBatch {
 public:
  explicit WidenBatch(cudaStream_t stream);
  ~WidenBatch();

  void Add(NumberType type, const std::uint16_t* from, float* to, std::size_t n);
  void Ask();

 private:
  struct Pending;

  const cudaStream_t stream_;
  const std::unique_ptr<Pending> pending_;
};

}  // namespace lockstep::worker::cuda
