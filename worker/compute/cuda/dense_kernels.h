// Kernels over matrices. They work like the operations of the same name in compute.h, but have only
// been started when the functions return.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::worker::cuda {

void AddBias(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* bias,
             bool relu, float* x);
void ReluBackward(cudaStream_t stream, std::size_t count, const float* y, float* delta);

// The number of floats of `scratch` for the two functions below.
std::size_t ColumnSumScratch(std::size_t rows, std::size_t columns);
void AddColumnSums(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* x,
                   float* scratch, float* sums);
// Adds sums of the products x * y.
void AddColumnSumsOfProducts(cudaStream_t stream, std::size_t rows, std::size_t columns,
                             const float* x, const float* y, float* scratch, float* sums);

}  // namespace lockstep::worker::cuda
