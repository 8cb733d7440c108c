// A fast digest of bits, to compare copies: of the same parameters on several workers, of a
// checkpoint on the disk with what was written. The same on every machine, and part of what workers
// say to each other and of the files: its definition (digest.cc) may not change without a version.
// Copies that differ in a bit differ in it, by all odds; it finds accidents and is no proof against
// somebody who looks for collisions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Digest128&) const = default;
};

// 32 hexadecimal digits, lower case, the high half first.
std::string ToString(const Digest128& digest);
std::optional<Digest128> DigestFromString(std::string_view text);

Digest128 DigestOf(std::span<const float> values);

// The digest of a sequence of FP32 values, little-endian, piece by piece; pieces may end anywhere.
// Bytes that do not fill the last value count as one that is filled with zeros.
class DigestStream {
 public:
  DigestStream();
  void Update(std::span<const std::byte> bytes);
  // Of all that came so far; more may follow.
  Digest128 Digest() const;

 private:
  static constexpr std::size_t kLanes = 8;
  static constexpr std::size_t kBlockBytes = kLanes * sizeof(std::uint64_t);

  void AddBlock(const std::byte* block);

  std::array<std::uint64_t, kLanes> lanes_;
  std::array<std::byte, kBlockBytes> block_;  // that is not full yet
  std::size_t in_block_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace lockstep
