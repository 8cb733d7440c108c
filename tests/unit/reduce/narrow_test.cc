// Against what the formats are by their definition: a sign, an exponent and a fraction, and of two
// numbers beside each other the nearer one, or the even one.
#include "worker/memory/narrow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "worker/compute/cuda/narrow_formulas.h"
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

// --- stochastic rounding

constexpr RoundId kRound{5};
const Rounding kAtRandom = RoundingOfContribution(1, kRound, WorkerId(2), PartIndex(0));

// The largest number of the type that is not above it; of a value that is not negative.
std::uint32_t Below(const Format& format, double value) {
  std::uint32_t below = 0;
  for (std::uint32_t bit = 0x4000; bit > 0; bit >>= 1) {
    const std::uint32_t pattern = below | bit;
    if (pattern <= format.largest() && ValueOf(format, pattern) <= value) below = pattern;
  }
  return below;
}

// Of all magnitudes that the type has, and some that it has not, exact ones among them.
std::vector<float> RandomValues(const Format& format, RandomStream& random, std::size_t n) {
  std::vector<float> values(n);
  for (float& value : values) {
    const double sign = random.NextBelow(2) == 0 ? 1 : -1;
    const double number = ValueOf(format, static_cast<std::uint32_t>(random.NextBelow(
                                              random.NextBelow(4) == 0 ? 64 : format.largest())));
    const double more = random.NextBelow(8) == 0 ? 0 : random.NextUniform();
    const auto pattern = Below(format, number);
    const double step = ValueOf(format, pattern + 1) - number;
    value = static_cast<float>(sign * (number + more * step));
  }
  return values;
}

TEST_P(Narrowed, AtRandomANumberGoesToOneOfTheTwoBesideIt) {
  const Format& format = GetParam();
  RandomStream random(11);
  const std::vector<float> from = RandomValues(format, random, 100'000);
  std::vector<std::uint16_t> to(from.size());
  EXPECT_TRUE(worker::Narrow(format.type, from.data(), to.data(), from.size(), kAtRandom));
  std::size_t ups = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::uint32_t below = Below(format, std::abs(static_cast<double>(from[i])));
    const bool exact = ValueOf(format, below) == std::abs(static_cast<double>(from[i]));
    const std::uint32_t value = to[i] & 0x7fffu;
    ASSERT_TRUE(value == below || (!exact && value == below + 1)) << from[i] << " " << value;
    ASSERT_EQ((to[i] & 0x8000) != 0, std::signbit(from[i])) << from[i];
    ups += value == below ? 0 : 1;
  }
  EXPECT_GT(ups, from.size() / 3);
  EXPECT_LT(ups, from.size() / 2);
}

// The bits are those of the key and the place, by whichever variant and in whichever pieces.
TEST_P(Narrowed, AtRandomTheBitsFollowFromTheKeyAndThePlace) {
  const Format& format = GetParam();
  RandomStream random(12);
  const std::vector<float> from = RandomValues(format, random, 9'000);
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 32) - 4'321}) {
    std::vector<std::uint16_t> expected(from.size());
    worker::Narrow(format.type, from.data(), expected.data(), from.size(), kAtRandom, first);
    for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
      std::vector<std::uint16_t> to(from.size());
      for (std::size_t at = 0; at < from.size();) {
        const std::size_t n = std::min<std::size_t>(from.size() - at, 1 + random.NextBelow(900));
        LoopsOf(kernels, format)
            .narrow_at_random(from.data() + at, to.data() + at, n, kAtRandom.key, first + at);
        at += n;
      }
      EXPECT_EQ(to, expected) << kernels.name << " " << first;
    }
    std::vector<std::uint16_t> other(from.size());
    worker::Narrow(format.type, from.data(), other.data(), from.size(), kAtRandom, first + 1);
    EXPECT_NE(other, expected);
  }
}

// The same in each build, on each machine, in each version: a job that is run again gives the same.
TEST_P(Narrowed, AtRandomTheBitsAreTheseOnes) {
  const std::vector<float> from(
      64, GetParam().type == NumberType::kBf16 ? 1.0f + 0x1p-8f : 1.0f + 0x1p-11f);
  std::vector<std::uint16_t> to(from.size());
  worker::Narrow(GetParam().type, from.data(), to.data(), from.size(), kAtRandom);
  std::uint64_t ups = 0;
  for (std::size_t i = 0; i < to.size(); ++i) ups |= std::uint64_t{to[i] & 1u} << i;
  EXPECT_EQ(ups, 2514661417229344229u);
}

// As often as of independent draws with this share, give or take six standard deviations: with the
// keys fixed it holds or does not.
void ExpectShare(std::uint64_t ups, std::uint64_t n, double share, double value) {
  const double deviation = std::sqrt(share * (1 - share) * static_cast<double>(n));
  EXPECT_NEAR(static_cast<double>(ups), share * static_cast<double>(n), 6 * deviation + 1e-9)
      << value;
}

