// Conversions use integer arithmetic on vectors. The same few operations work on every instruction
// set and number by number, so there is one set of bits and no dependence on a CPU's features
// (F16C, AVX512-BF16). They are a handful for each number, and the loops wait for memory.
#include "worker/memory/narrow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "worker/memory/narrow_kernels.h"

namespace lockstep::worker {
namespace {

#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

template <class T, std::size_t kBytes>
using Vector [[gnu::vector_size(kBytes)]] = T;
// Works at any address.
template <class T, std::size_t kBytes>
using LooseVector [[gnu::vector_size(kBytes), gnu::aligned(alignof(T)), gnu::may_alias]] = T;

// A vector of kBytes of FP32. Arguments are references throughout, as vectors wider than the
// baseline's have no calling convention there.
template <std::size_t kBytes>
struct Lanes {
  static constexpr std::size_t kCount = kBytes / sizeof(float);
  using Floats = Vector<float, kBytes>;
  using Bits = Vector<std::uint32_t, kBytes>;
  using Signed = Vector<std::int32_t, kBytes>;  // the type of comparisons and of their results
  using LooseFloats = LooseVector<float, kBytes>;
  using LooseBits = LooseVector<std::uint32_t, kBytes>;
  using LooseNarrow = LooseVector<std::uint16_t, kBytes / 2>;
  using NarrowBits = Vector<std::uint16_t, kBytes / 2>;

  LOCKSTEP_INLINE static void Load(const std::uint16_t* from, Bits& bits) {
    bits = __builtin_convertvector(*reinterpret_cast<const LooseNarrow*>(from), Bits);
  }
  LOCKSTEP_INLINE static void Load(const float* from, Bits& bits) {
    bits = *reinterpret_cast<const LooseBits*>(from);
  }
  LOCKSTEP_INLINE static void Store(const Bits& bits, std::uint16_t* to) {
    *reinterpret_cast<LooseNarrow*>(to) = __builtin_convertvector(bits, NarrowBits);
  }
  LOCKSTEP_INLINE static void Take(const Signed& where, const Bits& other, Bits& bits) {
    const auto mask = reinterpret_cast<Bits>(where);
    bits = (bits & ~mask) | (other & mask);
  }
  // Takes values without a sign.
  LOCKSTEP_INLINE static void TakeAtMost(std::uint32_t most, Bits& bits) {
    Take(reinterpret_cast<Signed>(bits) > static_cast<std::int32_t>(most), Bits{} + most, bits);
  }
};

constexpr std::uint32_t kValue = 0x7fffffff;  // all but the sign
constexpr std::int32_t kInfinity = 0x7f800000;

// The type is the upper half of FP32.
struct Bf16 {
  static constexpr std::int32_t kTooLarge = 0x7f7f8000;  // it and all above round to infinity
  static constexpr std::uint32_t kLargest = 0x7f7f;

  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void Widen(const typename Lanes<kBytes>::Bits& narrow,
                                    typename Lanes<kBytes>::Floats& wide) {
    wide = reinterpret_cast<typename Lanes<kBytes>::Floats>(narrow << 16);
  }

  // Takes a value below kTooLarge.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void Round(const typename Lanes<kBytes>::Bits& bits,
                                    typename Lanes<kBytes>::Bits& narrow) {
    narrow = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  // It adds as many random bits as are cut off, so the cut part carries in proportion to its size.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void RoundAtRandom(const typename Lanes<kBytes>::Bits& bits,
                                            const typename Lanes<kBytes>::Bits& random,
                                            typename Lanes<kBytes>::Bits& narrow) {
    using L = Lanes<kBytes>;
    narrow = ((bits & kValue) + (random >> 16)) >> 16;
    L::TakeAtMost(kLargest, narrow);
    narrow |= (bits & ~kValue) >> 16;
  }
  // Replaces Round's result for other values.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void TakeTooLarge(const typename Lanes<kBytes>::Bits& bits,
                                           typename Lanes<kBytes>::Bits& narrow) {
    using L = Lanes<kBytes>;
    const auto value = reinterpret_cast<typename L::Signed>(bits & kValue);
    const typename L::Bits sign = (bits & ~kValue) >> 16;
    L::Take(value >= kTooLarge, sign | kLargest, narrow);
    L::Take(value == kInfinity, sign | 0x7f80, narrow);
    L::Take(value > kInfinity, (bits >> 16) | 0x40, narrow);  // rounding could end a NaN
  }
};

