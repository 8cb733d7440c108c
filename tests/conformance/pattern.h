// What the serving side of the tests serves: bytes that tell where they come from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/random.h"
#include "transport/transport.h"

namespace lockstep::transport {

inline constexpr std::uint32_t kPatternKind = 1;

// The pattern repeats after so many bytes. Odd on purpose: equal pieces of a long transfer come
// from different places.
inline constexpr std::uint64_t kPatternPeriod = (8u << 20) + 4099;

// The memory behind it: a period and room for the largest piece that begins at its end.
inline std::vector<std::byte> MakePattern(std::size_t max_piece_bytes) {
  std::vector<std::byte> pattern(kPatternPeriod + max_piece_bytes);
  for (std::size_t i = 0; i < pattern.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = Mix64(i % kPatternPeriod / sizeof(std::uint64_t));
    std::memcpy(&pattern[i], &word, std::min(sizeof(word), pattern.size() - i));
  }
  return pattern;
}

inline PieceName PatternPiece(std::uint64_t offset, std::uint64_t bytes, std::uint64_t round = 0) {
  PieceName name;
  name.kind = kPatternKind;
  name.round = round;
  name.offset = offset;
  name.bytes = bytes;
  return name;
}

// Serves pieces of the pattern that lies at the start of `region`; all others are gone.
inline ServeAnswer ServePattern(RegionId region, const PieceName& name) {
  if (name.kind != kPatternKind) return {};
  return {.have = true, .slice = {region, name.offset % kPatternPeriod, name.bytes}};
}

inline bool IsPattern(std::span<const std::byte> pattern, const PieceName& name,
                      std::span<const std::byte> bytes) {
  return bytes.size() == name.bytes &&
         std::ranges::equal(bytes, pattern.subspan(name.offset % kPatternPeriod, name.bytes));
}

}  // namespace lockstep::transport
