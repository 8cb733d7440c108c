// The form of a vector of which only a few numbers are kept, in memory and on the wire
// (exchange.compression). The vector is cut into blocks, and each block has as many entries,
// numbers with their places in it. So the size of a block is known without looking into it.
//
// A block has `entries` of `number_bytes` each: first the numbers, little-endian, then their
// places, then zeros up to a multiple of number_bytes. Places are 16 bits each, counted from the
// block's start. Where that takes fewer bytes, they are one bit for each number of the block, whose
// set bits go with the numbers in turn. Unused entries are zeros at place 0, or have no bit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

inline constexpr std::uint64_t kSparseBlock = 1024;  // numbers; the last of a bucket may be shorter
inline constexpr std::uint64_t kSparseMaskBytes = kSparseBlock / 8;

constexpr bool SparsePlacesAreBits(std::uint64_t entries) {
  return entries * sizeof(std::uint16_t) > kSparseMaskBytes;
}

// The size in numbers, so that offsets and lengths in the exchange stay multiples of one.
constexpr std::uint64_t SparseBlockNumbers(std::uint64_t entries, std::uint64_t number_bytes) {
  const std::uint64_t places = std::min(entries * sizeof(std::uint16_t), kSparseMaskBytes);
  return entries + (places + number_bytes - 1) / number_bytes;
}

}  // namespace lockstep
