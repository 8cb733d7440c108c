#include "worker/memory/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "worker/memory/reduce_kernels.h"

namespace lockstep::worker {
namespace {

// Of all magnitudes, so that rounding shows in nearly every sum; with a few special values, but no
// NaN.
std::vector<float> Numbers(std::size_t n, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<float> numbers(n);
  for (float& x : numbers) {
    const std::uint64_t kind = random.NextBelow(32);
    const float sign = random.NextBelow(2) == 0 ? 1.0f : -1.0f;
    if (kind == 0) {
      x = sign * 0.0f;
    } else if (kind == 1) {
      x = sign * std::numeric_limits<float>::denorm_min() *
          static_cast<float>(random.NextBelow(999));
    } else {
      x = sign * std::ldexp(1.0f + random.NextUniform(), static_cast<int>(random.NextBelow(12)));
    }
  }
  return numbers;
}

bool SameBits(const float* a, const float* b, std::size_t n) {
  return std::equal(a, a + n, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

// The contract, word for word.
std::vector<float> Reference(const std::vector<Input>& inputs, std::size_t n) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    volatile float sum = inputs[0].weight * inputs[0].data[i];
    for (std::size_t s = 1; s < inputs.size(); ++s) {
      volatile float term = inputs[s].weight * inputs[s].data[i];
      sum = sum + term;
    }
    out[i] = sum;
  }
  return out;
}

struct Case {
  std::vector<std::vector<float>> memory;
  std::vector<Input> inputs;
  // Input s begins s % 5 floats behind an allocation's start, so that alignments differ.
  Case(std::size_t count, std::size_t n) {
    for (std::size_t s = 0; s < count; ++s) {
      memory.push_back(Numbers(n + 4, 100 * n + s));
      const float weight = s % 3 == 0 ? 1.0f : 0.1f * static_cast<float>(s);
      inputs.push_back({memory.back().data() + s % 5, weight});
    }
  }
};

TEST(WeightedSum, EveryVariantHasTheBitsOfTheContract) {
  constexpr float kGuard = -12345.0f;
  for (const ReduceKernels& kernels : AvailableReduceKernels()) {
    for (const bool streaming : {false, true}) {
      for (const std::size_t count : {1u, 2u, 3u, 4u, 9u, 33u}) {
        for (const std::size_t n : {1u, 3u, 15u, 16u, 63u, 64u, 65u, 127u, 255u, 700u, 1500u}) {
          const Case c(count, n);
          const auto wanted = Reference(c.inputs, n);
          for (const std::size_t off : {1u, 4u, 7u, 16u}) {
            std::vector<float> out(n + 2 * off, kGuard);
            kernels.weighted_sum(c.inputs, out.data() + off, n, streaming);
            ASSERT_TRUE(SameBits(out.data() + off, wanted.data(), n))
                << kernels.name << ", " << count << " inputs, n " << n << ", offset " << off;
            for (std::size_t g = 0; g < off; ++g) {
              ASSERT_EQ(out[g], kGuard);
              ASSERT_EQ(out[off + n + g], kGuard);
            }
          }
        }
      }
    }
  }
}

TEST(WeightedSum, SaysWhetherAllSumsAreNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr std::size_t kN = 300;
  for (const ReduceKernels& kernels : AvailableReduceKernels()) {
    for (const bool streaming : {false, true}) {
      std::vector<std::vector<float>> memory(3, std::vector<float>(kN, kLargest / 4));
      std::vector<Input> inputs;
      for (const std::vector<float>& m : memory) inputs.push_back({m.data(), 1.0f});
      std::vector<float> out(kN + 5);
      const auto sum = [&] { return kernels.weighted_sum(inputs, out.data() + 5, kN, streaming); };
      EXPECT_TRUE(sum()) << kernels.name;
      for (std::size_t at = 0; at < kN; ++at) {
        const std::size_t of = at % memory.size();
        for (const float bad : {kInfinity, -kInfinity, kNan, kLargest}) {
          memory[of][at] = bad;
          EXPECT_EQ(sum(), false) << kernels.name << ", " << bad << " at " << at;
        }
        memory[of][at] = kInfinity;  // which its opposite makes no number
        memory[(of + 1) % memory.size()][at] = -kInfinity;
        EXPECT_FALSE(sum()) << kernels.name << " at " << at;
        for (std::vector<float>& m : memory) m[at] = 1;
      }
      EXPECT_TRUE(sum()) << kernels.name;
    }
  }
}

TEST(WeightedSum, IsNotContracted) {
  // x * x - x * x rounded: a fused multiply-add would leave the rounding error of the product.
  const std::vector<float> x(100, 1.0f + 0x1p-12f);
  const std::vector<float> y(100, -(x[0] * x[0]));
  const std::vector<Input> inputs = {{y.data(), 1.0f}, {x.data(), x[0]}};
  std::vector<float> out(100, 1.0f);
  for (const ReduceKernels& kernels : AvailableReduceKernels()) {
    kernels.weighted_sum(inputs, out.data(), 100, false);
    EXPECT_EQ(out, std::vector<float>(100, 0.0f)) << kernels.name;
  }
}

TEST(WeightedSum, DoesNotDependOnHowTheRangeIsCut) {
  constexpr std::size_t kN = 600'000;  // over the size from which stores stream
  const Case c(5, kN);
  std::vector<float> whole(kN), pieces(kN);
  WeightedSum(c.inputs, whole.data(), kN);
  EXPECT_TRUE(SameBits(whole.data(), Reference(c.inputs, kN).data(), kN));
  RandomStream random(3);
  for (std::size_t at = 0; at < kN;) {
    const std::size_t n = std::min<std::size_t>(kN - at, 1 + random.NextBelow(5000));
    auto inputs = c.inputs;
    for (Input& input : inputs) input.data += at;
    WeightedSum(inputs, pieces.data() + at, n);
    at += n;
  }
  EXPECT_TRUE(SameBits(whole.data(), pieces.data(), kN));
}

TEST(WeightedSum, TheOrderOfInputsIsTheOrderOfSummation) {
  const float big = 0x1p30f, one = 1.0f, minus = -big;
  float out = 0;
  WeightedSum(std::vector<Input>{{&big}, {&minus}, {&one}}, &out, 1);
  EXPECT_EQ(out, 1.0f);
  WeightedSum(std::vector<Input>{{&big}, {&one}, {&minus}}, &out, 1);
  EXPECT_EQ(out, 0.0f);
}

// Whatever the alignment, and none of it beyond the end; a number's bits are not looked at.
TEST(CopyPastCaches, CopiesBitsAndNothingElse) {
  std::vector<std::uint32_t> bits(3000);
  RandomStream random(11);
  for (std::uint32_t& x : bits) x = static_cast<std::uint32_t>(random.NextBelow(1ull << 32));
  bits[700] = 0x7fa00000;  // a signalling NaN
  std::vector<float> from(bits.size());
  std::memcpy(from.data(), bits.data(), bits.size() * sizeof(float));
  for (const std::size_t n : {0, 1, 15, 16, 17, 33, 1000, 2900}) {
    for (std::size_t shift = 0; shift < 18; ++shift) {
      std::vector<float> to(bits.size(), 7.0f);
      CopyPastCaches(from.data() + 3 * shift % 19, to.data() + shift, n);
      EXPECT_TRUE(SameBits(to.data() + shift, from.data() + 3 * shift % 19, n)) << n;
      EXPECT_EQ(std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(shift), 7.0f),
                static_cast<std::ptrdiff_t>(shift));
      EXPECT_EQ(to[shift + n], 7.0f);
    }
  }
}

TEST(WeightedSum, OfNothing) {
  std::vector<float> out(100, 7.0f);
  WeightedSum({}, out.data(), 99);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0.0f), 99);
  EXPECT_EQ(out[99], 7.0f);
  WeightedSum(std::vector<Input>{{out.data(), 1.0f}}, nullptr, 0);
}