TEST_P(Narrowed, AtRandomNothingIsLostOnAverage) {
  const Format& format = GetParam();
  constexpr std::uint64_t kDraws = 1 << 18;
  // A normal number, the smallest one, one that is smaller yet, zero, and the last but one.
  const std::uint32_t normal = 1u << format.fraction_bits;
  for (const std::uint32_t pattern :
       {(format.infinity() + normal) / 2, normal, 3u, 0u, format.largest() - 1}) {
    const double below = ValueOf(format, pattern);
    const double step = ValueOf(format, pattern + 1) - below;
    for (const double share : {0.5, 0.25, 0.75, 0x1p-6, 1 - 0x1p-6, 0x1p-12}) {
      for (const double sign : {1.0, -1.0}) {
        const auto value = static_cast<float>(sign * (below + share * step));
        ASSERT_EQ(static_cast<double>(value), sign * (below + share * step));
        const std::vector<float> from(kDraws, value);
        std::vector<std::uint16_t> to(kDraws);
        ASSERT_TRUE(worker::Narrow(format.type, from.data(), to.data(), kDraws, kAtRandom));
        std::uint64_t ups = 0;
        for (const std::uint16_t one : to) ups += (one & 0x7fffu) - pattern;
        ExpectShare(ups, kDraws, share, static_cast<double>(value));
      }
    }
  }
}

// One place in many rounds, of many workers, in both parts and among the sums; and no two of these,
// nor two places beside each other, go up together more often than chance has it.
TEST_P(Narrowed, AtRandomRoundsWorkersPartsAndPlacesAreIndependent) {
  const Format& format = GetParam();
  constexpr std::uint64_t kRounds = 4'000;
  constexpr std::size_t kPlaces = 32;
  const std::vector<float> from(
      kPlaces, format.type == NumberType::kBf16 ? 1.0f + 0x1p-8f : 1.0f + 0x1p-11f);
  const auto ups = [&](const Rounding& rounding) {
    std::array<std::uint16_t, kPlaces> to{};
    worker::Narrow(format.type, from.data(), to.data(), kPlaces, rounding, 1000);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < kPlaces; ++i) bits |= (to[i] & 1u) << i;
    return bits;
  };
  constexpr std::size_t kKinds = 6;
  std::array<std::uint64_t, kKinds> differ{};
  std::uint64_t all = 0;
  for (std::uint64_t r = 0; r < kRounds; ++r) {
    const auto of = [&](std::uint64_t seed, std::uint64_t round, std::uint32_t worker, int part) {
      return ups(RoundingOfContribution(seed, RoundId(round), WorkerId(worker),
                                        PartIndex(static_cast<std::uint8_t>(part))));
    };
    const std::uint32_t one = of(1, r, 2, 0);
    all += static_cast<std::uint64_t>(std::popcount(one));
    const std::array<std::uint32_t, kKinds> others = {of(2, r, 2, 0),
                                                      of(1, r + 1, 2, 0),
                                                      of(1, r, 3, 0),
                                                      of(1, r, 2, 1),
                                                      ups(RoundingOfSums(1, RoundId(r))),
                                                      std::rotl(one, 1)};
    for (std::size_t k = 0; k < kKinds; ++k) {
      differ[k] += static_cast<std::uint64_t>(std::popcount(one ^ others[k]));
    }
  }
  ExpectShare(all, kRounds * kPlaces, 0.5, 0);
  for (const std::uint64_t bits : differ) ExpectShare(bits, kRounds * kPlaces, 0.5, 0);
}

// Rounding up never makes an infinite number: what is above the largest one is that one, and told
// where rounding to the nearest tells it.
TEST_P(Narrowed, AtRandomNothingBecomesInfinite) {
  const Format& format = GetParam();
  constexpr std::size_t kCount = 4'000;
  const double largest = ValueOf(format, format.largest());
  const double step = largest - ValueOf(format, format.largest() - 1);
  const auto too_large = static_cast<float>(largest + step / 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {static_cast<float>(largest), std::nextafter(too_large, 0.0f), too_large,
                            std::numeric_limits<float>::max(), kInfinite, nan}) {
    for (const float sign : {1.0f, -1.0f}) {
      bool fits = false;
      const std::uint16_t expected = Narrow(sign * value, &fits);
      const std::vector<float> from(kCount, sign * value);
      for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
        std::vector<std::uint16_t> to(kCount);
        EXPECT_EQ(LoopsOf(kernels, format).narrow_at_random(from.data(), to.data(), kCount, 3, 0),
                  fits);
        EXPECT_EQ(to, std::vector(kCount, expected)) << kernels.name << " " << value;
      }
    }
  }
}

