// The types of the numbers that contributions and sums are made of (exchange.dtype), and how
// numbers go to 16 bits: words that narrow.h's loops and a device's kernels have in common.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::worker {

enum class NumberType : std::uint8_t { kFp32, kBf16, kFp16 };

constexpr std::size_t NumberBytes(NumberType type) { return type == NumberType::kFp32 ? 4 : 2; }

// To which of the two numbers beside it a number goes that the type has not: to the nearest, and in
// a tie to the even one; or to either, the nearer the likelier, so that the mean of many roundings
// is the number itself (stochastic rounding; Gupta et al., "Deep Learning with Limited Numerical
// Precision", 2015). The random bits are a function of the key and of the number's place among the
// parameters: whoever rounds it, in whichever pieces, makes the same bits.
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0;
};

struct NarrowInput {
  const std::uint16_t* data = nullptr;
  float weight = 1.0f;
};

}  // namespace lockstep::worker
