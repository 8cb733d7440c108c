// Kernels over matrices. As the operations of the same name in compute.h; they are only asked for
// when the functions return.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace lockstep::worker::cuda {

void AddBias(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* bias,
             bool relu, float* x);
void ReluBackward(cudaStream_t stream, std::size_t count, const float* y, float* delta);

// How many floats of `scratch` the two below take.
std::size_t ColumnSumScratch(std::size_t rows, std::size_t columns);
void AddColumnSums(cudaStream_t stream, std::size_t rows, std::size_t columns, const float* x,
                   float* scratch, float* sums);
// Of the products x * y.
void AddColumnSumsOfProducts(cudaStream_t stream, std::size_t rows, std::size_t columns,
                             const float* x, const float* y, float* scratch, float* sums);

}  // namespace lockstep::worker::cuda