// Whoever makes the sums of a slice makes the bits that the owner of more makes there.
TEST_P(Narrowed, AtRandomSumsAreThoseInFp32RoundedOnce) {
  const Format& format = GetParam();
  const Rounding rounding = RoundingOfSums(1, kRound);
  RandomStream random(13);
  constexpr std::size_t kCount = 5'000;
  const std::vector<std::uint16_t> a = RandomNumbers(format, random, kCount);
  const std::vector<std::uint16_t> b = RandomNumbers(format, random, kCount);
  const std::vector<NarrowInput> from = {{a.data(), 1.0f}, {b.data(), 0.37f}};
  std::vector<float> wide_a(kCount);
  std::vector<float> wide_b(kCount);
  Widen(format.type, a.data(), wide_a.data(), kCount);
  Widen(format.type, b.data(), wide_b.data(), kCount);
  std::vector<float> sum(kCount);
  worker::WeightedSum(std::vector<Input>{{wide_a.data(), 1.0f}, {wide_b.data(), 0.37f}}, sum.data(),
                      kCount);
  std::vector<std::uint16_t> expected(kCount);
  worker::Narrow(format.type, sum.data(), expected.data(), kCount, rounding, 500);
  for (const NarrowKernels& kernels : AvailableNarrowKernels()) {
    std::vector<std::uint16_t> out(kCount);
    LoopsOf(kernels, format).weighted_sum_at_random(from, out.data(), kCount, rounding.key, 500);
    EXPECT_EQ(out, expected) << kernels.name;
  }
  std::vector<std::uint16_t> slice(1'000);
  const std::vector<NarrowInput> shifted = {{a.data() + 3'333, 1.0f}, {b.data() + 3'333, 0.37f}};
  worker::WeightedSum(format.type, shifted, slice.data(), slice.size(), rounding, 500 + 3'333);
  EXPECT_TRUE(std::equal(slice.begin(), slice.end(), expected.begin() + 3'333));
  std::vector<std::uint16_t> nearest(kCount);
  worker::WeightedSum(format.type, from, nearest.data(), kCount);
  EXPECT_NE(nearest, expected);
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

// --- the formulae that a device's kernels are made of (compute/cuda/narrow_formulas.h)

template <cuda::NarrowWhat kWhat>
std::uint16_t ByFormula(const Format& format, float number, const Rounding& rounding,
                        std::uint64_t place, bool& fits) {
  return format.type == NumberType::kBf16
             ? cuda::NarrowOne<cuda::Bf16Number, kWhat>(number, rounding, place, fits)
             : cuda::NarrowOne<cuda::Fp16Number, kWhat>(number, rounding, place, fits);
}

// Of each exponent many, and those beside what rounding decides by.
std::vector<float> NumbersOfAllSizes(const Format& format) {
  std::vector<float> numbers;
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 8191) {
    numbers.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (std::uint32_t p = 0; p < format.infinity(); ++p) {
    const auto middle = static_cast<float>((ValueOf(format, p) + ValueOf(format, p + 1)) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const auto value = static_cast<float>(ValueOf(format, p));
      for (const float near : {value, middle}) {
        numbers.push_back(sign * near);
        numbers.push_back(sign * std::nextafter(near, 0.0f));
        numbers.push_back(sign * std::nextafter(near, kInfinite));
      }
    }
  }
  return numbers;
}

TEST_P(Narrowed, ADevicesFormulasHaveTheBits) {
  const Format& format = GetParam();
  const std::vector<float> from = NumbersOfAllSizes(format);
  std::vector<std::uint16_t> to(from.size());
  for (const std::uint64_t first :
       {std::uint64_t{0}, (std::uint64_t{1} << 32) - 400'000, std::uint64_t{1} << 40}) {
    for (const Rounding& rounding : {Rounding{}, kAtRandom}) {
      worker::Narrow(format.type, from.data(), to.data(), from.size(), rounding, first);
      std::vector<float> sums = from;
      std::vector<std::uint16_t> of_sums(from.size());
      if (!rounding.stochastic) {
        NarrowSums(format.type, sums.data(), of_sums.data(), sums.size());
      }
      for (std::size_t i = 0; i < from.size(); ++i) {
        bool fits = true;
        const std::uint16_t found =
            ByFormula<cuda::NarrowWhat::kGiven>(format, from[i], rounding, first + i, fits);
        if (std::isnan(from[i])) {
          ASSERT_TRUE(IsNan(format, found)) << i;
          ASSERT_FALSE(fits);
          continue;
        }
        ASSERT_EQ(found, to[i]) << from[i] << " at " << first + i;
        std::uint16_t alone = 0;
        ASSERT_EQ(fits, worker::Narrow(format.type, &from[i], &alone, 1)) << from[i];
        if (rounding.stochastic) continue;
        ASSERT_EQ(ByFormula<cuda::NarrowWhat::kSum>(format, from[i], rounding, first + i, fits),
                  of_sums[i])
            << from[i];
      }
    }
  }
}

TEST_P(Narrowed, ADevicesFormulasWidenToTheSame) {
  const std::vector<std::uint16_t> from = AllPatterns();
  std::vector<float> to(from.size());
  Widen(GetParam().type, from.data(), to.data(), from.size());
  for (std::uint32_t p = 0; p < kPatterns; ++p) {
    const float found = GetParam().type == NumberType::kBf16 ? cuda::Bf16Number::Widen(p)
                                                             : cuda::Fp16Number::Widen(p);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(to[p])) << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Narrowed, ::testing::ValuesIn(kFormats), [](const auto& format) {
  return std::string(format.param.type == NumberType::kBf16 ? "bf16" : "fp16");
});

}  // namespace
}  // namespace lockstep::worker
