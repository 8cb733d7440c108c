#include "worker/compute/cpu/gemm.h"

#include <cblas.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

// OpenBLAS chooses its kernels when it is loaded, through these two variables. They are in every
// build with run-time dispatch but in none of its headers.
extern "C" {
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}

namespace lockstep::worker::cpu {
namespace {

constexpr char kCoreVariable[] = "OPENBLAS_CORETYPE";

// A processor newer than the library is unknown to it and gets "Prescott", kernels for SSE3 with a
// third of the speed. Then the choice is made again, with a name that fits the processor's
// abilities. A value that the user has set is kept.
void ChooseKernels() {
#if defined(__x86_64__)
  if (gotoblas_dynamic_init == nullptr || gotoblas_dynamic_quit == nullptr) return;
  if (std::getenv(kCoreVariable) != nullptr) return;
  if (std::string_view(openblas_get_corename()) != "Prescott") return;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx512 && !avx2) return;
  setenv(kCoreVariable, avx512 ? "SkylakeX" : "Haswell", 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv(kCoreVariable);
#endif
}

// OpenBLAS maps its work space at its first product. Where the limit on address space has no room
// for that, it tries again for ever. So the room is checked before, and then taken.
constexpr std::size_t kWorkSpaceBytes = std::size_t{160} << 20;  // 128 MiB, and some more
void TakeWorkSpace() {
  void* const room = ::mmap(nullptr, kWorkSpaceBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw DeviceError(fmt::format("no {} MiB of address space for OpenBLAS: {}",
                                  kWorkSpaceBytes >> 20, std::strerror(errno)));
  }
  ::munmap(room, kWorkSpaceBytes);
  constexpr std::size_t kSide = 256;
  const std::vector<float> factor(kSide * kSide);
  std::vector<float> product(kSide * kSide);
  Gemm(Transpose::kNo, Transpose::kNo, kSide, kSide, kSide, factor.data(), factor.data(), 0.0f,
       product.data());
}

CBLAS_TRANSPOSE ToBlas(Transpose t) { return t == Transpose::kYes ? CblasTrans : CblasNoTrans; }

}  // namespace

void PrepareBlas() {
  static std::once_flag once;
  std::call_once(once, [] {
    ChooseKernels();
    openblas_set_num_threads(1);
    TakeWorkSpace();
  });
}

void Gemm(Transpose transpose_a, Transpose transpose_b, std::size_t m, std::size_t n, std::size_t k,
          const float* a, const float* b, float beta, float* c) {
  const auto lda = static_cast<blasint>(transpose_a == Transpose::kYes ? m : k);
  const auto ldb = static_cast<blasint>(transpose_b == Transpose::kYes ? k : n);
  cblas_sgemm(CblasRowMajor, ToBlas(transpose_a), ToBlas(transpose_b), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a, lda, b, ldb, beta, c,
              static_cast<blasint>(n));
}

}  // namespace lockstep::worker::cpu
