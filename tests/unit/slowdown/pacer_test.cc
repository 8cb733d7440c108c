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

std::vector<Unit> RunOf(std::uint32_t first, std::uint32_t count) {
  std::vector<Unit> units;
  for (std::uint32_t i = first; i < first + count; ++i) units.push_back({UnitIndex(i), {i, i + 1}});
  return units;
}

const std::atomic<bool> kNot{false};
const std::atomic<bool> kYes{true};

// What a pacer would wait for that nobody wakes: so long does a test that fails take, and not
// longer.
constexpr Duration kUnwoken = 20s;

TEST(Pacer, WithoutFloorAndSlowdownItDoesNothing) {
  Pacer pacer({0ms}, MonotonicNow(), WorkerId(0), 1);
  const Time now = MonotonicNow();
  EXPECT_EQ(pacer.Begin(RoundId(0), RunOf(0, 1), now), now);
  EXPECT_FALSE(pacer.Active());
  const Time ended = pacer.Pace(kNot, kNot);
  EXPECT_LE(ended, MonotonicNow());
}

TEST(Pacer, AUnitLastsItsFloorAndLatenessDoesNotAddUp) {
  Pacer pacer({3ms}, MonotonicNow(), WorkerId(0), 1);
  Time turned = MonotonicNow();
  Time begun = pacer.Begin(RoundId(4), RunOf(0, 1), turned);
  EXPECT_EQ(begun, turned);
  EXPECT_TRUE(pacer.Active());
  Duration late{};
  for (std::uint32_t unit = 1; unit < 20; ++unit) {
    const Time ended = pacer.Pace(kNot, kNot);
    EXPECT_GE(ended - begun, 3ms);
    turned = MonotonicNow();
    begun = pacer.Begin(RoundId(4), RunOf(unit, 1), turned);
    EXPECT_GE(begun, ended) << "units do not overlap";
    EXPECT_GE(turned, begun);
    late += turned - begun;
  }
  EXPECT_GT(late, 0ns) << "no sleep ends to the nanosecond: the next unit began as much earlier";
  pacer.Pace(kNot, kNot);
  turned = MonotonicNow();
  EXPECT_EQ(pacer.Begin(RoundId(5), RunOf(0, 1), turned), turned)
      << "a new round begins with nothing";
}

TEST(Pacer, ARunLastsAsLongAsItsUnitsOneAfterTheOther) {
  Pacer pacer({1ms}, MonotonicNow(), WorkerId(0), 1);
  pacer.SetSlowdowns(Specs("pattern=slow-worker,p=0.5,factor=9"));
  const std::vector<Unit> run = RunOf(0, 16);
  Time begun = pacer.Begin(RoundId(0), run, MonotonicNow());
  const Time ended = pacer.Pace(kNot, kNot);
  const std::vector<UnitTiming> units = pacer.Split(ended);
  ASSERT_EQ(units.size(), run.size());
  const SlowdownModel model(Specs("pattern=slow-worker,p=0.5,factor=9"), 1);
  std::int64_t at = begun.time_since_epoch().count();
  Duration together{};
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].unit, run[i]);
    EXPECT_EQ(units[i].start_ns, at);
    at = units[i].end_ns;
    const Duration alone = model.Lengthen(WorkerId(0), RoundId(0), run[i].index.value, {}, 1ms);
    together += alone;
    if (i + 1 < units.size()) {
      EXPECT_EQ(Duration(units[i].end_ns - units[i].start_ns), alone);
    }
  }
  EXPECT_EQ(at, ended.time_since_epoch().count());
  EXPECT_GE(ended - begun, together);
}

TEST(Pacer, TheFloorMayBeInProportionToAUnitsSamples) {
  Pacer pacer({.unit = 8ms, .unit_samples = 4}, MonotonicNow(), WorkerId(0), 1);
  const std::vector<Unit> run = {{UnitIndex(0), {0, 1}}, {UnitIndex(1), {1, 4}}};
  pacer.Begin(RoundId(0), run, MonotonicNow());
  const std::vector<UnitTiming> units = pacer.Split(pacer.Pace(kNot, kNot));
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(Duration(units[0].end_ns - units[0].start_ns), 2ms);
  EXPECT_GE(Duration(units[1].end_ns - units[1].start_ns), 6ms);
}

