// Against what the formats are by their definition: a sign, an exponent and a fraction, and of two
// numbers beside each other the nearer one, or the even one.
#include "worker/memory/narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "worker/memory/narrow_kernels.h"
#include "worker/memory/reduce.h"

namespace lockstep::worker {
namespace {

constexpr std::uint32_t kPatterns = 1u << 16;
constexpr float kInfinite = std::numeric_limits<float>::infinity();

struct Format {
  NumberType type;
  int fraction_bits;
  int bias;
  std::uint32_t infinity() const { return 0x7fff >> fraction_bits << fraction_bits; }
  std::uint32_t largest() const { return infinity() - 1; }
};
constexpr Format kFormats[] = {{NumberType::kBf16, 7, 127}, {NumberType::kFp16, 10, 15}};

// Of a pattern that is no NaN.
double ValueOf(const Format& format, std::uint32_t pattern) {
  const double sign = pattern & 0x8000 ? -1 : 1;
  const std::uint32_t value = pattern & 0x7fff;
  if (value == format.infinity()) return sign * kInfinite;
  const int exponent = static_cast<int>(value >> format.fraction_bits);
  const int fraction = static_cast<int>(value & ((1u << format.fraction_bits) - 1));
  const int hidden = exponent > 0 ? 1 << format.fraction_bits : 0;
  return sign *
         std::ldexp(hidden + fraction, std::max(exponent, 1) - format.bias - format.fraction_bits);
}

bool IsNan(const Format& format, std::uint32_t pattern) {
  return (pattern & 0x7fff) > format.infinity();
}

const NarrowKernels::Loops& LoopsOf(const NarrowKernels& kernels, const Format& format) {
  return format.type == NumberType::kBf16 ? kernels.bf16 : kernels.fp16;
}

std::vector<std::uint16_t> AllPatterns() {
  std::vector<std::uint16_t> all(kPatterns);
  for (std::uint32_t p = 0; p < kPatterns; ++p) all[p] = static_cast<std::uint16_t>(p);
  return all;
}

class Narrowed : public ::testing::TestWithParam<Format> {
 protected:
  // By every variant, which must agree, and at every place of a vector.
  std::uint16_t Narrow(float value, bool* fits = nullptr) {
    constexpr std::size_t kCount = 33;
    const std::vector<float> from(kCount, value);
    std::vector<std::uint16_t> to(kCount);
    const bool all = worker::Narrow(GetParam().type, from.data(), to.data(), kCount);
    if (fits != nullptr) *fits = all;
    for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
      std::vector<std::uint16_t> other(kCount);
      EXPECT_EQ(LoopsOf(kernels, GetParam()).narrow(from.data(), other.data(), kCount), all)
          << kernels.name << " " << value;
      EXPECT_EQ(other, to) << kernels.name << " " << value;
    }
    for (const std::uint16_t one : to) EXPECT_EQ(one, to[0]) << value;
    return to[0];
  }
};

TEST_P(Narrowed, EveryPatternIsWidenedToItsValueAndBack) {
  const Format& format = GetParam();
  const std::vector<std::uint16_t> all = AllPatterns();
  for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
    std::vector<float> wide(kPatterns);
    LoopsOf(kernels, format).widen(all.data(), wide.data(), kPatterns);
    std::vector<std::uint16_t> back(kPatterns);
    EXPECT_FALSE(LoopsOf(kernels, format).narrow(wide.data(), back.data(), kPatterns));
    for (std::uint32_t p = 0; p < kPatterns; ++p) {
      if (IsNan(format, p)) {
        EXPECT_TRUE(std::isnan(wide[p])) << kernels.name << " " << p;
        EXPECT_TRUE(IsNan(format, back[p])) << kernels.name << " " << p;
        continue;
      }
      ASSERT_EQ(static_cast<double>(wide[p]), ValueOf(format, p)) << kernels.name << " " << p;
      ASSERT_EQ(std::signbit(wide[p]), (p & 0x8000) != 0) << kernels.name << " " << p;
      ASSERT_EQ(back[p], p) << kernels.name;
    }
  }
}

