// Kernels over channels-last images. They work like the operations of the same name in compute.h,
// but have only been started when the functions return. Each element of an output is made by one
// thread, in the CPU's order of additions: the bits are the CPU's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "worker/compute/compute.h"

namespace lockstep::worker::cuda {

void ChannelsLast(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
                  float* y);
void Im2col(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
            float* columns);
void Col2im(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* columns,
            float* x);
void BiasReluPool(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
                  const float* bias, float* y, std::uint8_t* choice);
void UnpoolBackward(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* dy,
                    const std::uint8_t* choice, float* dx);
void PoolReluBackward(cudaStream_t stream, std::size_t count, const std::uint8_t* choice,
                      float* delta);

}  // namespace lockstep::worker::cuda