TEST(Pacer, WhatComputingTookIsSplitEvenly) {
  Pacer pacer({0ms}, MonotonicNow(), WorkerId(0), 1);
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 4), MonotonicNow() - 8ms);
  const Time ended = pacer.Pace(kNot, kNot);
  const std::vector<UnitTiming> units = pacer.Split(ended);
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].start_ns, begun.time_since_epoch().count());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(static_cast<double>(units[i].end_ns - units[i].start_ns),
                static_cast<double>((ended - begun).count()) / 4, 2);
  }
}

TEST(Pacer, SlowdownsCountFromTheJobsStart) {
  Pacer pacer({1ms}, MonotonicNow() - 100s, WorkerId(2), 4);
  pacer.SetSlowdowns(
      Specs("worker=2,factor=8,from=90s\nworker=1,factor=20000\nfactor=20000,from=1h"));
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), MonotonicNow());
  const Duration took = pacer.Pace(kNot, kNot) - begun;
  EXPECT_GE(took, 8ms);
  EXPECT_LT(took, kUnwoken) << "what is for another worker or later does not act";
}

TEST(Pacer, AClearedSlowdownLetsGoOfTheUnitUnderWay) {
  Pacer pacer({1ms}, MonotonicNow(), WorkerId(0), 1);
  pacer.SetSlowdowns(Specs("factor=20000"));
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), MonotonicNow());
  std::thread other([&] { pacer.SetSlowdowns({}); });
  EXPECT_LT(pacer.Pace(kNot, kNot) - begun, kUnwoken);
  other.join();
}

TEST(Pacer, CancellingEndsASleep) {
  Pacer pacer({kUnwoken}, MonotonicNow(), WorkerId(0), 1);
  std::atomic<bool> cancelled{false};
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), MonotonicNow());
  std::thread other([&] {
    cancelled = true;
    pacer.Wake();
  });
  EXPECT_LT(pacer.Pace(cancelled, kNot) - begun, kUnwoken);
  other.join();
}

TEST(Pacer, AVoidUnitHoldsTheWorkerThroughItsStall) {
  for (const char* stall : {"pattern=slow-worker,p=1,delay=40ms", "pattern=delay,p=1,times=40",
                            "pattern=pause,every=1h,length=40ms,worker=0"}) {
    SCOPED_TRACE(stall);
    const Time start = MonotonicNow();
    Pacer pacer({1ms}, start, WorkerId(0), 1);
    pacer.SetSlowdowns(Specs(std::string(stall) + "\nfactor=20000"));
    const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), start);
    const Duration took = pacer.Pace(kYes, kNot) - begun;
    EXPECT_GE(took, 40ms);
    EXPECT_LT(took, kUnwoken) << "what is only slow ends";
  }
}

TEST(Pacer, AClearedSlowdownLetsGoOfAStall) {
  Pacer pacer({1ms}, MonotonicNow(), WorkerId(0), 1);
  pacer.SetSlowdowns(Specs("pattern=slow-worker,p=1,delay=20s"));
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), MonotonicNow());
  std::thread other([&] { pacer.SetSlowdowns({}); });
  EXPECT_LT(pacer.Pace(kYes, kNot) - begun, kUnwoken) << "the slow-down is taken away";
  other.join();
}

TEST(Pacer, TheEndOfTheJobEndsAStall) {
  Pacer pacer({1ms}, MonotonicNow(), WorkerId(0), 1);
  pacer.SetSlowdowns(Specs("pattern=pause,every=3h,length=20s,worker=0"));
  std::atomic<bool> ended{false};
  const Time begun = pacer.Begin(RoundId(0), RunOf(0, 1), MonotonicNow());
  std::thread other([&] {
    ended = true;
    pacer.Wake();
  });
  EXPECT_LT(pacer.Pace(kYes, ended) - begun, kUnwoken);
  other.join();
}

}  // namespace
}  // namespace lockstep::worker
