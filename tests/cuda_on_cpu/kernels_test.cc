// Kernels, compiled for the CPU, write what they are to write, with the bits of the CPU's loops,
// and nothing else: pieces of all lengths, in any place, by several blocks. What a GPU makes of
// them is for tests/gpu.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "tests/cuda_on_cpu/cuda_words.h"
#include "worker/compute/cuda/copy_kernel.cuh"
#include "worker/compute/cuda/narrow_kernels.cuh"
#include "worker/memory/narrow.h"

namespace lockstep::worker::cuda {
namespace {

constexpr std::size_t kCount = 600;
constexpr int kTurns = 2000;

class Kernels : public testing::Test {
 protected:
  std::size_t Below(std::size_t bound) { return random_.NextBelow(bound); }
  Place Grid(unsigned pieces) { return {static_cast<unsigned>(1 + Below(2)), pieces}; }
  // As many gradients are, and here and there one that is large.
  std::vector<std::uint16_t> Numbers(NumberType type, bool large) {
    std::vector<float> wide(kCount);
    for (float& number : wide) {
      number = (random_.NextUniform() - 0.5f) * (large && Below(40) == 0 ? 1e5f : 1e-3f);
    }
    std::vector<std::uint16_t> narrow(kCount);
    worker::Narrow(type, wide.data(), narrow.data(), kCount);
    return narrow;
  }
  Rounding AnyRounding() { return {Below(2) == 0, random_.NextWord()}; }

  RandomStream random_{11};
};

TEST_F(Kernels, CopiesLandWhereTheyAreToAndNowhereElse) {
  std::vector<std::uint16_t> from(kCount);
  for (auto& number : from) number = static_cast<std::uint16_t>(random_.NextWord());
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<std::uint16_t> to(kCount, 7);
    std::vector<std::uint16_t> expected = to;
    Pieces<CopyPiece> pieces;
    for (std::size_t at = Below(9); pieces.count < 5; at += Below(5)) {
      const std::size_t n = Below(60);
      const std::size_t source = turn % 3 == 0 ? at : turn % 3 == 1 ? at + 2 : Below(kCount - n);
      pieces.Add({from.data() + source, to.data() + at, n});
      std::copy_n(from.data() + source, n, expected.data() + at);
      at += n;
    }
    Start(Grid(pieces.count), 4, CopyKernel, pieces);
    ASSERT_EQ(to, expected) << turn;
  }
}

template <class Type>
class NarrowKernels : public Kernels {};
using Types = testing::Types<Bf16Number, Fp16Number>;
TYPED_TEST_SUITE(NarrowKernels, Types);

TYPED_TEST(NarrowKernels, SumsHaveTheBits) {
  constexpr NumberType kType = TypeParam::kType;
  bool all_fit = true;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::size_t terms = 1 + this->Below(turn % 50 == 0 ? 90 : 5);
    // Alike, alike but for whole words, and anyhow.
    const std::size_t skew = this->Below(8);
    const auto start = [&]() -> std::size_t {
      if (turn % 3 == 0) return skew;
      return turn % 3 == 1 ? skew + kNarrowInWord * this->Below(3) : this->Below(20);
    };
    std::vector<std::vector<std::uint16_t>> data;
    std::vector<NarrowInput> inputs;
    data.reserve(terms);
    for (std::size_t t = 0; t < terms; ++t) {
      data.push_back(this->Numbers(kType, turn % 7 == 0));
      inputs.push_back({data.back().data() + start(), 1.0f / static_cast<float>(1 + t % 3)});
    }
    std::vector<std::uint16_t> found(kCount, 9);
    std::vector<std::uint16_t> expected = found;
    std::uint16_t* const out = found.data() + start();
    NarrowTerms arguments{};
    arguments.count = static_cast<unsigned>(terms);
    arguments.askew = std::ranges::any_of(
        inputs, [&](const NarrowInput& input) { return SkewOf(input.data) != SkewOf(out); });
    if (terms > kMostNarrowTerms) {
      arguments.table = inputs.data();
    } else {
      std::ranges::copy(inputs, arguments.of);
    }
    const Rounding rounding = this->AnyRounding();
    const std::uint64_t place = turn % 2 == 0 ? 0 : (std::uint64_t{1} << 32) - 100;
    Pieces<NarrowPiece> pieces;
    bool fits = true;
    for (std::size_t at = 0; pieces.count < 4; at += this->Below(5)) {
      const std::size_t n = 1 + this->Below(60);
      pieces.Add({static_cast<std::ptrdiff_t>(at), n});
      std::vector<NarrowInput> shifted = inputs;
      for (NarrowInput& input : shifted) input.data += at;
      fits = WeightedSum(kType, shifted, expected.data() + (out - found.data()) + at, n, rounding,
                         place + at) &&
             fits;
      at += n;
    }
    unsigned too_large = 0;
    Start(this->Grid(pieces.count), 4, NarrowSumKernel<TypeParam>, arguments, pieces, out, rounding,
          place, &too_large);
    ASSERT_EQ(found, expected) << turn;
    ASSERT_EQ(too_large == 0, fits) << turn;
    all_fit = all_fit && fits;
  }
  EXPECT_EQ(all_fit, kType == NumberType::kBf16) << "in fp16 some are too large";
}

TYPED_TEST(NarrowKernels, NumbersGoToSixteenBitsAndBack) {
  constexpr NumberType kType = TypeParam::kType;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::vector<std::uint16_t> narrow = this->Numbers(kType, true);
    std::vector<float> wide(kCount, -1);
    std::vector<float> expected = wide;
    Pieces<NarrowPiece> pieces;
    for (std::size_t at = this->Below(3); pieces.count < 5; at += this->Below(5)) {
      const std::size_t n = this->Below(60);
      pieces.Add({static_cast<std::ptrdiff_t>(at), n});
      Widen(kType, narrow.data() + at, expected.data() + at, n);
      at += n;
    }
    Start(this->Grid(pieces.count), 4, WidenKernel<TypeParam>, pieces, narrow.data(), wide.data());
    ASSERT_EQ(wide, expected) << turn;

    for (float& number : wide) number *= 1.001f;
    const Rounding rounding = this->AnyRounding();
    std::vector<std::uint16_t> found(kCount, 3);
    std::vector<std::uint16_t> to(kCount, 3);
    const std::size_t n = this->Below(kCount);
    const bool fits = Narrow(kType, wide.data(), to.data(), n, rounding, 5);
    unsigned too_large = 0;
    Start(this->Grid(1), 4, NarrowKernel<TypeParam>, wide.data(), found.data(), n, rounding,
          std::uint64_t{5}, &too_large);
    ASSERT_EQ(found, to) << turn;
    ASSERT_EQ(too_large == 0, fits) << turn;
  }
}

}  // namespace
}  // namespace lockstep::worker::cuda
