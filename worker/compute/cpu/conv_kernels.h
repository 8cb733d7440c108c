// Loops over channels-last images. They work like the operations of the same name in compute.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/compute/compute.h"

namespace lockstep::worker::cpu {

void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y);
void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns);
void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x);
void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                  float* y, std::uint8_t* choice);
void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                    const std::uint8_t* choice, float* dx);
void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* delta);

}  // namespace lockstep::worker::cpu