TEST(WeightedSum, KeepsTheSignOfZeroAndInfinity) {
  const std::vector<float> x = {-0.0f, std::numeric_limits<float>::infinity()};
  std::vector<float> out(2);
  WeightedSum(std::vector<Input>{{x.data(), 1.0f}}, out.data(), 2);
  EXPECT_TRUE(SameBits(out.data(), x.data(), 2));
}

TEST(WeightedSumDeathTest, AnInputMayNotOverlapTheSum) {
  std::vector<float> x(100);
  EXPECT_DEATH(WeightedSum(std::vector<Input>{{x.data() + 9, 1.0f}}, x.data(), 10), "overlaps");
  WeightedSum(std::vector<Input>{{x.data() + 10, 1.0f}}, x.data(), 10);
}

double ReferenceSquares(const float* data, std::size_t n) {
  volatile double lanes[16] = {};
  for (std::size_t i = 0; i < n; ++i) {
    lanes[i % 16] = lanes[i % 16] + static_cast<double>(data[i]) * static_cast<double>(data[i]);
  }
  for (const int half : {8, 4, 2, 1}) {
    for (int j = 0; j < half; ++j) lanes[j] = lanes[j] + lanes[j + half];
  }
  return lanes[0];
}

TEST(SumOfSquares, EveryVariantHasTheBitsOfTheContract) {
  for (const ReduceKernels& kernels : AvailableReduceKernels()) {
    for (const std::size_t grain : {1u, 15u, 16u, 100u, 1024u}) {
      for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 5000u}) {
        const auto memory = Numbers(n + 1, n + grain);
        const float* data = memory.data() + 1;
        std::vector<double> out(Grains(n, grain) + 1, -1.0);
        kernels.sum_of_squares(data, n, grain, out.data());
        for (std::size_t g = 0; g < Grains(n, grain); ++g) {
          const std::size_t size = std::min(grain, n - g * grain);
          ASSERT_EQ(out[g], ReferenceSquares(data + g * grain, size))
              << kernels.name << ", n " << n << ", grain " << grain << ", " << g;
        }
        ASSERT_EQ(out.back(), -1.0);
      }
    }
  }
}

