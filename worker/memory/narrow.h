// Numbers of 16 bits, as stored and sent in contributions and sums with exchange.dtype = bf16 or
// fp16, and sums over them.
//
// As in reduce.h, the bits of a result depend on the values and their order alone. With random
// rounding they also depend on the key and the place of each number. A number takes one rounding to
// 16 bits, and is exact on its way back; calculations between are in FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/ids.h"
#include "worker/memory/numbers.h"

namespace lockstep::worker {

// The names are "fp32", "bf16", "fp16".
NumberType NumberTypeOf(std::string_view name);

// The rounding of one contribution to the round in which it was begun.
Rounding RoundingOfContribution(std::uint64_t seed, RoundId round, WorkerId worker, PartIndex part);
// The rounding of a round's sums, in any attempt.
Rounding RoundingOfSums(std::uint64_t seed, RoundId round);

// In all functions below `type` has 16 bits, and outputs overlap no inputs.

// to[i] = from[i] in 16 bits, where from[i] has the place `first` + i. Infinities stay, and a NaN
// stays a NaN. A number that rounding to the nearest would make infinite (in fp16 from 65520 on)
// becomes the largest number instead: 65504, in bf16 about 3.4e38. A smaller number above the
// largest one becomes the largest with either rounding. False: there was a number that rounding to
// the nearest would make infinite, an infinity or a NaN.
bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
            const Rounding& rounding = {}, std::uint64_t first = 0);

// Like Narrow to the nearest, for sums that were made elsewhere from finite terms. An infinite one
// is thus too large like others, and becomes the largest number, in `sums` the largest of FP32.
bool NarrowSums(NumberType type, float* sums, std::uint16_t* to, std::size_t n);

void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n);

// Narrow of the WeightedSum (reduce.h) of the widened inputs, except for infinite sums. With finite
// terms such a sum is too large for FP32 too: it becomes the largest number, of its sign. Inputs
// may be memory that another process rewrites meanwhile. False: a sum is too large, or a term is
// not finite.
bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                 std::size_t n, const Rounding& rounding = {}, std::uint64_t first = 0);

}  // namespace lockstep::worker