// IEEE binary16: five bits of exponent, of bias 15, and ten of the number.
struct Fp16 {
  static constexpr std::int32_t kTooLarge = 0x477ff000;  // 65520
  static constexpr std::uint32_t kLargest = 0x7bff;
  static constexpr std::uint32_t kBias = (127 - 15) << 23;  // between the two exponents
  static constexpr std::uint32_t kSmallestBits = kBias + (1u << 23);
  static constexpr float kSmallest = 0x1p-14f;  // of the normal numbers: these bits

  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void Widen(const typename Lanes<kBytes>::Bits& narrow,
                                    typename Lanes<kBytes>::Floats& wide) {
    using L = Lanes<kBytes>;
    const typename L::Bits shifted = (narrow & 0x7fff) << 13;
    const auto exponent = reinterpret_cast<typename L::Signed>(narrow & 0x7c00);
    typename L::Bits bits = shifted + kBias;
    L::Take(exponent == 0x7c00, shifted + 2 * kBias, bits);
    // It has no exponent: it counts as if it had the smallest one, minus that one's hidden bit.
    const auto hidden = reinterpret_cast<typename L::Floats>(shifted + kSmallestBits);
    L::Take(exponent == 0, reinterpret_cast<typename L::Bits>(hidden - kSmallest), bits);
    wide = reinterpret_cast<typename L::Floats>(bits | ((narrow & 0x8000) << 16));
  }

  // Takes a value below kTooLarge.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void Round(const typename Lanes<kBytes>::Bits& bits,
                                    typename Lanes<kBytes>::Bits& narrow) {
    using L = Lanes<kBytes>;
    const typename L::Bits value = bits & kValue;
    narrow = (value - kBias + 0xfff + ((value >> 13) & 1)) >> 13;
    // The last bit of 0.5 has the weight of the last bit of the small numbers: the addition rounds
    // them.
    const typename L::Floats sum = reinterpret_cast<typename L::Floats>(value) + 0.5f;
    L::Take(reinterpret_cast<typename L::Signed>(value) < static_cast<std::int32_t>(kSmallestBits),
            reinterpret_cast<typename L::Bits>(sum) - 0x3f000000, narrow);
    narrow |= (bits & ~kValue) >> 16;
  }
  // Rounds small numbers in units of the last bit of their type. The remainder of each is compared
  // with 31 random bits: below 2^-8 units, the share that is rounded up is exact to 2^-31 of a
  // unit.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void RoundAtRandom(const typename Lanes<kBytes>::Bits& bits,
                                            const typename Lanes<kBytes>::Bits& random,
                                            typename Lanes<kBytes>::Bits& narrow) {
    using L = Lanes<kBytes>;
    const typename L::Bits value = bits & kValue;
    narrow = (value - kBias + (random >> 19)) >> 13;
    L::TakeAtMost(kLargest, narrow);
    const auto small =
        reinterpret_cast<typename L::Signed>(value) < static_cast<std::int32_t>(kSmallestBits);
    const typename L::Floats units =
        reinterpret_cast<typename L::Floats>(value & reinterpret_cast<typename L::Bits>(small)) *
        0x1p24f;
    const auto whole = __builtin_convertvector(units, typename L::Signed);
    const typename L::Floats left = units - __builtin_convertvector(whole, typename L::Floats);
    const auto up = reinterpret_cast<typename L::Signed>(random >> 1) <
                    __builtin_convertvector(left * 0x1p31f, typename L::Signed);
    L::Take(small, reinterpret_cast<typename L::Bits>(whole - up), narrow);  // true is -1
    narrow |= (bits & ~kValue) >> 16;
  }
  // Replaces Round's result for other values.
  template <std::size_t kBytes>
  LOCKSTEP_INLINE static void TakeTooLarge(const typename Lanes<kBytes>::Bits& bits,
                                           typename Lanes<kBytes>::Bits& narrow) {
    using L = Lanes<kBytes>;
    const auto value = reinterpret_cast<typename L::Signed>(bits & kValue);
    const typename L::Bits sign = (bits & ~kValue) >> 16;
    L::Take(value >= kTooLarge, sign | kLargest, narrow);
    L::Take(value == kInfinity, sign | 0x7c00, narrow);
    L::Take(value > kInfinity, sign | ((bits >> 13) & 0x3ff) | 0x7e00, narrow);
  }
};

// So many numbers are checked and then rounded while they are in a core's own cache.
constexpr std::size_t kChunk = 2048;

// The rounding of a chunk's numbers. Chunk: from the `at`-th number on, so many have one rounding,
// that of At.
struct ToNearest {
  static std::size_t Chunk(std::size_t) { return kChunk; }
  ToNearest At(std::size_t) const { return {}; }
  template <class Type, std::size_t kBytes>
  LOCKSTEP_INLINE void Round(const typename Lanes<kBytes>::Bits& bits, std::size_t,
                             typename Lanes<kBytes>::Bits& narrow) const {
    Type::template Round<kBytes>(bits, narrow);
  }
};

