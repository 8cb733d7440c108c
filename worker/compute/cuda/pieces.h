// Pieces of vectors, for kernels that go through many of them at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::worker::cuda {

// The most pieces that fit into a kernel's arguments, beside the rest.
constexpr unsigned kMostPieces = 128;

template <class Piece>
struct Pieces {
  Piece of[kMostPieces];
  unsigned count = 0;

  bool full() const { return count == kMostPieces; }
  void Add(const Piece& piece) { of[count++] = piece; }
  std::size_t Longest() const {
    std::size_t longest = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (of[i].count > longest) longest = of[i].count;
    }
    return longest;
  }
};

// The distance in floats from `from` to `to`, which may be of another vector.
inline std::ptrdiff_t Distance(const float* from, const float* to) {
  return (reinterpret_cast<std::intptr_t>(to) - reinterpret_cast<std::intptr_t>(from)) /
         static_cast<std::ptrdiff_t>(sizeof(float));
}

}  // namespace lockstep::worker::cuda
