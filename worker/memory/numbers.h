// The types of the numbers in contributions and sums (exchange.dtype), and the rounding of numbers
// to 16 bits. Narrow.h's loops and a device's kernels share these words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::worker {

enum class NumberType : std::uint8_t { kFp32, kBf16, kFp16 };

constexpr std::size_t NumberBytes(NumberType type) { return type == NumberType::kFp32 ? 4 : 2; }

// The rounding of a number between two numbers of the type. It goes to the nearest, and in a tie to
// the even one. Or it goes to either, the nearer the likelier, so that the mean of many roundings
// is the number itself. (That is stochastic rounding: Gupta et al., "Deep Learning with Limited
// Numerical Precision", 2015.) The random bits are a function of the key and of the number's place
// among the parameters: any worker, in any pieces, makes the same bits.
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0;
};

struct NarrowInput {
  const std::uint16_t* data = nullptr;
  float weight = 1.0f;
};

}  // namespace lockstep::worker
