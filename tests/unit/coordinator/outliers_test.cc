// Workers whose gradients are unlike others', and a loss that explodes, are found; what numbers of
// samples, noise and single rounds explain is not.
#include "coordinator/core/outliers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"

namespace lockstep::coordinator {
namespace {

using Norm = GradientWatch::Norm;
using Change = GradientWatch::Change;

// A mean gradient of norm 1 and noise for each sample, as in training. Normal, by twelve uniforms.
class Gradients {
 public:
  explicit Gradients(double noise) : noise_(noise) {}

  Norm Of(std::uint32_t worker, double samples, double times = 1) {
    double squares = 0;
    for (int i = 0; i < kValues; ++i) {
      const double mean = 1 / std::sqrt(kValues);
      const double value = samples * mean + std::sqrt(samples) * noise_ * Normal();
      squares += value * value;
    }
    return {WorkerId(worker), times * times * squares, samples};
  }

 private:
  static constexpr int kValues = 20;
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i)
      sum += static_cast<double>(random_.NextBelow(1u << 20)) / (1 << 20);
    return sum;
  }
  double noise_;
  RandomStream random_{7};
};

// Rounds until the first change; nothing in so many.
std::vector<Change> FirstChange(GradientWatch& watch, int rounds,
                                const std::function<std::vector<Norm>()>& round) {
  for (int r = 0; r < rounds; ++r) {
    if (auto changes = watch.OnRound(round()); !changes.empty()) return changes;
  }
  return {};
}

// -3 times the right gradient is 3 times as large.
TEST(GradientWatch, NamesTheOneThatIsThreeTimesAsLarge) {
  for (const std::uint32_t workers : {2u, 3u, 4u, 9u}) {
    for (const double noise : {0.0, 0.3, 3.0}) {
      GradientWatch watch(workers);
      Gradients gradients(noise);
      const auto changes = FirstChange(watch, 100, [&] {
        std::vector<Norm> norms;
        for (std::uint32_t w = 0; w < workers; ++w) {
          norms.push_back(gradients.Of(w, 8, w == 1 ? -3 : 1));
        }
        return norms;
      });
      ASSERT_EQ(changes.size(), 1u) << workers << " workers, noise " << noise;
      EXPECT_EQ(changes[0].worker, WorkerId(1));
      EXPECT_TRUE(changes[0].far);
      EXPECT_EQ(changes[0].of_two, workers == 2);
      EXPECT_NEAR(changes[0].times, 3, 0.7);
      EXPECT_NEAR(*watch.Times(WorkerId(1)), 3, 0.7);
    }
  }
}

TEST(GradientWatch, NamesTheOneThatIsAnEighthOrNothing) {
  for (const double times : {0.125, 0.0}) {
    GradientWatch watch(4);
    Gradients gradients(0.3);
    const auto changes = FirstChange(watch, 100, [&] {
      std::vector<Norm> norms;
      for (std::uint32_t w = 0; w < 4; ++w) norms.push_back(gradients.Of(w, 8, w == 2 ? times : 1));
      return norms;
    });
    ASSERT_EQ(changes.size(), 1u) << times;
    EXPECT_EQ(changes[0].worker, WorkerId(2));
    EXPECT_LT(changes[0].times, 0.2);
  }
}

// Whatever a worker's share is, of noise or of a gradient that all samples have in common.
TEST(GradientWatch, UnevenSharesAreNotUnlike) {
  for (const double noise : {0.0, 0.3, 3.0, 30.0}) {
    for (const std::uint32_t workers : {2u, 4u, 7u}) {
      GradientWatch watch(workers);
      Gradients gradients(noise);
      const auto changes = FirstChange(watch, 2000, [&] {
        std::vector<Norm> norms;
        for (std::uint32_t w = 0; w < workers; ++w) {
          norms.push_back(gradients.Of(w, w == 0 ? 1 : 64));
        }
        return norms;
      });
      EXPECT_TRUE(changes.empty()) << workers << " workers, noise " << noise << ": worker "
                                   << changes[0].worker.value << " " << changes[0].times;
    }
  }
}

// A hard batch now and then, of any worker; and workers that each have data of their own.
TEST(GradientWatch, SingleRoundsAndDataOfTheirOwnAreNotUnlike) {
  GradientWatch watch(6);
  Gradients gradients(0.3);
  RandomStream random(3);
  const auto changes = FirstChange(watch, 3000, [&] {
    std::vector<Norm> norms;
    for (std::uint32_t w = 0; w < 6; ++w) {
      const double own = std::exp(0.4 * (w - 2.5));
      norms.push_back(gradients.Of(w, 8, own * (random.NextBelow(40) == 0 ? 20 : 1)));
    }
    return norms;
  });
  EXPECT_TRUE(changes.empty()) << changes[0].worker.value << " " << changes[0].times;
}