TEST(SumOfSquares, DoesNotDependOnWhoOwnsWhat) {
  constexpr std::size_t kN = 10'000, kGrain = 1024;
  const auto data = Numbers(kN, 1);
  std::vector<double> whole(Grains(kN, kGrain)), parts;
  SumOfSquaresByGrain(data.data(), kN, kGrain, whole.data());
  for (const auto& [from, to] : {std::pair{0u, 3u}, {3u, 4u}, {4u, 10u}}) {
    const std::size_t end = std::min<std::size_t>(kN, to * kGrain);
    std::vector<double> part(to - from);
    SumOfSquaresByGrain(data.data() + from * kGrain, end - from * kGrain, kGrain, part.data());
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST(SumOfSquares, Value) {
  const std::vector<float> data = {3.0f, 4.0f, 1e20f, -1e20f};
  double out[2];
  SumOfSquaresByGrain(data.data(), 4, 2, out);
  EXPECT_EQ(out[0], 25.0);
  EXPECT_NEAR(out[1], 2e40, 1e34) << "beyond the range of a float";
}

TEST(AllFinite, OneThatIsNotIsFoundWhereverItIs) {
  using Limits = std::numeric_limits<float>;
  for (const ReduceKernels& kernels : AvailableReduceKernels()) {
    for (const std::size_t n : {1, 7, 63, 64, 2049, 4095, 4096, 4097, 4160, 9000}) {
      // From an address that is no vector's.
      std::vector<float> room(n + 1, Limits::max());
      float* values = room.data() + 1;
      values[n / 2] = -Limits::denorm_min();
      values[n - 1] = -Limits::max();
      EXPECT_TRUE(kernels.all_finite(values, n));
      for (const std::size_t at : {std::size_t{0}, n / 2, n / 3, n - 1}) {
        for (const float wrong : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                                  -Limits::quiet_NaN(), Limits::signaling_NaN()}) {
          const float was = std::exchange(values[at], wrong);
          EXPECT_FALSE(kernels.all_finite(values, n))
              << kernels.name << ", " << n << " values, at " << at;
          values[at] = was;
        }
      }
      EXPECT_TRUE(kernels.all_finite(values, n));
    }
  }
  EXPECT_TRUE(AllFinite(nullptr, 0));
}

}  // namespace
}  // namespace lockstep::worker
