// A fast digest of bits, to compare copies: the parameters on several workers, or a checkpoint on
// the disk with the bytes that were written. It is the same on every machine, and part of messages
// and files: its definition (digest.cc) may not change without a version. Copies that differ in a
// bit almost certainly differ in the digest. It finds accidents; it does not protect from somebody
// who looks for collisions.
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

// Writes 32 hexadecimal digits, lower case, the high half first.
std::string ToString(const Digest128& digest);
std::optional<Digest128> DigestFromString(std::string_view text);

Digest128 DigestOf(std::span<const float> values);

// The digest of a sequence of FP32 values, little-endian, piece by piece; pieces may end anywhere.
// Bytes that do not fill the last value count as one that is filled with zeros.
class DigestStream {
 public:
  DigestStream();
  void Update(std::span<const std::byte> bytes);
  // The digest of all bytes so far; more may follow.
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