TEST(GradientWatch, SaysAtOnceWhatIsBeyondAnythingSeen) {
  for (const std::uint32_t workers : {2u, 5u}) {
    GradientWatch watch(workers);
    Gradients gradients(0.3);
    const auto round = [&](double times) {
      std::vector<Norm> norms;
      for (std::uint32_t w = 0; w < workers; ++w) {
        norms.push_back(gradients.Of(w, 8, w == 1 ? times : 1));
      }
      return watch.OnRound(norms);
    };
    EXPECT_TRUE(round(1).empty());
    const auto changes = round(1e30);
    ASSERT_EQ(changes.size(), 1u);
    EXPECT_EQ(changes[0].worker, WorkerId(1));
    EXPECT_NEAR(changes[0].times / 1e30, 1, 0.5);
    EXPECT_EQ(watch.Far().size(), 1u);
    // It stands for a while, and is over when it has long been like the others.
    std::vector<Change> over;
    for (int r = 0; r < 31; ++r) EXPECT_TRUE(round(1).empty()) << r;
    for (int r = 0; r < 200 && over.empty(); ++r) over = round(1);
    ASSERT_EQ(over.size(), 1u);
    EXPECT_FALSE(over[0].far);
    EXPECT_TRUE(watch.Far().empty());
  }
}

// Near the end of a job most samples are learnt and have hardly a gradient: one that is not is
// large beside them, and was usual once.
TEST(GradientWatch, WhatWasUsualOnceIsNotBeyondAnythingSeen) {
  GradientWatch watch(4);
  Gradients gradients(0.3);
  const auto round = [&](double all, double one) {
    std::vector<Norm> norms;
    for (std::uint32_t w = 0; w < 4; ++w) norms.push_back(gradients.Of(w, 8, w == 3 ? one : all));
    return watch.OnRound(norms);
  };
  EXPECT_TRUE(round(1, 1).empty());
  for (int r = 0; r < 40; ++r) EXPECT_TRUE(round(1e-5, 1e-5).empty());
  EXPECT_TRUE(round(1e-5, 1).empty());
}

TEST(GradientWatch, ANewProcessBeginsAnew) {
  GradientWatch watch(3);
  Gradients gradients(0);
  const auto round = [&](double times) {
    return std::vector<Norm>{gradients.Of(0, 8), gradients.Of(1, 8, times), gradients.Of(2, 8)};
  };
  ASSERT_FALSE(FirstChange(watch, 100, [&] { return round(3); }).empty());
  watch.Forget(WorkerId(1));
  EXPECT_TRUE(watch.Far().empty());
  EXPECT_FALSE(watch.Times(WorkerId(1)));
  EXPECT_TRUE(FirstChange(watch, 200, [&] { return round(1); }).empty());
}

TEST(LossWatch, SaysThatALossExplodesAndThatItIsOver) {
  LossWatch watch;
  for (int r = 0; r < 50; ++r) EXPECT_FALSE(watch.OnRound(2.3 / (1 + r)));
  EXPECT_FALSE(watch.OnRound(2.2));  // a hard batch
  EXPECT_FALSE(watch.OnRound(30));   // and a very hard one
  EXPECT_FALSE(watch.OnRound(0.1));
  EXPECT_FALSE(watch.OnRound(30));
  EXPECT_FALSE(watch.OnRound(40));
  EXPECT_TRUE(watch.OnRound(50));
  EXPECT_TRUE(watch.exploded());
  EXPECT_NEAR(watch.times(), 50 / 2.3, 0.1);
  int rounds = 0;
  while (!watch.OnRound(1)) ASSERT_LT(++rounds, 100);
  EXPECT_FALSE(watch.exploded());
}

TEST(LossWatch, IsNotMeasuredByALossThatExplodesFromTheStart) {
  LossWatch watch;
  EXPECT_FALSE(watch.OnRound(2.3));
  EXPECT_TRUE(watch.OnRound(3.4e53));
  EXPECT_TRUE(watch.exploded());
}

TEST(LossWatch, KnowsLossesBelowZero) {
  LossWatch watch;
  for (int r = 0; r < 200; ++r) EXPECT_FALSE(watch.OnRound(-1.0 - r));
  for (int r = 0; r < 10; ++r) watch.OnRound(200);
  EXPECT_TRUE(watch.exploded());
}

}  // namespace
}  // namespace lockstep::coordinator
