// What is looked at of a gradient tells how large it is, over rounds each of its values, and is the
// same for all workers.
#include "worker/runtime/gradient_sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "worker/memory/host_memory.h"

namespace lockstep::worker {
namespace {

double Squares(const std::vector<float>& gradient, std::uint64_t round = 0) {
  HostMemory memory;
  return SampledSquares(memory, gradient.data(), gradient.size(), round).value();
}

TEST(GradientSample, OfASmallGradientIsAllOfIt) {
  for (const std::size_t count : {1u, 7u, 1023u, 1024u, 65536u}) {
    const std::vector<float> gradient(count, 0.5f);
    for (const std::uint64_t round : {0u, 1u, 17u}) {
      EXPECT_EQ(Squares(gradient, round), 0.25 * static_cast<double>(count)) << count;
    }
  }
}

TEST(GradientSample, OfALargeOneGrowsWithItsSquare) {
  const std::vector<float> gradient(1'000'003, 0.5f);
  EXPECT_EQ(Squares(gradient, 3), 0.25 * 65536);
  const std::vector<float> large(1'000'003, -1e30f);
  EXPECT_NEAR(std::sqrt(Squares(large, 3) / 65536) / 1e30, 1, 1e-6);
}

// Each value is looked at in some round, but for fewer than 64 at the very end.
TEST(GradientSample, LooksElsewhereInEachRound) {
  constexpr std::size_t kValues = 300'001;
  for (const std::size_t at : {std::size_t{0}, kValues / 3, kValues / 2, kValues - 64}) {
    std::vector<float> gradient(kValues);
    gradient[at] = 3;
    int rounds = 0;
    for (std::uint64_t round = 0; round < 5; ++round)
      rounds += Squares(gradient, round) > 0 ? 1 : 0;
    EXPECT_GE(rounds, 1) << at;
    EXPECT_LT(rounds, 5) << at;
  }
}

TEST(GradientSample, SaysNothingOfWhatIsNoNumber) {
  HostMemory memory;
  std::vector<float> gradient(100, 1.0f);
  gradient[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(SampledSquares(memory, gradient.data(), gradient.size(), 0));
}

}  // namespace
}  // namespace lockstep::worker
