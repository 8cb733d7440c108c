// Matrix products. No other file names BLAS.
#pragma once

#include <cstddef>

#include "worker/compute/compute.h"

namespace lockstep::worker::cpu {

// Holds OpenBLAS to one thread and to the kernels that fit this machine. Call it before the first
// product, while no other thread reads or writes the environment. Throws a DeviceError where there
// is no address space for OpenBLAS.
void PrepareBlas();
// Works like Compute::Gemm.
void Gemm(Transpose transpose_a, Transpose transpose_b, std::size_t m, std::size_t n, std::size_t k,
          const float* a, const float* b, float beta, float* c);

}  // namespace lockstep::worker::cpu
