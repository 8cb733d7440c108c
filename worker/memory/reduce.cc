#include "worker/memory/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "base/check.h"
#include "worker/memory/reduce_kernels.h"

namespace lockstep::worker {
namespace {

// The loops are written once over vectors of kBytes and inlined into one function per instruction
// set. A table chooses it at run time, not target_clones, so that tests can run every variant, and
// sanitizers need no ifuncs.
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

constexpr std::size_t kLine = 64;

template <class T, std::size_t kBytes>
using Vector [[gnu::vector_size(kBytes)]] = T;
// Works at any address. (A memcpy would be cut into moves of the baseline's width before it is
// inlined into a wider variant.)
template <class T, std::size_t kBytes>
using LooseVector [[gnu::vector_size(kBytes), gnu::aligned(alignof(T)), gnu::may_alias]] = T;

template <std::size_t kBytes, bool kStreaming, class V>
LOCKSTEP_INLINE void Store(float* out, const V& value) {
#if defined(__SSE__)
  if constexpr (kStreaming) {
    __m128 quarters[kBytes / sizeof(__m128)];
    std::memcpy(&quarters, &value, kBytes);
    for (const __m128& quarter : quarters) {
      _mm_stream_ps(out, quarter);
      out += sizeof(quarter) / sizeof(float);
    }
    return;
  }
#endif
  *reinterpret_cast<LooseVector<float, kBytes>*>(out) = value;
}

// A finite number's exponent is not all ones. With one added to the exponent's last bit, and
// without the sign, all ones carry into the sign's place. So one bit of an OR over a chunk decides.
constexpr std::uint32_t kValue = 0x7fffffff;
constexpr std::uint32_t kLastOfExponent = 0x00800000;

// Takes the OR of such values.
constexpr bool Numbers(std::uint32_t seen) { return (seen & ~kValue) == 0; }

template <std::size_t kBytes>
LOCKSTEP_INLINE bool Numbers(const Vector<std::uint32_t, kBytes>& seen) {
  std::uint32_t any = 0;
  for (std::size_t lane = 0; lane < kBytes / sizeof(any); ++lane) any |= seen[lane];
  return Numbers(any);
}

LOCKSTEP_INLINE bool SumScalar(std::span<const Input> inputs, float* out, std::size_t from,
                               std::size_t to) {
  std::uint32_t seen = 0;
  for (std::size_t i = from; i < to; ++i) {
    float sum = inputs[0].weight * inputs[0].data[i];
    for (std::size_t s = 1; s < inputs.size(); ++s) sum += inputs[s].weight * inputs[s].data[i];
    out[i] = sum;
    seen |= (std::bit_cast<std::uint32_t>(sum) & kValue) + kLastOfExponent;
  }
  return Numbers(seen);
}

// One step reads so much of each input in turn, in registers: four lines, or as much as eight
// registers hold.
template <std::size_t kBytes>
struct Step {
  using V = Vector<float, kBytes>;
  static constexpr std::size_t kLanes = kBytes / sizeof(float);
  static constexpr std::size_t kVectors = std::min<std::size_t>(8, 4 * kLine / kBytes);
  static constexpr std::size_t kFloats = kVectors * kLanes;

