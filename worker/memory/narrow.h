// Numbers of 16 bits, which contributions and sums lie and travel in with exchange.dtype = bf16 or
// fp16, and sums over them.
//
// As in reduce.h the bits of a result depend on the values and their order alone. To 16 bits a
// number goes by one rounding, to the nearest and in a tie to the even one; back it is exact; what
// is in between is FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::worker {

enum class NumberType : std::uint8_t { kFp32, kBf16, kFp16 };

// "fp32", "bf16", "fp16".
NumberType NumberTypeOf(std::string_view name);
constexpr std::size_t NumberBytes(NumberType type) { return type == NumberType::kFp32 ? 4 : 2; }

// `type` is one of 16 bits in all that follows, and what is written overlaps nothing that is read.

// to[i] = from[i] in 16 bits. Infinities stay, and a NaN stays a NaN. What rounding would make
// infinite (in fp16 from 65520 on) becomes the largest number instead: 65504, in bf16 about 3.4e38.
// False: there was such a number among them, an infinity or a NaN.
bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n);

// As Narrow, of sums that were made elsewhere: of finite terms, so that an infinite one is too
// large like others, and becomes the largest number, in `sums` the largest of FP32.
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
                 std::size_t n);

}  // namespace lockstep::worker
