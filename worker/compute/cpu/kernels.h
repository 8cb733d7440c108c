// Elementwise and row-wise loops. They work like the operations of the same name in compute.h. No
// reduction is reordered by the compiler: sums run over rows in ascending order, or over a fixed
// number of lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "worker/compute/compute.h"

namespace lockstep::worker::cpu {

void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu, float* x);
void ReluBackward(std::size_t count, const float* y, float* delta);
void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* sums);
void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
             std::span<const RandomStream> streams, const float* x, float* y);
void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
               const float* shift, float* y, float* normalized, float* inverse_deviation);
void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy, const float* normalized,
                   float* gain_sum);
void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                       const float* normalized, const float* inverse_deviation, float* dx);
LossSums SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                     std::span<const std::uint16_t> labels, float* delta);

}  // namespace lockstep::worker::cpu
