#include "worker/memory/sparse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/vector_clones.h"

namespace lockstep::worker {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;

using Magnitudes = std::array<std::uint32_t, kSparseBlock>;
using Places = std::array<std::uint16_t, kSparseBlock>;

// It reads them as bits, which order as the magnitudes do; a NaN is larger than all numbers.
LOCKSTEP_VECTOR_CLONES std::uint32_t ReadMagnitudes(const float* block, std::size_t n,
                                                    std::uint32_t* magnitudes) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, block + i, sizeof bits);
    magnitudes[i] = bits & 0x7fffffff;
    largest = std::max(largest, magnitudes[i]);
  }
  return largest;
}

LOCKSTEP_VECTOR_CLONES std::uint32_t CountFrom(const std::uint32_t* magnitudes, std::size_t n,
                                               std::uint32_t least) {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < n; ++i) count += magnitudes[i] >= least ? 1 : 0;
  return count;
}

// Finds the places of the `entries` largest, fewer than n, in ascending order.
void Choose(const Magnitudes& magnitudes, std::size_t n, std::uint32_t largest,
            std::uint32_t entries, Places& places) {
  std::uint32_t least = 0;  // at least `entries` are at or above it
  for (std::uint32_t most = largest; least < most;) {
    const std::uint32_t middle = most - (most - least) / 2;
    const std::uint32_t count = CountFrom(magnitudes.data(), n, middle);
    if (count >= entries) least = middle;
    if (count <= entries) most = count < entries ? middle - 1 : middle;
  }
  std::uint32_t equal = entries - CountFrom(magnitudes.data(), n, least + 1);
  std::uint32_t chosen = 0;
  for (std::size_t i = 0; i < n && chosen < entries; ++i) {
    if (magnitudes[i] < least) continue;
    if (magnitudes[i] == least) {
      if (equal == 0) continue;
      --equal;
    }
    places[chosen++] = static_cast<std::uint16_t>(i);
  }
  LOCKSTEP_CHECK(chosen == entries, "{} of {} largest numbers", chosen, entries);
}

// Writes the places of `count` entries; the numbers are written already.
void PutPlaces(NumberType type, std::uint32_t entries, const Places& places, std::uint32_t count,
               std::byte* to) {
  const std::size_t number = NumberBytes(type);
  std::memset(to + count * number, 0, (entries - count) * number);
  std::byte* at = to + entries * number;
  std::memset(at, 0, SparseBlockNumbers(entries, number) * number - entries * number);
  if (!SparsePlacesAreBits(entries)) {
    std::memcpy(at, places.data(), count * sizeof(std::uint16_t));
    return;
  }
  std::array<std::uint64_t, kSparseMaskBytes / sizeof(std::uint64_t)> mask = {};
  for (std::uint32_t e = 0; e < count; ++e) {
    mask[places[e] / 64] |= std::uint64_t{1} << (places[e] % 64);
  }
  std::memcpy(at, mask.data(), sizeof mask);
}

// Calls `take(entry, place)`; no place is beyond the block, whatever bytes are there.
template <class Take>
void ForEachPlace(std::uint32_t entries, const std::byte* from, Take take) {
  if (!SparsePlacesAreBits(entries)) {
    for (std::uint32_t e = 0; e < entries; ++e) {
      std::uint16_t place;
      std::memcpy(&place, from + e * sizeof place, sizeof place);
      take(e, place % kSparseBlock);
    }
    return;
  }
  std::uint32_t e = 0;
  for (std::size_t word = 0; word < kSparseMaskBytes / sizeof(std::uint64_t); ++word) {
    std::uint64_t bits;
    std::memcpy(&bits, from + word * sizeof bits, sizeof bits);
    for (; bits != 0 && e < entries; bits &= bits - 1) {
      take(e++, word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
}

}  // namespace

bool TakeLargest(NumberType type, std::uint32_t entries, float* block, std::size_t n,
                 std::byte* to) {
  LOCKSTEP_CHECK(entries <= kSparseBlock && n <= kSparseBlock, "{} of a block of {}", entries, n);
  Magnitudes magnitudes;
  Places places;
  const std::uint32_t largest = ReadMagnitudes(block, n, magnitudes.data());
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(entries, n));
  if (count == n) {
    for (std::size_t i = 0; i < n; ++i) places[i] = static_cast<std::uint16_t>(i);
  } else {
    Choose(magnitudes, n, largest, count, places);
  }
  std::array<float, kSparseBlock> numbers;
  for (std::uint32_t e = 0; e < count; ++e) numbers[e] = block[places[e]];
  if (type == NumberType::kFp32) {
    std::memcpy(to, numbers.data(), count * sizeof(float));
    for (std::uint32_t e = 0; e < count; ++e) block[places[e]] = 0;
  } else {
    auto* narrow = reinterpret_cast<std::uint16_t*>(to);
    // A number that is too large for the type is sent as its largest number, and the rest of it
    // later.
    (void)Narrow(type, numbers.data(), narrow, count);
    std::array<float, kSparseBlock> sent;
    Widen(type, narrow, sent.data(), count);
    for (std::uint32_t e = 0; e < count; ++e) block[places[e]] = numbers[e] - sent[e];
  }
  PutPlaces(type, entries, places, count, to);
  return largest < kInfinity;
}

bool PutNonZero(NumberType type, std::uint32_t entries, const float* block, std::size_t n,
                std::byte* to) {
  Places places;
  std::array<float, kSparseBlock> numbers;
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < n && count < entries; ++i) {
    places[count] = static_cast<std::uint16_t>(i);
    numbers[count] = block[i];
    count += block[i] != 0 ? 1 : 0;
  }
  bool fits = true;
  if (type == NumberType::kFp32) {
    std::memcpy(to, numbers.data(), count * sizeof(float));
  } else {
    fits = NarrowSums(type, numbers.data(), reinterpret_cast<std::uint16_t*>(to), count);
  }
  PutPlaces(type, entries, places, count, to);
  return fits;
}

void AddSparse(NumberType type, std::uint32_t entries, const std::byte* from, float weight,
               float* block) {
  const std::byte* places = from + entries * NumberBytes(type);
  if (type == NumberType::kFp32) {
    ForEachPlace(entries, places, [&](std::uint32_t e, std::size_t place) {
      float number;
      std::memcpy(&number, from + e * sizeof number, sizeof number);
      block[place] += weight * number;
    });
    return;
  }
  std::array<float, kSparseBlock> numbers;
  Widen(type, reinterpret_cast<const std::uint16_t*>(from), numbers.data(), entries);
  ForEachPlace(entries, places,
               [&](std::uint32_t e, std::size_t place) { block[place] += weight * numbers[e]; });
}

}  // namespace lockstep::worker