// Each number, the one above it, what lies in the middle, and the FP32 numbers beside the middle.
TEST_P(Narrowed, RoundsToTheNearestAndInATieToTheEvenOne) {
  const Format& format = GetParam();
  std::vector<float> from;
  std::vector<std::uint16_t> expected;
  for (std::uint32_t p = 0; p < format.largest(); ++p) {
    const double below = ValueOf(format, p);
    const double above = ValueOf(format, p + 1);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2);  // FP32 has it
    const std::uint32_t even = p % 2 == 0 ? p : p + 1;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign != 0 ? -1.0f : 1.0f;
      const auto expect = [&](float value, std::uint32_t pattern) {
        from.push_back(s * value);
        expected.push_back(static_cast<std::uint16_t>(pattern | sign));
      };
      expect(middle, even);
      expect(std::nextafter(middle, 0.0f), p);
      expect(std::nextafter(middle, kInfinite), p + 1);
    }
  }
  for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
    std::vector<std::uint16_t> to(from.size());
    EXPECT_TRUE(LoopsOf(kernels, format).narrow(from.data(), to.data(), from.size()));
    for (std::size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(to[i], expected[i]) << kernels.name << " " << from[i];
    }
  }
}

TEST_P(Narrowed, WhatIsTooLargeBecomesTheLargestAndIsTold) {
  const Format& format = GetParam();
  const auto largest = static_cast<float>(ValueOf(format, format.largest()));
  const double step = ValueOf(format, format.largest()) - ValueOf(format, format.largest() - 1);
  const auto too_large = static_cast<float>(static_cast<double>(largest) + step / 2);
  bool fits = false;
  EXPECT_EQ(Narrow(largest, &fits), format.largest());
  EXPECT_TRUE(fits);
  EXPECT_EQ(Narrow(std::nextafter(too_large, 0.0f), &fits), format.largest());
  EXPECT_TRUE(fits);
  for (const float value : {too_large, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(Narrow(value, &fits), format.largest());
    EXPECT_FALSE(fits);
    EXPECT_EQ(Narrow(-value, &fits), format.largest() | 0x8000);
    EXPECT_FALSE(fits);
  }
}

TEST_P(Narrowed, WhatIsNoNumberStaysNone) {
  const Format& format = GetParam();
  bool fits = true;
  EXPECT_EQ(Narrow(kInfinite, &fits), format.infinity());
  EXPECT_FALSE(fits);
  EXPECT_EQ(Narrow(-kInfinite, &fits), format.infinity() | 0x8000);
  EXPECT_FALSE(fits);
  // Of all the bits of a NaN one is set: also the one that is cut off.
  for (int bit = 0; bit < 23; ++bit) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const std::uint32_t nan = 0x7f800000u | 1u << bit | sign;
      EXPECT_TRUE(IsNan(format, Narrow(std::bit_cast<float>(nan), &fits))) << bit;
      EXPECT_FALSE(fits);
    }
  }
  EXPECT_TRUE(IsNan(format, Narrow(std::bit_cast<float>(0xffffffffu), &fits)));
}

TEST_P(Narrowed, WhatIsTooSmallIsZeroOfItsSign) {
  const double smallest = ValueOf(GetParam(), 1);
  const auto tie = static_cast<float>(smallest / 2);
  EXPECT_EQ(Narrow(tie), 0);
  EXPECT_EQ(Narrow(-tie), 0x8000);
  EXPECT_EQ(Narrow(std::nextafter(tie, kInfinite)), 1);
  EXPECT_EQ(Narrow(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(Narrow(-0.0f), 0x8000);
}

// One number that is not finite is found wherever it is, and by every variant.
TEST_P(Narrowed, FindsTheOneThatDoesNotFit) {
  constexpr std::size_t kCount = 70;
  for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
    for (std::size_t bad = 0; bad < kCount; ++bad) {
      std::vector<float> from(kCount, 1.5f);
      std::vector<std::uint16_t> to(kCount);
      from[bad] = kInfinite;
      EXPECT_FALSE(LoopsOf(kernels, GetParam()).narrow(from.data(), to.data(), kCount))
          << kernels.name << " " << bad;
      EXPECT_TRUE(LoopsOf(kernels, GetParam()).narrow(from.data(), to.data(), bad));
    }
  }
}

// Of which sums of a few are finite in FP32.
std::vector<std::uint16_t> RandomNumbers(const Format& format, RandomStream& random,
                                         std::size_t n) {
  std::vector<std::uint16_t> numbers(n);
  for (std::uint16_t& number : numbers) {
    do {
      number = static_cast<std::uint16_t>(random.NextBelow(kPatterns));
    } while ((number & 0x7fff) >= format.infinity() - (4u << format.fraction_bits));
  }
  return numbers;
}

// The sum is that of the widened numbers in FP32, rounded once; however it is cut and by whichever
// variant it is made.
TEST_P(Narrowed, SumsAreMadeInFp32) {
  const Format& format = GetParam();
  RandomStream random(7);
  for (const std::size_t inputs : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    constexpr std::size_t kCount = 5000;
    std::vector<std::vector<std::uint16_t>> narrow;
    std::vector<std::vector<float>> wide;
    std::vector<NarrowInput> from;
    std::vector<Input> wide_from;
    for (std::size_t i = 0; i < inputs; ++i) {
      narrow.push_back(RandomNumbers(format, random, kCount));
      wide.emplace_back(kCount);
      Widen(format.type, narrow.back().data(), wide.back().data(), kCount);
    }
    for (std::size_t i = 0; i < inputs; ++i) {
      const float weight = i == 0 ? 1.0f : 0.37f * static_cast<float>(i);
      from.push_back({narrow[i].data(), weight});
      wide_from.push_back({wide[i].data(), weight});
    }
    std::vector<float> sum(kCount);
    worker::WeightedSum(wide_from, sum.data(), kCount);
    std::vector<std::uint16_t> expected(kCount);
    worker::Narrow(format.type, sum.data(), expected.data(), kCount);
    for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
      std::vector<std::uint16_t> out(kCount);
      LoopsOf(kernels, format).weighted_sum(from, out.data(), kCount);
      EXPECT_EQ(out, expected) << kernels.name << " " << inputs;
    }
    std::vector<std::uint16_t> pieces(kCount);
    for (std::size_t at = 0; at < kCount;) {
      const std::size_t n = std::min<std::size_t>(kCount - at, 1 + random.NextBelow(900));
      std::vector<NarrowInput> shifted = from;
      for (NarrowInput& input : shifted) input.data += at;
      worker::WeightedSum(format.type, shifted, pieces.data() + at, n);
      at += n;
    }
    EXPECT_EQ(pieces, expected) << inputs;
  }
}

