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
#include "worker/memory/numbers.h"

namespace lockstep::worker {

// "fp32", "bf16", "fp16".
NumberType NumberTypeOf(std::string_view name);

// Of one contribution, to the round that it was begun in.
Rounding RoundingOfContribution(std::uint64_t seed, RoundId round, WorkerId worker, PartIndex part);
// Of a round's sums, in whichever attempt.
Rounding RoundingOfSums(std::uint64_t seed, RoundId round);

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

// What Narrow makes of the WeightedSum (reduce.h) of the inputs widened, but for a sum that is
// infinite, which of finite terms is one that is too large for FP32 as well: it becomes the largest
// number, of its sign. Inputs may be memory that another process rewrites meanwhile. False: there
// was a sum that is too large, or a term that is not finite.
bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                 std::size_t n, const Rounding& rounding = {}, std::uint64_t first = 0);

}  // namespace lockstep::worker