  // The argument is a reference, as vectors wider than the baseline's have no calling convention
  // there.
  LOCKSTEP_INLINE static void Term(const Input& input, std::size_t i, V& term) {
    term = *reinterpret_cast<const LooseVector<float, kBytes>*>(input.data + i) * input.weight;
  }
  // The hardware's own prefetching fails with many streams.
  LOCKSTEP_INLINE static void Prefetch(const Input& input, std::size_t i) {
    for (std::size_t j = 0; j < kFloats; j += kLine / sizeof(float)) {
      __builtin_prefetch(input.data + i + j);
    }
  }
};

// Sums whole steps from `from` on; returns where it ended.
template <std::size_t kBytes, bool kStreaming>
LOCKSTEP_INLINE std::size_t SumVectors(std::span<const Input> inputs, float* out, std::size_t from,
                                       std::size_t n, bool& numbers) {
  using S = Step<kBytes>;
  using Bits = Vector<std::uint32_t, kBytes>;
  Bits seen = {};
  constexpr std::size_t kAhead = 1024 / sizeof(float);
  std::size_t i = from;
  for (; n - i >= S::kFloats; i += S::kFloats) {
    const std::size_t ahead = std::min(i + kAhead, n - S::kFloats);
    typename S::V sum[S::kVectors];
    S::Prefetch(inputs[0], ahead);
    for (std::size_t v = 0; v < S::kVectors; ++v) S::Term(inputs[0], i + v * S::kLanes, sum[v]);
    for (const Input& input : inputs.subspan(1)) {
      S::Prefetch(input, ahead);
      for (std::size_t v = 0; v < S::kVectors; ++v) {
        typename S::V term;
        S::Term(input, i + v * S::kLanes, term);
        sum[v] += term;
      }
    }
    for (std::size_t v = 0; v < S::kVectors; ++v) {
      Store<kBytes, kStreaming>(out + i + v * S::kLanes, sum[v]);
      seen |= (__builtin_bit_cast(Bits, sum[v]) & kValue) + kLastOfExponent;
    }
  }
  numbers &= Numbers<kBytes>(seen);
  return i;
}

template <std::size_t kBytes>
LOCKSTEP_INLINE bool Sum(std::span<const Input> inputs, float* out, std::size_t n, bool streaming) {
  // Single elements go up to a line's boundary of the output, as streaming stores must be aligned.
  const std::size_t off = reinterpret_cast<std::uintptr_t>(out) % kLine;
  const std::size_t head = std::min(n, (kLine - off) % kLine / sizeof(float));
  bool numbers = SumScalar(inputs, out, 0, head);
  const std::size_t done = streaming ? SumVectors<kBytes, true>(inputs, out, head, n, numbers)
                                     : SumVectors<kBytes, false>(inputs, out, head, n, numbers);
  numbers &= SumScalar(inputs, out, done, n);
#if defined(__SSE__)
  if (streaming) _mm_sfence();
#endif
  return numbers;
}

constexpr std::size_t kSquareLanes = 16;

template <std::size_t kBytes>
LOCKSTEP_INLINE double GrainSquares(const float* data, std::size_t n) {
  constexpr std::size_t kLanes = kBytes / sizeof(double);
  constexpr std::size_t kVectors = kSquareLanes / kLanes;
  using Doubles = Vector<double, kBytes>;
  using Floats = LooseVector<float, kBytes / 2>;
  Doubles sum[kVectors] = {};
  std::size_t i = 0;
  for (; n - i >= kSquareLanes; i += kSquareLanes) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto* x = reinterpret_cast<const Floats*>(data + i + v * kLanes);
      const Doubles wide = __builtin_convertvector(*x, Doubles);
      sum[v] += wide * wide;
    }
  }
  std::array<double, kSquareLanes> lanes;
  std::memcpy(&lanes, &sum, sizeof(lanes));
  for (std::size_t j = 0; i + j < n; ++j) {
    lanes[j] += static_cast<double>(data[i + j]) * static_cast<double>(data[i + j]);
  }
  for (std::size_t half = kSquareLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

template <std::size_t kBytes>
LOCKSTEP_INLINE void Squares(const float* data, std::size_t n, std::size_t grain, double* out) {
  for (std::size_t at = 0; at < n; at += grain) {
    *out++ = GrainSquares<kBytes>(data + at, std::min(grain, n - at));
  }
}

// Reading several places in turn is faster: the hardware's read-ahead ends with a page, and each
// page has to be found.
template <std::size_t kBytes, std::size_t kPlaces>
struct FiniteStep {
  static constexpr std::size_t kLanes = kBytes / sizeof(std::uint32_t);
  static constexpr std::size_t kVectors = 4;
  static constexpr std::size_t kFloats = kVectors * kLanes;  // at each place
  using Bits = Vector<std::uint32_t, kBytes>;
  using Loose = LooseVector<std::uint32_t, kBytes>;

  // Checks [0, n) of each place, each `apart` from the one before; `n` is whole steps.
  LOCKSTEP_INLINE static bool Look(const float* data, std::size_t apart, std::size_t n) {
    constexpr std::size_t kChunk = 4096;  // the most that is checked in vain after a bad number
    constexpr std::size_t kAhead = 2048 / sizeof(float);
    for (std::size_t i = 0; i < n;) {
      const std::size_t end = std::min(n, i + kChunk);
      Bits seen[kVectors] = {};
      for (; i < end; i += kFloats) {
        for (std::size_t place = 0; place < kPlaces; ++place) {
          const float* at = data + place * apart + i;
          const std::size_t ahead = std::min(kAhead, n - i - 1);
          for (std::size_t j = 0; j < kFloats; j += kLine / sizeof(float)) {
            __builtin_prefetch(at + std::min(j + ahead, n - i - 1));
          }
          for (std::size_t v = 0; v < kVectors; ++v) {
            const auto* x = reinterpret_cast<const Loose*>(at + v * kLanes);
            seen[v] |= (*x & kValue) + kLastOfExponent;
          }
        }
      }
      if (!Numbers<kBytes>((seen[0] | seen[1]) | (seen[2] | seen[3]))) return false;
    }
    return true;
  }
};

template <std::size_t kBytes>
LOCKSTEP_INLINE bool Finite(const float* data, std::size_t n) {
  constexpr std::size_t kPlaces = 4;
  using Spread = FiniteStep<kBytes, kPlaces>;
  using One = FiniteStep<kBytes, 1>;
  const std::size_t apart = n / kPlaces / Spread::kFloats * Spread::kFloats;
  if (!Spread::Look(data, apart, apart)) return false;
  std::size_t i = kPlaces * apart;
  const std::size_t whole = (n - i) / One::kFloats * One::kFloats;
  if (!One::Look(data + i, 0, whole)) return false;
  i += whole;
  std::uint32_t rest = 0;
  for (; i < n; ++i) rest |= (std::bit_cast<std::uint32_t>(data[i]) & kValue) + kLastOfExponent;
  return Numbers(rest);
}

#define LOCKSTEP_VARIANT(name, bytes, ...)                                              \
  __VA_ARGS__ bool Sum_##name(std::span<const Input> inputs, float* out, std::size_t n, \
                              bool streaming) {                                         \
    return Sum<bytes>(inputs, out, n, streaming);                                       \
  }                                                                                     \
  __VA_ARGS__ void Squares_##name(const float* data, std::size_t n, std::size_t grain,  \
                                  double* out) {                                        \
    Squares<bytes>(data, n, grain, out);                                                \
  }                                                                                     \
  __VA_ARGS__ bool Finite_##name(const float* data, std::size_t n) {                    \
    return Finite<bytes>(data, n);                                                      \
  }                                                                                     \
  constexpr ReduceKernels kKernels_##name{#name, Sum_##name, Squares_##name, Finite_##name};

