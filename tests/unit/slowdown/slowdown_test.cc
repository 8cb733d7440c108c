// The patterns as distributions. Seeds are fixed, so a test that passes once passes always; bounds
// are five standard deviations or the like.
#include "base/slowdown.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

SlowdownModel Model(std::vector<std::string> texts, std::uint32_t workers = 8) {
  std::vector<SlowdownSpec> specs;
  for (const std::string& text : texts) {
    auto spec = ParseSlowdownSpec(text);
    LOCKSTEP_CHECK(spec.ok(), "{}", spec.ok() ? "" : spec.error().message);
    specs.push_back(*spec);
  }
  return {std::move(specs), workers};
}

constexpr Duration kUnit = 20ms;

Duration At(const SlowdownModel& model, std::uint32_t worker, Duration since,
            Duration nominal = kUnit) {
  return model.Lengthen(WorkerId(worker), RoundId(0), 0, since, nominal);
}
double FactorOf(const SlowdownModel& model, std::uint32_t worker, std::uint64_t round,
                std::uint32_t unit) {
  return Seconds(model.Lengthen(WorkerId(worker), RoundId(round), unit, 0s, kUnit)) /
         Seconds(kUnit);
}

TEST(Slowdown, NothingActsWithoutSpecs) {
  EXPECT_EQ(At(SlowdownModel(), 0, 5s), kUnit);
  EXPECT_FALSE(SlowdownModel().MayAct(WorkerId(0), 5s));
}

TEST(Slowdown, ConstantActsInItsWindowOnItsWorker) {
  const auto model = Model({"worker=2,factor=4,from=10s,for=5s"});
  EXPECT_EQ(At(model, 3, 12s), 20ms);
  EXPECT_EQ(At(model, 2, 9s), 20ms);
  EXPECT_EQ(At(model, 2, 12s), 80ms);
  EXPECT_EQ(At(model, 2, 15s), 20ms);
  EXPECT_FALSE(model.MayAct(WorkerId(2), 10s - 1ns));
  EXPECT_TRUE(model.MayAct(WorkerId(2), 10s));
  EXPECT_FALSE(model.MayAct(WorkerId(3), 10s));
  EXPECT_FALSE(model.MayAct(WorkerId(2), 15s));
}

TEST(Slowdown, AChangeWithinAUnitActsOnWhatIsLeft) {
  const auto model = Model({"factor=4,from=10s,for=5s"});
  EXPECT_EQ(At(model, 0, 10s - 5ms), 5ms + 60ms) << "15 of its 20 ms are left at the begin";
  EXPECT_EQ(At(model, 0, 15s - 40ms), 40ms + 10ms) << "half of it is done at the end";
}

TEST(Slowdown, FactorsMultiply) {
  const auto model = Model({"factor=2", "worker=1,factor=3", "factor=5,from=1s"});
  EXPECT_EQ(At(model, 0, 0s), 40ms);
  EXPECT_EQ(At(model, 1, 0s), 120ms);
  EXPECT_EQ(At(model, 1, 2s), 600ms);
}

TEST(Slowdown, PauseHoldsAUnit) {
  const auto one = Model({"worker=0,pattern=pause,every=10s,length=1s,from=3s"});
  EXPECT_EQ(At(one, 0, 2s), 20ms);
  EXPECT_EQ(At(one, 0, 3s - 5ms), 20ms + 1s);
  EXPECT_EQ(At(one, 0, 13s + 400ms), 600ms + 20ms);
  EXPECT_EQ(At(one, 0, 14s), 20ms);
  // Each worker at a moment of its own.
  const auto all = Model({"pattern=pause,every=10s,length=1s"});
  std::set<std::int64_t> moments;
  for (std::uint32_t w = 0; w < 50; ++w) {
    std::int64_t held = 0;
    for (Duration t = 20s; t < 30s; t += 10ms) held += At(all, w, t, 1ns) > 1ns;
    EXPECT_NEAR(static_cast<double>(held), 100, 1) << "a tenth of the time";
    for (Duration t = 20s; t < 30s; t += 10ms) {
      if (At(all, w, t, 1ns) > 990ms) moments.insert(t.count());
    }
  }
  EXPECT_GT(moments.size(), 40u);
}