// 32 random bits for each place, by the hash triple32 (C. Wellons, "Prospecting for hash
// functions", 2018), a bijection with good avalanche in operations that each instruction set has on
// vectors. The key enters before its first and its second round. It changes at each 2^32nd place,
// where a chunk ends.
class AtRandom {
 public:
  AtRandom(std::uint64_t key, std::uint64_t first) : key_(key), first_(first) {
    const std::uint64_t words = Mix64(key ^ (first >> 32));
    begin_ = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(words);
    second_ = static_cast<std::uint32_t>(words >> 32);
  }
  std::size_t Chunk(std::size_t at) const {
    const std::uint64_t left = (1ull << 32) - ((first_ + at) & 0xffffffff);
    return std::min<std::uint64_t>(kChunk, left);
  }
  AtRandom At(std::size_t at) const { return {key_, first_ + at}; }
  template <class Type, std::size_t kBytes>
  LOCKSTEP_INLINE void Round(const typename Lanes<kBytes>::Bits& bits, std::size_t i,
                             typename Lanes<kBytes>::Bits& narrow) const {
    typename Lanes<kBytes>::Bits x;
    for (std::uint32_t lane = 0; lane < Lanes<kBytes>::kCount; ++lane) x[lane] = lane;
    x += begin_ + static_cast<std::uint32_t>(i);
    x ^= x >> 17;
    x *= 0xed5ad4bb;
    x += second_;
    x ^= x >> 11;
    x *= 0xac4c1b51;
    x ^= x >> 15;
    x *= 0x31848bab;
    x ^= x >> 14;
    Type::template RoundAtRandom<kBytes>(bits, x, narrow);
  }

 private:
  std::uint64_t key_;
  std::uint64_t first_;
  std::uint32_t begin_;
  std::uint32_t second_;
};

// Each loop goes from `i` as near to `n` as whole vectors allow, and returns its end.

// Checks that all values are below the type's kTooLarge: after adding the difference to 2^31, none
// has the upper bit set.
template <class Type, std::size_t kBytes>
LOCKSTEP_INLINE std::size_t LookRange(const float* from, std::size_t i, std::size_t n, bool& fits) {
  using L = Lanes<kBytes>;
  typename L::Bits seen = {};
  for (; n - i >= L::kCount; i += L::kCount) {
    typename L::Bits bits;
    L::Load(from + i, bits);
    seen |= (bits & kValue) + (~kValue - Type::kTooLarge);
  }
  std::uint32_t any = 0;
  for (std::size_t lane = 0; lane < L::kCount; ++lane) any |= seen[lane];
  fits = fits && (any & ~kValue) == 0;
  return i;
}

// The result for a number that is too large, in place. With kIsSum it is a sum of finite terms.
// Infinity, FP32's result for a number that is too large for it, then is such a number too.
enum class TooLarge : std::uint8_t { kIsNotThere, kIsGiven, kIsSum };

template <class Type, std::size_t kBytes, TooLarge kTooLarge, class Way>
LOCKSTEP_INLINE std::size_t NarrowRange(const float* from, std::uint16_t* to, std::size_t i,
                                        std::size_t n, const Way& way) {
  using L = Lanes<kBytes>;
  for (; n - i >= L::kCount; i += L::kCount) {
    typename L::Bits bits;
    L::Load(from + i, bits);
    typename L::Bits narrow;
    way.template Round<Type, kBytes>(bits, i, narrow);
    if constexpr (kTooLarge != TooLarge::kIsNotThere) {
      Type::template TakeTooLarge<kBytes>(bits, narrow);
    }
    if constexpr (kTooLarge == TooLarge::kIsSum) {
      const auto value = reinterpret_cast<typename L::Signed>(bits & kValue);
      L::Take(value == kInfinity, ((bits & ~kValue) >> 16) | Type::kLargest, narrow);
    }
    L::Store(narrow, to + i);
  }
  return i;
}

template <class Type, std::size_t kBytes>
LOCKSTEP_INLINE std::size_t WidenRange(const std::uint16_t* from, float* to, std::size_t i,
                                       std::size_t n) {
  using L = Lanes<kBytes>;
  for (; n - i >= L::kCount; i += L::kCount) {
    typename L::Bits narrow;
    L::Load(from + i, narrow);
    typename L::Floats wide;
    Type::template Widen<kBytes>(narrow, wide);
    *reinterpret_cast<typename L::LooseFloats*>(to + i) = wide;
  }
  return i;
}

