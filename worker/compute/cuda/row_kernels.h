// Kernels that treat a row as a whole. They work like the operations of the same name in compute.h,
// but have only been started when the functions return. Sums of a row run over the threads of a
// warp or block in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/random.h"
#include "worker/compute/compute.h"

namespace lockstep::worker::cuda {

// `threshold` is above 0; `streams` is on the device.
void Dropout(cudaStream_t stream, std::size_t rows, std::size_t columns, std::uint32_t threshold,
             std::uint32_t layer, const RandomStream* streams, const float* x, float* y);

void LayerNorm(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* x,
               const float* gain, const float* shift, float* y, float* normalized,
               float* inverse_deviation);
void LayerNormBackward(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* dy,
                       const float* gain, const float* normalized, const float* inverse_deviation,
                       float* dx);

// The addends of a row for the sums.
struct RowLoss {
  float loss;
  std::uint32_t correct;
};
// `labels`, `losses` [rows] and `sums` are on the device. `losses` is scratch memory.
void SoftmaxLoss(cudaStream_t stream, std::size_t rows, std::size_t classes, const float* logits,
                 const std::uint16_t* labels, float* delta, RowLoss* losses, LossSums* sums);

}  // namespace lockstep::worker::cuda
