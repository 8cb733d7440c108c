#include "worker/compute/cuda/gemm.h"

#include <fmt/format.h>

#include <limits>

#include "base/check.h"

namespace lockstep::worker::cuda {
namespace {

// NVIDIA advises this for Hopper. With a workspace of its own and one stream, cuBLAS gives the same
// bits each time.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("the GPU failed: {}: {}", what, cublasGetStatusString(status)));
}

cublasComputeType_t TypeOf(const std::string& precision) {
  if (precision == "tf32") return CUBLAS_COMPUTE_32F_FAST_TF32;
  if (precision == "bf16") return CUBLAS_COMPUTE_32F_FAST_16BF;
  LOCKSTEP_CHECK(precision == "fp32", "precision {}", precision);
  return CUBLAS_COMPUTE_32F;
}

int Extent(std::size_t size) {
  LOCKSTEP_CHECK(size <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
                 "a matrix of {} rows or columns", size);
  return static_cast<int>(size);
}

}  // namespace

Blas::Blas(const Stream& stream, const std::string& precision) : type_(TypeOf(precision)) {
  void* workspace = workspace_.Need(kWorkspaceBytes);
  Check(cublasCreate(&handle_), "starting cuBLAS");
  Check(cublasSetStream(handle_, stream.get()), "starting cuBLAS");
  Check(cublasSetWorkspace(handle_, workspace, kWorkspaceBytes), "starting cuBLAS");
  Check(cublasSetAtomicsMode(handle_, CUBLAS_ATOMICS_NOT_ALLOWED), "starting cuBLAS");
}

Blas::~Blas() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

// cuBLAS's matrices are column-major: ours are then their own transposes, and c' = b' a'.
void Blas::Gemm(Transpose transpose_a, Transpose transpose_b, std::size_t m, std::size_t n,
                std::size_t k, const float* a, const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  const bool ta = transpose_a == Transpose::kYes;
  const bool tb = transpose_b == Transpose::kYes;
  const float alpha = 1;
  Check(cublasGemmEx(handle_, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                     Extent(n), Extent(m), Extent(k), &alpha, b, CUDA_R_32F, Extent(tb ? k : n), a,
                     CUDA_R_32F, Extent(ta ? m : k), &beta, c, CUDA_R_32F, Extent(n), type_,
                     CUBLAS_GEMM_DEFAULT),
        "a matrix product");
}

}  // namespace lockstep::worker::cuda
