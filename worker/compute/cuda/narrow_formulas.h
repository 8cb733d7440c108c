// Numbers of 16 bits for one element, with the bits of memory/narrow.cc's loops. It uses nothing of
// CUDA, so that a test can compare it with the CPU's bits on any machine; kernels are compiled
// without contraction into fused multiply-adds.
#pragma once

#include <bit>
#include <cstdint>

#include "base/random.h"
#include "worker/memory/numbers.h"

namespace lockstep::worker::cuda {

struct Bf16Number {
  static constexpr NumberType kType = NumberType::kBf16;
  static constexpr std::uint32_t kTooLarge = 0x7f7f8000;  // it and all above round to infinity
  static constexpr std::uint32_t kLargest = 0x7f7f;
  static constexpr std::uint32_t kInfinite = 0x7f80;

  static constexpr float Widen(std::uint32_t narrow) { return std::bit_cast<float>(narrow << 16); }
  // Takes a value below kTooLarge, without its sign.
  static constexpr std::uint32_t Round(std::uint32_t value) {
    return (value + 0x7fff + ((value >> 16) & 1)) >> 16;
  }
  static constexpr std::uint32_t RoundAtRandom(std::uint32_t value, std::uint32_t random) {
    const std::uint32_t narrow = (value + (random >> 16)) >> 16;
    return narrow < kLargest ? narrow : kLargest;
  }
};

struct Fp16Number {
  static constexpr NumberType kType = NumberType::kFp16;
  static constexpr std::uint32_t kTooLarge = 0x477ff000;
  static constexpr std::uint32_t kLargest = 0x7bff;
  static constexpr std::uint32_t kInfinite = 0x7c00;
  static constexpr std::uint32_t kBias = (127 - 15) << 23;
  static constexpr std::uint32_t kSmallestBits = kBias + (1u << 23);

  static constexpr float Widen(std::uint32_t narrow) {
    const std::uint32_t sign = (narrow & 0x8000) << 16;
    const std::uint32_t shifted = (narrow & 0x7fff) << 13;
    const std::uint32_t exponent = narrow & 0x7c00;
    std::uint32_t bits = shifted + kBias;
    if (exponent == 0x7c00) bits = shifted + 2 * kBias;
    if (exponent == 0) {
      bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted + kSmallestBits) - 0x1p-14f);
    }
    return std::bit_cast<float>(bits | sign);
  }
  static constexpr std::uint32_t Round(std::uint32_t value) {
    if (value >= kSmallestBits) return (value - kBias + 0xfff + ((value >> 13) & 1)) >> 13;
    // The last bit of 0.5 has the weight of the last bit of the small numbers: the addition rounds
    // them.
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(value) + 0.5f) - 0x3f000000;
  }
  static constexpr std::uint32_t RoundAtRandom(std::uint32_t value, std::uint32_t random) {
    if (value >= kSmallestBits) {
      const std::uint32_t narrow = (value - kBias + (random >> 19)) >> 13;
      return narrow < kLargest ? narrow : kLargest;
    }
    const float units = std::bit_cast<float>(value) * 0x1p24f;
    const auto whole = static_cast<std::int32_t>(units);
    const float left = units - static_cast<float>(whole);
    const bool up =
        static_cast<std::int32_t>(random >> 1) < static_cast<std::int32_t>(left * 0x1p31f);
    return static_cast<std::uint32_t>(whole) + (up ? 1 : 0);
  }
};

// The random bits of a place (narrow.cc's AtRandom).
constexpr std::uint32_t RandomBits(std::uint64_t key, std::uint64_t place) {
  const std::uint64_t words = Mix64(key ^ (place >> 32));
  std::uint32_t x = static_cast<std::uint32_t>(place) + static_cast<std::uint32_t>(words);
  x ^= x >> 17;
  x *= 0xed5ad4bb;
  x += static_cast<std::uint32_t>(words >> 32);
  x ^= x >> 11;
  x *= 0xac4c1b51;
  x ^= x >> 15;
  x *= 0x31848bab;
  return x ^ (x >> 14);
}

// kSum: a sum of finite terms, so that infinity is a number that is too large like others.
enum class NarrowWhat : std::uint8_t { kGiven, kSum };

// `fits` becomes false where the value is too large, infinite or not a number.
template <class Type, NarrowWhat kWhat>
constexpr std::uint16_t NarrowOne(float number, const Rounding& rounding, std::uint64_t place,
                                  bool& fits) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t value = bits & 0x7fffffff;
  const std::uint32_t sign = (bits & 0x80000000) >> 16;
  if (value < Type::kTooLarge) {
    const std::uint32_t narrow = rounding.stochastic
                                     ? Type::RoundAtRandom(value, RandomBits(rounding.key, place))
                                     : Type::Round(value);
    return static_cast<std::uint16_t>(sign | narrow);
  }
  fits = false;
  std::uint32_t narrow = Type::kLargest;
  if (value == 0x7f800000 && kWhat == NarrowWhat::kGiven) narrow = Type::kInfinite;
  if (value > 0x7f800000) narrow = Type::kInfinite | 0x40;  // one bit of a NaN that both types have
  return static_cast<std::uint16_t>(sign | narrow);
}

}  // namespace lockstep::worker::cuda