template <class Type, std::size_t kBytes>
LOCKSTEP_INLINE void Term(const NarrowInput& input, std::size_t i,
                          typename Lanes<kBytes>::Floats& term) {
  typename Lanes<kBytes>::Bits narrow;
  Lanes<kBytes>::Load(input.data + i, narrow);
  Type::template Widen<kBytes>(narrow, term);
  term *= input.weight;
}

// It keeps four vectors of each input in registers. sum[0] is the sum at `base`.
template <class Type, std::size_t kBytes>
LOCKSTEP_INLINE std::size_t SumRange(std::span<const NarrowInput> inputs, std::size_t base,
                                     float* out, std::size_t i, std::size_t n) {
  using L = Lanes<kBytes>;
  constexpr std::size_t kVectors = kBytes > sizeof(float) ? 4 : 1;
  for (; n - i >= kVectors * L::kCount; i += kVectors * L::kCount) {
    typename L::Floats sum[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      Term<Type, kBytes>(inputs[0], base + i + v * L::kCount, sum[v]);
    }
    for (const NarrowInput& input : inputs.subspan(1)) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        typename L::Floats term;
        Term<Type, kBytes>(input, base + i + v * L::kCount, term);
        sum[v] += term;
      }
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      *reinterpret_cast<typename L::LooseFloats*>(out + i + v * L::kCount) = sum[v];
    }
  }
  return i;
}

constexpr std::size_t kSingle = sizeof(float);

// Numbers that are too large are rare, so a chunk is searched for them first.
template <class Type, std::size_t kBytes, TooLarge kWhere, class Way>
LOCKSTEP_INLINE bool NarrowChunk(const float* from, std::uint16_t* to, std::size_t n,
                                 const Way& way) {
  bool fits = true;
  LookRange<Type, kSingle>(from, LookRange<Type, kBytes>(from, 0, n, fits), n, fits);
  if (fits) {
    const std::size_t done = NarrowRange<Type, kBytes, TooLarge::kIsNotThere>(from, to, 0, n, way);
    NarrowRange<Type, kSingle, TooLarge::kIsNotThere>(from, to, done, n, way);
  } else {
    NarrowRange<Type, kSingle, kWhere>(from, to, 0, n, way);
  }
  return fits;
}

template <class Type, std::size_t kBytes, class Way>
LOCKSTEP_INLINE bool NarrowAll(const float* from, std::uint16_t* to, std::size_t n,
                               const Way& way) {
  bool fits = true;
  for (std::size_t at = 0; at < n;) {
    const std::size_t count = std::min(way.Chunk(at), n - at);
    fits = NarrowChunk<Type, kBytes, TooLarge::kIsGiven>(from + at, to + at, count, way.At(at)) &&
           fits;
    at += count;
  }
  return fits;
}

template <class Type, std::size_t kBytes, class Way>
LOCKSTEP_INLINE bool SumAll(std::span<const NarrowInput> inputs, std::uint16_t* out, std::size_t n,
                            const Way& way) {
  bool fits = true;
  float sum[kChunk];
  for (std::size_t at = 0; at < n;) {
    const std::size_t count = std::min(way.Chunk(at), n - at);
    const std::size_t done = SumRange<Type, kBytes>(inputs, at, sum, 0, count);
    SumRange<Type, kSingle>(inputs, at, sum, done, count);
    fits = NarrowChunk<Type, kBytes, TooLarge::kIsSum>(sum, out + at, count, way.At(at)) && fits;
    at += count;
  }
  return fits;
}

#define LOCKSTEP_LOOPS(name, bytes, Type, ...)                                                    \
  __VA_ARGS__ bool Narrow##Type##_##name(const float* from, std::uint16_t* to, std::size_t n) {   \
    return NarrowAll<Type, bytes>(from, to, n, ToNearest());                                      \
  }                                                                                               \
  __VA_ARGS__ bool NarrowRandom##Type##_##name(const float* from, std::uint16_t* to,              \
                                               std::size_t n, std::uint64_t key,                  \
                                               std::uint64_t first) {                             \
    return NarrowAll<Type, bytes>(from, to, n, AtRandom(key, first));                             \
  }                                                                                               \
  __VA_ARGS__ void Widen##Type##_##name(const std::uint16_t* from, float* to, std::size_t n) {    \
    WidenRange<Type, kSingle>(from, to, WidenRange<Type, bytes>(from, to, 0, n), n);              \
  }                                                                                               \
  __VA_ARGS__ bool Sum##Type##_##name(std::span<const NarrowInput> inputs, std::uint16_t* out,    \
                                      std::size_t n) {                                            \
    return SumAll<Type, bytes>(inputs, out, n, ToNearest());                                      \
  }                                                                                               \
  __VA_ARGS__ bool SumRandom##Type##_##name(std::span<const NarrowInput> inputs,                  \
                                            std::uint16_t* out, std::size_t n, std::uint64_t key, \
                                            std::uint64_t first) {                                \
    return SumAll<Type, bytes>(inputs, out, n, AtRandom(key, first));                             \
  }

