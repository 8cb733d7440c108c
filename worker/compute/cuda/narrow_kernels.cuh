// The kernels of narrow.h, in code that a test also compiles for the CPU (tests/cuda_on_cpu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/compute/cuda/element.cuh"
#include "worker/compute/cuda/narrow_formulas.h"
#include "worker/compute/cuda/pieces.h"
#include "worker/memory/numbers.h"

namespace lockstep::worker::cuda {

// The numbers in one word of 16 bytes.
constexpr unsigned kNarrowInWord = sizeof(uint4) / sizeof(std::uint16_t);

// Counted from the first piece, in all vectors.
struct NarrowPiece {
  std::ptrdiff_t first;
  std::size_t count;
};

__host__ __device__ inline unsigned SkewOf(const std::uint16_t* data) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(data) / sizeof *data %
                               kNarrowInWord);
}
__device__ inline std::uint32_t Half(const uint4& word, unsigned i) {
  const unsigned two = i < 4 ? (i < 2 ? word.x : word.y) : (i < 6 ? word.z : word.w);
  return i % 2 == 0 ? two & 0xffff : two >> 16;
}

template <class Type>
__global__ void NarrowKernel(const float* from, std::uint16_t* to, std::size_t n, Rounding rounding,
                             std::uint64_t first, unsigned* too_large) {
  bool fits = true;
  for (std::size_t i = FirstElement(); i < n; i += ElementStride()) {
    to[i] = NarrowOne<Type, NarrowWhat::kGiven>(__ldcs(from + i), rounding, first + i, fits);
  }
  if (!fits) *too_large = 1;
}

template <class Type>
__global__ void WidenKernel(const __grid_constant__ Pieces<NarrowPiece> pieces,
                            const std::uint16_t* from, float* to) {
  const std::ptrdiff_t first = pieces.of[blockIdx.y].first;
  const std::size_t n = pieces.of[blockIdx.y].count;
  for (std::size_t i = FirstElement(); i < n; i += ElementStride()) {
    to[first + i] = Type::Widen(__ldcs(from + first + i));
  }
}

// The most terms that fit into the kernel's arguments; more are in a table in the device's memory.
constexpr unsigned kMostNarrowTerms = 64;
struct NarrowTerms {
  NarrowInput of[kMostNarrowTerms];  // data: of the first piece
  const NarrowInput* table;          // null: there are no more
  unsigned count;
  bool askew;  // the vectors have different alignments to 16 bytes
};

// There is a row of blocks for each piece: eight numbers at once where they are aligned as words,
// and the rest at both ends one by one.
template <class Type>
__global__ void NarrowSumKernel(const __grid_constant__ NarrowTerms terms,
                                const __grid_constant__ Pieces<NarrowPiece> pieces,
                                std::uint16_t* out, Rounding rounding, std::uint64_t place,
                                unsigned* too_large) {
  const std::ptrdiff_t first = pieces.of[blockIdx.y].first;
  const std::size_t n = pieces.of[blockIdx.y].count;
  out += first;
  place += static_cast<std::uint64_t>(first);
  const NarrowInput* const inputs = terms.table != nullptr ? terms.table : terms.of;
  const std::size_t lead =
      terms.askew ? n
                  : min(n, static_cast<std::size_t>((kNarrowInWord - SkewOf(out)) % kNarrowInWord));
  const std::size_t eights = (n - lead) / kNarrowInWord;
  bool fits = true;
  for (std::size_t i = FirstElement(); i < eights; i += ElementStride()) {
    const std::size_t at = lead + kNarrowInWord * i;
    float sum[kNarrowInWord];
    for (unsigned t = 0; t < terms.count; ++t) {
      const uint4 word = __ldcs(reinterpret_cast<const uint4*>(inputs[t].data + first + at));
#pragma unroll
      for (unsigned e = 0; e < kNarrowInWord; ++e) {
        const float term = __fmul_rn(Type::Widen(Half(word, e)), inputs[t].weight);
        sum[e] = t == 0 ? term : __fadd_rn(sum[e], term);
      }
    }
    std::uint32_t narrow[kNarrowInWord];
#pragma unroll
    for (unsigned e = 0; e < kNarrowInWord; ++e) {
      narrow[e] = NarrowOne<Type, NarrowWhat::kSum>(sum[e], rounding, place + at + e, fits);
    }
    *reinterpret_cast<uint4*>(out + at) =
        uint4{narrow[0] | narrow[1] << 16, narrow[2] | narrow[3] << 16, narrow[4] | narrow[5] << 16,
              narrow[6] | narrow[7] << 16};
  }
  for (std::size_t i = FirstElement(); i < n - kNarrowInWord * eights; i += ElementStride()) {
    const std::size_t at = i < lead ? i : i + kNarrowInWord * eights;
    float sum = 0;
    for (unsigned t = 0; t < terms.count; ++t) {
      const float term =
          __fmul_rn(Type::Widen(__ldcs(inputs[t].data + first + at)), inputs[t].weight);
      sum = t == 0 ? term : __fadd_rn(sum, term);
    }
    out[at] = NarrowOne<Type, NarrowWhat::kSum>(sum, rounding, place + at, fits);
  }
  if (!fits) *too_large = 1;
}

}  // namespace lockstep::worker::cuda
