// Numbers of 16 bits, which contributions and sums lie and travel in with exchange.dtype = bf16 or
// fp16, and sums over them.
//
// As in reduce.h the bits of a result depend on the values and their order alone, and where they
// are rounded at random on the key and the place of each. To 16 bits a number goes by one rounding;
// back it is exact; what is in between is FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace lockstep::worker {

enum class NumberType : std::uint8_t { kFp32, kBf16, kFp16 };

// "fp32", "bf16", "fp16".
NumberType NumberTypeOf(std::string_view name);
constexpr std::size_t NumberBytes(NumberType type) { return type == NumberType::kFp32 ? 4 : 2; }

// To which of the two numbers beside it a number goes that the type has not: to the nearest, and in
// a tie to the even one; or to either, the nearer the likelier, so that the mean of many roundings
// is the number itself (stochastic rounding; Gupta et al., "Deep Learning with Limited Numerical
// Precision", 2015). The random bits are a function of the key and of the number's place among the
// parameters: whoever rounds it, in whichever pieces, makes the same bits.
struct Rounding {
  bool stochastic = false;
  std::uint64_t key = 0;

  // Of one contribution, to the round that it was begun in.
  static Rounding OfContribution(std::uint64_t seed, RoundId round, WorkerId worker,
                                 PartIndex part);
  // Of a round's sums, in whichever attempt.
  static Rounding OfSums(std::uint64_t seed, RoundId round);
};

// `type` is one of 16 bits in all that follows, and what is written overlaps nothing that is read.

// to[i] = from[i] in 16 bits, where from[i] has the place `first` + i. Infinities stay, and a NaN
// stays a NaN. What rounding to the nearest would make infinite (in fp16 from 65520 on) becomes the
// largest number instead: 65504, in bf16 about 3.4e38. What is below that and above the largest
// number becomes the largest with either rounding. False: there was a number that rounding to the
// nearest would make infinite, an infinity or a NaN.
bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
            const Rounding& rounding = {}, std::uint64_t first = 0);

// As Narrow to the nearest, of sums that were made elsewhere: of finite terms, so that an infinite
// one is too large like others, and becomes the largest number, in `sums` the largest of FP32.
bool NarrowSums(NumberType type, float* sums, std::uint16_t* to, std::size_t n);

void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n);

struct NarrowInput {
  const std::uint16_t* data = nullptr;
  float weight = 1.0f;
};

// What Narrow makes of the WeightedSum (reduce.h) of the inputs widened, but for a sum that is
// infinite, which of finite terms is one that is too large for FP32 as well: it becomes the largest
// number, of its sign. Inputs may be memory that another process rewrites meanwhile. False: there
// was a sum that is too large, or a term that is not finite.
bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                 std::size_t n, const Rounding& rounding = {}, std::uint64_t first = 0);

}  // namespace lockstep::worker