#if defined(__x86_64__)
LOCKSTEP_VARIANT(avx512f, 64, [[gnu::target("avx512f")]])
LOCKSTEP_VARIANT(avx2, 32, [[gnu::target("avx2")]])
#endif
LOCKSTEP_VARIANT(generic, 16, )

std::vector<ReduceKernels> Detect() {
  std::vector<ReduceKernels> found;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) found.push_back(kKernels_avx512f);
  if (__builtin_cpu_supports("avx2")) found.push_back(kKernels_avx2);
#endif
  found.push_back(kKernels_generic);
  return found;
}

// From this size on, an output counts as too large to stay in a core's own cache until it is read.
constexpr std::size_t kStreamingBytes = 1u << 20;

}  // namespace

std::span<const ReduceKernels> AvailableReduceKernels() {
  static const std::vector<ReduceKernels> kernels = Detect();
  return kernels;
}

bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n) {
  return WeightedSum(inputs, out, n, n * sizeof(float) >= kStreamingBytes);
}

bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n, bool large) {
  if (n == 0) return true;
  if (inputs.empty()) {
    std::fill_n(out, n, 0.0f);
    return true;
  }
  for (const Input& input : inputs) {
    const auto x = reinterpret_cast<std::uintptr_t>(input.data);
    const auto y = reinterpret_cast<std::uintptr_t>(out);
    LOCKSTEP_CHECK(x >= y + n * sizeof(float) || y >= x + n * sizeof(float),
                   "an input overlaps the sum");
  }
  return AvailableReduceKernels().front().weighted_sum(inputs, out, n, large);
}

void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain, double* out) {
  LOCKSTEP_CHECK(grain > 0);
  AvailableReduceKernels().front().sum_of_squares(data, n, grain, out);
}

void CopyPastCaches(const float* data, float* out, std::size_t n) {
#if defined(__SSE__)
  constexpr std::size_t kLineFloats = kLine / sizeof(float);
  constexpr std::size_t kAhead = 2048 / sizeof(float);
  const std::size_t off = reinterpret_cast<std::uintptr_t>(out) % kLine;
  const std::size_t head = std::min(n, (kLine - off) % kLine / sizeof(float));
  std::memcpy(out, data, head * sizeof(float));
  std::size_t i = head;
  for (; n - i >= kLineFloats; i += kLineFloats) {
    __builtin_prefetch(data + std::min(i + kAhead, n - 1));
    __m128 line[kLine / sizeof(__m128)];
    std::memcpy(&line, data + i, kLine);
    for (std::size_t quarter = 0; quarter < std::size(line); ++quarter) {
      _mm_stream_ps(out + i + quarter * sizeof(__m128) / sizeof(float), line[quarter]);
    }
  }
  std::memcpy(out + i, data + i, (n - i) * sizeof(float));
  _mm_sfence();
#else
  std::memcpy(out, data, n * sizeof(float));
#endif
}

bool AllFinite(const float* data, std::size_t n) {
  return AvailableReduceKernels().front().all_finite(data, n);
}

}  // namespace lockstep::worker
