// Blocks of which few numbers are there: which ones are taken, that nothing is lost of the others,
// and that no bytes make anybody write beyond a block.
#include "worker/memory/sparse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace lockstep::worker {
namespace {

constexpr NumberType kTypes[] = {NumberType::kFp32, NumberType::kBf16, NumberType::kFp16};
constexpr std::uint32_t kEntries[] = {1, 2, 11, 64, 65, 103, 512, 1024};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> BlockFor(NumberType type, std::uint32_t entries,
                                std::byte before = std::byte{0xaa}) {
  return std::vector<std::byte>(SparseBlockNumbers(entries, NumberBytes(type)) * NumberBytes(type),
                                before);
}

// What the bytes say, times a weight.
std::vector<float> Dense(NumberType type, std::uint32_t entries,
                         const std::vector<std::byte>& bytes, float weight = 1) {
  std::vector<float> block(kSparseBlock);
  AddSparse(type, entries, bytes.data(), weight, block.data());
  return block;
}

std::vector<float> RandomBlock(std::uint64_t seed, std::size_t n) {
  RandomStream random(seed);
  std::vector<float> block(n);
  for (float& value : block) {
    // Few magnitudes in some, so that there are ties, and zeros.
    value = seed % 2 == 0 ? random.NextUniform() - 0.5f
                          : static_cast<float>(random.NextBelow(9)) - 4.0f;
  }
  return block;
}

// The same by sorting.
std::vector<std::size_t> Largest(const std::vector<float>& block, std::uint32_t entries) {
  std::vector<std::size_t> places(block.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::ranges::stable_sort(places, [&](std::size_t a, std::size_t b) {
    return std::fabs(block[a]) > std::fabs(block[b]);
  });
  places.resize(std::min<std::size_t>(entries, block.size()));
  return places;
}

TEST(SparseBlock, TakesNoMoreThanItSays) {
  EXPECT_EQ(SparseBlockNumbers(11, 4), 11u + 6u);  // 22 bytes of places, and two to the next number
  EXPECT_EQ(SparseBlockNumbers(11, 2), 11u + 11u);
  EXPECT_EQ(SparseBlockNumbers(64, 4), 64u + 32u);    // as places or as bits
  EXPECT_EQ(SparseBlockNumbers(512, 4), 512u + 32u);  // bits
  EXPECT_EQ(SparseBlockNumbers(103, 2), 103u + 64u);
}

TEST(TakeLargest, TakesThoseThatSortingFinds) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{63}, std::size_t{700}, std::size_t{1024}}) {
      const std::vector<float> given = RandomBlock(seed, n);
      for (const std::uint32_t entries : kEntries) {
        std::vector<float> block = given;
        std::vector<std::byte> bytes = BlockFor(NumberType::kFp32, entries);
        ASSERT_TRUE(TakeLargest(NumberType::kFp32, entries, block.data(), n, bytes.data()));
        std::vector<float> expected = given;
        std::vector<float> sent(kSparseBlock);
        for (const std::size_t place : Largest(given, entries)) {
          sent[place] = given[place];
          expected[place] = 0;
        }
        ASSERT_EQ(block, expected) << "seed " << seed << ", " << entries << " of " << n;
        ASSERT_EQ(Dense(NumberType::kFp32, entries, bytes), sent) << seed << ", " << entries;
      }
    }
  }
}

TEST(TakeLargest, OfEqualOnesTakesTheFirst) {
  std::vector<float> block(1024, -2.0f);
  block[1000] = 3;
  std::vector<std::byte> bytes = BlockFor(NumberType::kFp32, 3);
  ASSERT_TRUE(TakeLargest(NumberType::kFp32, 3, block.data(), block.size(), bytes.data()));
  EXPECT_EQ(block[0], 0);
  EXPECT_EQ(block[1], 0);
  EXPECT_EQ(block[2], -2);
  EXPECT_EQ(block[1000], 0);
}

// In 16 bits too: what rounding takes is kept.
TEST(TakeLargest, LosesNothing) {
  for (const NumberType type : kTypes) {
    for (const std::uint32_t entries : kEntries) {
      const std::vector<float> given = RandomBlock(entries * 2, 1024);
      std::vector<float> block = given;
      std::vector<std::byte> bytes = BlockFor(type, entries);
      ASSERT_TRUE(TakeLargest(type, entries, block.data(), block.size(), bytes.data()));
      const std::vector<float> sent = Dense(type, entries, bytes);
      EXPECT_EQ(std::ranges::count_if(sent, [](float value) { return value != 0; }), entries);
      for (std::size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i] + sent[i], given[i]);
    }
  }
}

TEST(TakeLargest, WhatIsNoNumberIsToldOf) {
  for (const NumberType type : kTypes) {
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      std::vector<float> block(1024, 1.0f);
      block[700] = bad;
      std::vector<std::byte> bytes = BlockFor(type, 11);
      EXPECT_FALSE(TakeLargest(type, 11, block.data(), block.size(), bytes.data()));
      EXPECT_FALSE(std::isfinite(Dense(type, 11, bytes)[700]));
    }
  }
}

