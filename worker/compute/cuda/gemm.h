// Matrix products by cuBLAS.
#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <string>

#include "worker/compute/compute.h"
#include "worker/compute/cuda/handles.h"

namespace lockstep::worker::cuda {

class Blas {
 public:
  // All products run on `stream`, which outlives this. `precision`: fp32, tf32 or bf16.
  Blas(const Stream& stream, const std::string& precision);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Works like Compute::Gemm.
  void Gemm(Transpose transpose_a, Transpose transpose_b, std::size_t m, std::size_t n,
            std::size_t k, const float* a, const float* b, float beta, float* c);

 private:
  DeviceMemory workspace_;
  cublasHandle_t handle_ = nullptr;
  cublasComputeType_t type_ = CUBLAS_COMPUTE_32F;
};

}  // namespace lockstep::worker::cuda