TEST(Slowdown, PausesThatCoverAllTimeEnd) {
  const auto model = Model({"worker=0,pattern=pause,every=2ms,length=1ms",
                            "worker=0,pattern=pause,every=2ms,length=1ms,from=1ms"});
  EXPECT_LT(At(model, 0, 1ms), 24h);
}

TEST(Slowdown, DisruptsOneWorkerAfterTheOther) {
  const auto model = Model({"pattern=disrupted,length=3s,gap=1s,factor=5,seed=7"}, 8);
  std::map<std::uint32_t, int> hits;
  for (int spell = 0; spell < 4000; ++spell) {
    const Duration begin = spell * 4s;
    std::uint32_t victim = 8;
    for (std::uint32_t w = 0; w < 8; ++w) {
      if (At(model, w, begin + 1s) == 100ms) {
        EXPECT_EQ(victim, 8u) << "one at a time";
        victim = w;
      }
      EXPECT_EQ(At(model, w, begin + 3s), 20ms) << "nobody in the gap";
    }
    ASSERT_LT(victim, 8u);
    EXPECT_EQ(At(model, victim, begin + 3s - 50ms), 50ms + 10ms);
    ++hits[victim];
  }
  double chi_square = 0;
  for (std::uint32_t w = 0; w < 8; ++w) chi_square += std::pow(hits[w] - 500.0, 2) / 500.0;
  EXPECT_LT(chi_square, 24.3) << "99.9 % of uniform draws over 8 workers stay below";
  const auto few = Model({"pattern=disrupted,length=3s,factor=5,workers=2"}, 8);
  for (int t = 0; t < 300; ++t) EXPECT_EQ(At(few, 2, t * 1s), 20ms);
}

TEST(Slowdown, SlowWorkerDrawsUnitsAndFactors) {
  const auto model = Model({"pattern=slow-worker,p=0.1,factor=2..6,seed=3"});
  constexpr int kDraws = 200'000;
  int slow = 0;
  double sum = 0;
  double squares = 0;
  int after_slow = 0;
  bool last = false;
  for (int i = 0; i < kDraws; ++i) {
    const auto unit = static_cast<std::uint32_t>(i % 40);
    const double factor = FactorOf(model, i % 8, static_cast<std::uint64_t>(i / 40), unit);
    const bool is_slow = factor > 1;
    slow += is_slow;
    if (is_slow) {
      ASSERT_GE(factor, 2);
      ASSERT_LE(factor, 6);
      sum += factor;
      squares += factor * factor;
    }
    after_slow += last && is_slow;
    last = is_slow;
  }
  const double p = 0.1;
  EXPECT_NEAR(slow, kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)));
  const double mean = sum / slow;
  const double deviation = 4 / std::sqrt(12.0);  // of a uniform draw from 2 to 6
  EXPECT_NEAR(mean, 4, 5 * deviation / std::sqrt(slow));
  EXPECT_NEAR(std::sqrt(squares / slow - mean * mean), deviation, 0.03);
  EXPECT_NEAR(after_slow, slow * p, 5 * std::sqrt(slow * p * (1 - p))) << "independent draws";
}