TEST_P(Narrowed, ASumOfNothingIsZero) {
  std::vector<std::uint16_t> out(5, 9);
  worker::WeightedSum(GetParam().type, {}, out.data(), out.size());
  EXPECT_EQ(out, std::vector<std::uint16_t>(5, 0));
}

// FP32 may have a number for them (fp16) or not (bf16); further terms are of no matter then.
TEST_P(Narrowed, ASumThatIsTooLargeIsTheLargestNumberAndIsTold) {
  const Format& format = GetParam();
  const auto largest = static_cast<std::uint16_t>(format.largest());
  for (const std::uint32_t sign : {0u, 0x8000u}) {
    const std::vector<std::uint16_t> large(70, static_cast<std::uint16_t>(largest | sign));
    const std::vector<std::uint16_t> other(70,
                                           static_cast<std::uint16_t>(0x1234 | (sign ^ 0x8000)));
    for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
      std::vector<NarrowInput> inputs(3, {large.data(), 1.0f});
      std::vector<std::uint16_t> out(70);
      EXPECT_FALSE(LoopsOf(kernels, format).weighted_sum(inputs, out.data(), out.size()));
      EXPECT_EQ(out, large) << kernels.name;
      inputs.push_back({other.data(), 1.0f});
      EXPECT_FALSE(LoopsOf(kernels, format).weighted_sum(inputs, out.data(), out.size()));
      EXPECT_EQ(out, large) << kernels.name;
      inputs = {{large.data(), 1.0f}, {other.data(), 1.0f}};
      EXPECT_TRUE(LoopsOf(kernels, format).weighted_sum(inputs, out.data(), out.size()));
      EXPECT_EQ(out, large) << kernels.name;
    }
  }
}

// Added one by one in 16 bits the small ones would be rounded away.
TEST(NarrowSumTest, SmallTermsAddUp) {
  const std::uint16_t one = 0x3f80;
  const std::uint16_t small = 0x3b00;  // 2^-9: a quarter of the step above 1
  std::vector<NarrowInput> inputs(5, {&small, 1.0f});
  inputs[0].data = &one;
  std::uint16_t sum = 0;
  WeightedSum(NumberType::kBf16, inputs, &sum, 1);
  float wide = 0;
  Widen(NumberType::kBf16, &sum, &wide, 1);
  EXPECT_EQ(wide, 1.0f + 4 * 0x1p-9f);
}

INSTANTIATE_TEST_SUITE_P(Formats, Narrowed, ::testing::ValuesIn(kFormats), [](const auto& format) {
  return std::string(format.param.type == NumberType::kBf16 ? "bf16" : "fp16");
});

}  // namespace
}  // namespace lockstep::worker