#define LOCKSTEP_VARIANT(name, bytes, ...)                                                      \
  LOCKSTEP_LOOPS(name, bytes, Bf16, __VA_ARGS__)                                                \
  LOCKSTEP_LOOPS(name, bytes, Fp16, __VA_ARGS__)                                                \
  constexpr NarrowKernels kKernels_##name{#name,                                                \
                                          {NarrowBf16_##name, WidenBf16_##name, SumBf16_##name, \
                                           NarrowRandomBf16_##name, SumRandomBf16_##name},      \
                                          {NarrowFp16_##name, WidenFp16_##name, SumFp16_##name, \
                                           NarrowRandomFp16_##name, SumRandomFp16_##name}};

#if defined(__x86_64__)
LOCKSTEP_VARIANT(avx512f, 64, [[gnu::target("avx512f")]])
LOCKSTEP_VARIANT(avx2, 32, [[gnu::target("avx2")]])
#endif
LOCKSTEP_VARIANT(generic, 16, )
LOCKSTEP_VARIANT(single, kSingle, )

std::vector<NarrowKernels> Detect() {
  std::vector<NarrowKernels> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) found.push_back(kKernels_avx512f);
  if (__builtin_cpu_supports("avx2")) found.push_back(kKernels_avx2);
#endif
  found.push_back(kKernels_generic);
  found.push_back(kKernels_single);
  return found;
}

const NarrowKernels::Loops& LoopsOf(NumberType type) {
  LOCKSTEP_CHECK(type != NumberType::kFp32, "16 bits of a number of 32");
  const NarrowKernels& kernels = AvailableNarrowKernels().front();
  return type == NumberType::kBf16 ? kernels.bf16 : kernels.fp16;
}

constexpr std::uint8_t kPartOfSums = 0xff;

std::uint64_t KeyOf(std::uint64_t seed, RoundId round, WorkerId worker, std::uint8_t part) {
  constexpr std::uint64_t kRounding = 0x726f756e64;  // the purpose of the words
  return RandomStream(seed ^ kRounding, round.value, (std::uint64_t{worker.value} << 8) | part)
      .Word(0);
}

}  // namespace

NumberType NumberTypeOf(std::string_view name) {
  if (name == "bf16") return NumberType::kBf16;
  if (name == "fp16") return NumberType::kFp16;
  LOCKSTEP_CHECK(name == "fp32", "there is no type {}", name);
  return NumberType::kFp32;
}

std::span<const NarrowKernels> AvailableNarrowKernels() {
  static const std::vector<NarrowKernels> kernels = Detect();
  return kernels;
}

// Sums use the number of a part that does not exist.
Rounding RoundingOfContribution(std::uint64_t seed, RoundId round, WorkerId worker,
                                PartIndex part) {
  static_assert(kMaxParts < kPartOfSums);
  return {true, KeyOf(seed, round, worker, part.value)};
}

Rounding RoundingOfSums(std::uint64_t seed, RoundId round) {
  return {true, KeyOf(seed, round, WorkerId(0), kPartOfSums)};
}

bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
            const Rounding& rounding, std::uint64_t first) {
  const NarrowKernels::Loops& loops = LoopsOf(type);
  return rounding.stochastic ? loops.narrow_at_random(from, to, n, rounding.key, first)
                             : loops.narrow(from, to, n);
}

bool NarrowSums(NumberType type, float* sums, std::uint16_t* to, std::size_t n) {
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isinf(sums[i])) continue;
    sums[i] = std::copysign(std::numeric_limits<float>::max(), sums[i]);
    finite = false;
  }
  return Narrow(type, sums, to, n) && finite;
}

void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) {
  LoopsOf(type).widen(from, to, n);
}

bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                 std::size_t n, const Rounding& rounding, std::uint64_t first) {
  if (inputs.empty()) {
    std::fill_n(out, n, std::uint16_t{0});
    return true;
  }
  const NarrowKernels::Loops& loops = LoopsOf(type);
  return rounding.stochastic ? loops.weighted_sum_at_random(inputs, out, n, rounding.key, first)
                             : loops.weighted_sum(inputs, out, n);
}

}  // namespace lockstep::worker