TEST(Slowdown, SlowWorkerAddsDelays) {
  const auto model = Model({"pattern=slow-worker,p=1,delay=10ms..30ms"});
  double sum = 0;
  for (std::uint32_t unit = 0; unit < 10'000; ++unit) {
    const Duration took = model.Lengthen(WorkerId(1), RoundId(5), unit, 0s, kUnit);
    ASSERT_GE(took, 30ms);
    ASSERT_LE(took, 50ms);
    sum += Seconds(took);
  }
  EXPECT_NEAR(sum / 10'000, 0.040, 5 * 0.020 / std::sqrt(12.0) / 100);
}

TEST(Slowdown, PowerLawIsABoundedPareto) {
  constexpr double kAlpha = 1.5;
  constexpr double kMost = 20;
  const auto model = Model({"pattern=power-law,alpha=1.5,max=20,seed=7"});
  constexpr int kDraws = 100'000;
  std::vector<double> factors;
  for (int i = 0; i < kDraws; ++i) {
    factors.push_back(FactorOf(model, i % 4, static_cast<std::uint64_t>(i / 4), 3));
  }
  std::ranges::sort(factors);
  EXPECT_GE(factors.front(), 1);
  EXPECT_LE(factors.back(), kMost);
  // Kolmogorov-Smirnov.
  const double tail = 1 - std::pow(kMost, -kAlpha);
  double distance = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double expected = (1 - std::pow(factors[i], -kAlpha)) / tail;
    distance = std::max(distance, std::abs(expected - (i + 0.5) / kDraws));
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(kDraws)) << "99.9 % stay below";
}

TEST(Slowdown, DelayTakesWholeSteps) {
  const auto model = Model({"pattern=delay,p=0.02,times=18,seed=11"});
  constexpr int kSteps = 50'000;
  int delayed = 0;
  for (int i = 0; i < kSteps; ++i) {
    const std::uint32_t worker = i % 8;
    const auto round = static_cast<std::uint64_t>(i / 8);
    const double factor = FactorOf(model, worker, round, 0);
    ASSERT_TRUE(factor == 1 || factor == 19);
    ASSERT_EQ(FactorOf(model, worker, round, 17), factor) << "all units of a step alike";
    delayed += factor > 1;
  }
  EXPECT_NEAR(delayed, kSteps * 0.02, 5 * std::sqrt(kSteps * 0.02 * 0.98));
}

TEST(Slowdown, TraceGoesThroughItsPoints) {
  const auto once = Model({"pattern=trace,points=1:2;3:4;5:0.5,from=10s"});
  EXPECT_EQ(At(once, 0, 10s), 20ms);
  EXPECT_EQ(At(once, 0, 11s), 40ms);
  EXPECT_EQ(At(once, 0, 13s - 20ms), 20ms + 40ms);
  EXPECT_EQ(At(once, 0, 14s), 80ms);
  EXPECT_EQ(At(once, 0, 100s), 20ms) << "never faster than undisturbed";
  const auto loop = Model({"pattern=trace,points=0:3;1:1;4:1,loop=1"});
  for (const auto begin : {0s, 4s, 4000s}) {
    EXPECT_EQ(At(loop, 0, begin + 500ms), 60ms);
    EXPECT_EQ(At(loop, 0, begin + 2s), 20ms);
  }
}

TEST(Slowdown, DrawsDependOnSeedWorkerRoundAndUnitAlone) {
  const auto factors = [](const std::string& text) {
    const auto model = Model({text});
    std::vector<double> all;
    for (std::uint32_t w = 0; w < 4; ++w) {
      for (std::uint64_t r = 0; r < 4; ++r) {
        for (std::uint32_t u = 0; u < 4; ++u) all.push_back(FactorOf(model, w, r, u));
      }
    }
    return all;
  };
  const auto seven = factors("pattern=power-law,alpha=1,max=100,seed=7");
  EXPECT_EQ(seven, factors("pattern=power-law,alpha=1,max=100,seed=7"));
  EXPECT_NE(seven, factors("pattern=power-law,alpha=1,max=100,seed=8"));
  EXPECT_EQ(std::set<double>(seven.begin(), seven.end()).size(), seven.size());
  // A single value as it has to stay: runs of different days are compared by their seeds.
  EXPECT_NEAR(seven[21], 5.3957216, 1e-6);
}

}  // namespace
}  // namespace lockstep
