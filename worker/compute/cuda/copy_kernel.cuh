// The kernel of copies.h, in code that a test also compiles for the CPU (tests/cuda_on_cpu).
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/compute/cuda/element.cuh"
#include "worker/compute/cuda/pieces.h"

namespace lockstep::worker::cuda {

struct CopyPiece {
  const std::uint16_t* from;
  std::uint16_t* to;
  std::size_t count;
};

// Words of 16, 4 or 2 bytes.
template <class Word>
__device__ void CopyWords(const std::uint16_t* from, std::uint16_t* to, std::size_t words) {
  const auto* const source = reinterpret_cast<const Word*>(from);
  auto* const target = reinterpret_cast<Word*>(to);
  for (std::size_t i = FirstElement(); i < words; i += ElementStride()) {
    target[i] = __ldcs(source + i);
  }
}

// There is a row of blocks for each piece. It copies the largest words for which both addresses are
// aligned alike, and the rest at both ends number by number.
__global__ void CopyKernel(const __grid_constant__ Pieces<CopyPiece> pieces) {
  const std::uint16_t* const from = pieces.of[blockIdx.y].from;
  std::uint16_t* const to = pieces.of[blockIdx.y].to;
  const std::size_t n = pieces.of[blockIdx.y].count;
  const auto apart = reinterpret_cast<std::uintptr_t>(from) ^ reinterpret_cast<std::uintptr_t>(to);
  const std::size_t in_word = apart % sizeof(uint4) == 0      ? sizeof(uint4) / sizeof *to
                              : apart % sizeof(unsigned) == 0 ? sizeof(unsigned) / sizeof *to
                                                              : 1;
  const std::size_t at = reinterpret_cast<std::uintptr_t>(to) / sizeof *to % in_word;
  const std::size_t lead = min(n, (in_word - at) % in_word);
  const std::size_t words = (n - lead) / in_word;
  if (in_word == sizeof(uint4) / sizeof *to) {
    CopyWords<uint4>(from + lead, to + lead, words);
  } else if (in_word > 1) {
    CopyWords<unsigned>(from + lead, to + lead, words);
  } else {
    CopyWords<std::uint16_t>(from, to, words);
  }
  for (std::size_t i = FirstElement(); i < n - in_word * words; i += ElementStride()) {
    const std::size_t one = i < lead ? i : i + in_word * words;
    to[one] = __ldcs(from + one);
  }
}

}  // namespace lockstep::worker::cuda