// What is kept may grow beyond what a gradient of the type can have: it takes more than one turn.
TEST(TakeLargest, WhatIsTooLargeForTheTypeGoesByAndBy) {
  std::vector<float> block(1024, 1.0f);
  block[5] = -70000;
  std::vector<std::byte> bytes = BlockFor(NumberType::kFp16, 1);
  for (const float sent : {-65504.0f, -4496.0f}) {
    EXPECT_TRUE(TakeLargest(NumberType::kFp16, 1, block.data(), block.size(), bytes.data()));
    EXPECT_EQ(Dense(NumberType::kFp16, 1, bytes)[5], sent);
  }
  EXPECT_EQ(block, [] {
    std::vector<float> left(1024, 1.0f);
    left[5] = 0;
    return left;
  }());
}

TEST(TakeLargest, OfNothingSendsNothing) {
  for (const std::uint32_t entries : kEntries) {
    std::vector<std::byte> bytes = BlockFor(NumberType::kFp32, entries);
    EXPECT_TRUE(TakeLargest(NumberType::kFp32, entries, nullptr, 0, bytes.data()));
    EXPECT_EQ(Dense(NumberType::kFp32, entries, bytes), std::vector<float>(kSparseBlock));
  }
}

// Whatever lay there before: nothing of it is sent, and equal sums are equal bytes.
TEST(SparseBlock, EveryByteIsWritten) {
  for (const NumberType type : kTypes) {
    for (const std::uint32_t entries : kEntries) {
      std::vector<float> few(1024);
      few[3] = 1;
      std::vector<std::byte> a = BlockFor(type, entries, std::byte{0x00});
      std::vector<std::byte> b = BlockFor(type, entries, std::byte{0xff});
      PutNonZero(type, entries, few.data(), few.size(), a.data());
      PutNonZero(type, entries, few.data(), few.size(), b.data());
      EXPECT_EQ(a, b);
      a = BlockFor(type, entries, std::byte{0x00});
      b = BlockFor(type, entries, std::byte{0xff});
      for (auto* bytes : {&a, &b}) {
        std::vector<float> three = {1, 2, 3};
        TakeLargest(type, entries, three.data(), three.size(), bytes->data());
      }
      EXPECT_EQ(a, b);
    }
  }
}

TEST(Sums, AreThoseOfWhatWasSent) {
  for (const NumberType type : kTypes) {
    for (const std::uint32_t entries : {1u, 11u, 103u, 340u}) {
      std::vector<float> expected(kSparseBlock);
      std::vector<float> sum(kSparseBlock);
      for (std::uint64_t part = 0; part < 3; ++part) {
        std::vector<float> block = RandomBlock(2 * part + 1, 1024);  // whole numbers
        std::vector<std::byte> bytes = BlockFor(type, entries);
        ASSERT_TRUE(TakeLargest(type, entries, block.data(), block.size(), bytes.data()));
        const float weight = part == 1 ? 0.5f : 1.0f;
        const std::vector<float> sent = Dense(type, entries, bytes);
        for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += weight * sent[i];
        AddSparse(type, entries, bytes.data(), weight, sum.data());
      }
      ASSERT_EQ(sum, expected);
      std::vector<std::byte> bytes = BlockFor(type, 3 * entries);
      EXPECT_TRUE(PutNonZero(type, 3 * entries, sum.data(), sum.size(), bytes.data()));
      EXPECT_EQ(Dense(type, 3 * entries, bytes), sum);
    }
  }
}

TEST(Sums, ThatAreTooLargeAreTheLargestNumber) {
  std::vector<float> sum(1024);
  sum[8] = kInfinity;
  sum[9] = -1e5f;
  std::vector<std::byte> bytes = BlockFor(NumberType::kFp16, 11);
  EXPECT_FALSE(PutNonZero(NumberType::kFp16, 11, sum.data(), sum.size(), bytes.data()));
  const std::vector<float> seen = Dense(NumberType::kFp16, 11, bytes);
  EXPECT_EQ(seen[8], 65504);
  EXPECT_EQ(seen[9], -65504);
}

// A broken peer's, or torn ones.
TEST(AddSparse, AnyBytesStayWithinTheBlock) {
  RandomStream random(3);
  for (int round = 0; round < 200; ++round) {
    for (const NumberType type : kTypes) {
      for (const std::uint32_t entries : kEntries) {
        std::vector<std::byte> bytes = BlockFor(type, entries);
        for (std::byte& byte : bytes) {
          byte = round == 0 ? std::byte{0xff} : static_cast<std::byte>(random.NextBelow(256));
        }
        std::vector<float> around(3 * kSparseBlock, 7.0f);
        AddSparse(type, entries, bytes.data(), 1, around.data() + kSparseBlock);
        for (std::size_t i = 0; i < kSparseBlock; ++i) {
          ASSERT_EQ(around[i], 7);
          ASSERT_EQ(around[2 * kSparseBlock + i], 7);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::worker
