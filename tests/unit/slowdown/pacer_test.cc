#include "worker/runtime/pacer.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/check.h"

namespace lockstep::worker {
namespace {

using namespace std::chrono_literals;

std::vector<SlowdownSpec> Specs(const std::string& text) {
  auto specs = ParseSlowdownLines(text);
  LOCKSTEP_CHECK(specs.ok());
  return *specs;
}

const std::atomic<bool> kNotCancelled{false};

TEST(Pacer, WithoutFloorAndSlowdownItDoesNothing) {
  Pacer pacer(0ms, MonotonicNow(), WorkerId(0), 1);
  const Time now = MonotonicNow();
  EXPECT_EQ(pacer.Begin(RoundId(0), 0, now), now);
  EXPECT_FALSE(pacer.Active());
  const Time ended = pacer.Pace(kNotCancelled);
  EXPECT_LE(ended, MonotonicNow());
}

TEST(Pacer, AUnitLastsItsFloorAndLatenessDoesNotAddUp) {
  Pacer pacer(3ms, MonotonicNow(), WorkerId(0), 1);
  Time turned = MonotonicNow();
  Time begun = pacer.Begin(RoundId(4), 0, turned);
  EXPECT_EQ(begun, turned);
  EXPECT_TRUE(pacer.Active());
  Duration late{};
  for (std::uint32_t unit = 1; unit < 20; ++unit) {
    const Time ended = pacer.Pace(kNotCancelled);
    EXPECT_GE(ended - begun, 3ms);
    turned = MonotonicNow();
    begun = pacer.Begin(RoundId(4), unit, turned);
    EXPECT_GE(begun, ended) << "units do not overlap";
    EXPECT_GE(turned, begun);
    late += turned - begun;
  }
  EXPECT_GT(late, 0ns) << "no sleep ends to the nanosecond: the next unit began as much earlier";
  pacer.Pace(kNotCancelled);
  turned = MonotonicNow();
  EXPECT_EQ(pacer.Begin(RoundId(5), 0, turned), turned) << "a new round begins with nothing";
}

TEST(Pacer, SlowdownsCountFromTheJobsStart) {
  Pacer pacer(1ms, MonotonicNow() - 100s, WorkerId(2), 4);
  pacer.SetSlowdowns(
      Specs("worker=2,factor=8,from=90s\nworker=1,factor=1000\nfactor=1000,from=1h"));
  const Time begun = pacer.Begin(RoundId(0), 0, MonotonicNow());
  const Duration took = pacer.Pace(kNotCancelled) - begun;
  EXPECT_GE(took, 8ms);
  EXPECT_LT(took, 900ms) << "what is for another worker or later does not act";
}

TEST(Pacer, AClearedSlowdownLetsGoOfTheUnitUnderWay) {
  Pacer pacer(1ms, MonotonicNow(), WorkerId(0), 1);
  pacer.SetSlowdowns(Specs("factor=1000000"));
  const Time begun = pacer.Begin(RoundId(0), 0, MonotonicNow());
  std::thread other([&] { pacer.SetSlowdowns({}); });
  EXPECT_LT(pacer.Pace(kNotCancelled) - begun, 500s);
  other.join();
}

TEST(Pacer, CancellingEndsASleep) {
  Pacer pacer(1h, MonotonicNow(), WorkerId(0), 1);
  std::atomic<bool> cancelled{false};
  pacer.Begin(RoundId(0), 0, MonotonicNow());
  std::thread other([&] {
    cancelled = true;
    pacer.Wake();
  });
  pacer.Pace(cancelled);
  other.join();
}

}  // namespace
}  // namespace lockstep::worker
