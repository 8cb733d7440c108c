// What a run of units takes beside them, told from how long runs took, and what a unit takes.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "coordinator/job/members.h"
#include "coordinator/round/part_times.h"

namespace lockstep::coordinator {
namespace {

using namespace std::chrono_literals;

// A unit takes 1 ms.
std::vector<RunCost::Run> Runs(const std::vector<std::uint64_t>& lengths, Duration cost) {
  std::vector<RunCost::Run> runs;
  for (const std::uint64_t units : lengths) {
    runs.push_back({units, 1ms * static_cast<Duration::rep>(units) + cost});
  }
  return runs;
}

TEST(RunCost, IsWhatShortRunsHaveMore) {
  RunCost cost;
  EXPECT_FALSE(cost.estimate());
  cost.Add(Runs({16, 16, 16}, 2ms));
  EXPECT_FALSE(cost.estimate()) << "all are of one length";
  cost.Add(Runs({16, 8, 4, 2, 1, 1}, 2ms));
  ASSERT_TRUE(cost.estimate());
  EXPECT_NEAR(cost.estimate()->units, 1.85, 0.1) << "with some doubt";
  for (int i = 0; i < 20; ++i) cost.Add(Runs({16, 8, 4, 2, 1, 1}, 2ms));
  const double known = cost.estimate()->units;
  EXPECT_NEAR(known, 2, 0.1);
  for (int i = 0; i < 1000; ++i) cost.Add(Runs({64}, 2ms));
  EXPECT_EQ(cost.estimate()->units, known) << "that tells nothing, and nothing is forgotten";
  for (int i = 0; i < 200; ++i) cost.Add(Runs({16, 8, 4, 2, 1, 1}, 500us));
  EXPECT_NEAR(cost.estimate()->units, 0.5, 0.05) << "it changes";
}

TEST(RunCost, AWorkerThatBecomesSlowerHasTheSameInItsUnitTimes) {
  RunCost cost;
  for (int i = 1; i < 20; ++i) {
    std::vector<RunCost::Run> runs = Runs({8, 4, 2, 1, 1}, 3ms);
    for (RunCost::Run& run : runs) run.took *= i;
    cost.Add(runs);
  }
  EXPECT_NEAR(cost.estimate()->units, 3, 0.2);
}

// A slow worker has four units, once in runs of three lengths: too little to say that it is unlike
// the others, and each single unit would weigh as if it were all work.
TEST(RunCost, AFewUnitsTellNothing) {
  RunCost cost;
  cost.Add(Runs({2, 1, 1}, 3ms));
  for (int i = 0; i < 100; ++i) cost.Add(Runs({1, 1, 1}, 3ms));
  EXPECT_FALSE(cost.estimate());
  cost.Add(Runs({2, 1, 1}, 3ms));
  EXPECT_TRUE(cost.estimate());
}

// It waits for its processor now and then, and the more often the longer it computes.
TEST(RunCost, RunsThatWereHeldUpTellNothing) {
  RunCost cost;
  for (std::size_t i = 0; i < 20; ++i) {
    std::vector<RunCost::Run> runs = Runs({2, 2, 2, 2, 2, 2, 2, 2, 1, 1}, 10ms);
    runs[i % 8].took += 70ms;
    runs[(i + 3) % 8].took += 90ms;
    cost.Add(runs);
  }
  EXPECT_GT(cost.estimate()->units, 5);
}

// As of four units: one of the single ones was slow by itself.
TEST(RunCost, OneSlowUnitIsNotBelieved) {
  RunCost cost;
  std::vector<RunCost::Run> runs = Runs({2, 1, 1}, 0ms);
  runs[2].took *= 5;
  cost.Add(runs);
  EXPECT_LT(cost.estimate()->units, 1);
}

// One unit in ten takes four times as long, in runs of 16 and one of 15.
TEST(RunCost, WhereRunsAreNearlyOfOneLengthNoiseTellsNothing) {
  RunCost cost;
  cost.Add(Runs({16, 8, 4, 2, 1, 1}, 0ms));
  for (std::size_t i = 0; i < 100; ++i) {
    std::vector<RunCost::Run> runs = Runs({16, 16, 16, 15}, 0ms);
    runs[i % 4].took += 6ms;
    cost.Add(runs);
    EXPECT_NEAR(cost.estimate()->units, 0, 0.3) << i;
  }
}

// Units take 1 to 2 ms, whatever run they are in, so runs cost nothing.
RunCost OfUnlikeUnits(std::uint64_t seed, int parts) {
  RunCost cost;
  RandomStream random(seed);
  for (int i = 0; i < parts; ++i) {
    std::vector<RunCost::Run> runs = Runs({3, 2, 1, 1, 1}, 0ms);
    for (RunCost::Run& run : runs) {
      for (std::uint64_t unit = 0; unit < run.units; ++unit) {
        run.took += 1us * static_cast<Duration::rep>(random.NextBelow(1000));
      }
    }
    cost.Add(runs);
  }
  return cost;
}

TEST(RunCost, UnlikeUnitsMakeItUncertain) {
  double likely = 0;
  double guessed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto few = OfUnlikeUnits(seed, 3).estimate();
    ASSERT_TRUE(few);
    likely += std::abs(few->Likely());
    guessed += std::abs(few->units);
    EXPECT_NEAR(OfUnlikeUnits(seed, 100).estimate()->Likely(), 0, 0.3) << seed;
  }
  EXPECT_LT(likely, 0.7 * guessed);
}

// Of 16 workers one would take the cost of its runs out of its unit times, and would seem quick.
TEST(RunCost, OneOfManyThatDiffersByChanceIsLikeTheOthers) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Members members(16);
    for (std::uint32_t i = 0; i < 16; ++i) {
      Member* member = members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
      member->run_cost = OfUnlikeUnits(100 * seed + i, 3);
    }
    members.NoteUsualRunCost();
    for (const Member& member : members.all()) {
      EXPECT_NEAR(member.RunCostInUnits().value_or(0), 0, 0.5)
          << seed << ": " << member.id.worker.value;
    }
  }
}

// A worker on another device: its runs cost ten times as much as those of the others.
TEST(RunCost, WhoSurelyDiffersHasItsOwn) {
  Members members(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    Member* member = members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
    for (int part = 0; part < 10; ++part) {
      member->run_cost.Add(Runs({8, 4, 2, 1, 1}, i == 3 ? 20ms : 2ms));
    }
  }
  members.NoteUsualRunCost();
  EXPECT_NEAR(*members.at(WorkerId(0)).RunCostInUnits(), 2, 0.2);
  EXPECT_NEAR(*members.at(WorkerId(3)).RunCostInUnits(), 20, 2);
}

// A worker that rounds always close without would keep the times of its better days.
TEST(UnitTimes, WhoIsLeftOutIsMeasuredByItsProgress) {
  Members members(1);
  Member* member = members.TakeSlot(std::nullopt, ConnectionId(1), Time{});
  policies::WorkerView view;
  view.member = member->id;
  view.units_given = 8;
  for (int i = 0; i < 3; ++i) member->unit_times.Add(1ms);
  for (const Duration pace : {Duration(500us), Duration(4ms), Duration(4ms)}) {
    view.units_done = 4;
    view.pace = pace;
    NoteUnfinishedRun(view, RoundId(1), &members);
  }
  EXPECT_EQ(member->unit_times.mean, 4ms);
  member->unit_times = {};
  member->unit_times.Add(1ms);
  view.units_done = 0;
  NoteUnfinishedRun(view, RoundId(2), &members);
  EXPECT_EQ(member->unit_times.mean, 1ms) << "it has done nothing";
}

TEST(UnitTimes, OnePartThatWasHeldUpChangesNothing) {
  UnitTimes times;
  for (int i = 0; i < 20; ++i) {
    times.Add(i % 3 == 2 ? Duration(30ms) : Duration(1ms));
    if (i > 2) {
      EXPECT_EQ(times.mean, 1ms) << i;
    }
  }
  EXPECT_GT(times.deviation, times.mean) << "but it is seen";
}

TEST(UnitTimes, WhoBecomesSlowerIsKnownToBeAfterTwoParts) {
  UnitTimes times;
  for (int i = 0; i < 5; ++i) times.Add(1ms);
  for (const Duration known : {1ms, 4ms, 4ms, 4ms}) {
    times.Add(4ms);
    EXPECT_EQ(times.mean, known);
  }
}

TEST(UnitTimes, OfFewPartsTellWhatIsThere) {
  UnitTimes times;
  EXPECT_EQ(times.mean, Duration{});
  times.Add(1ms);
  EXPECT_EQ(times.mean, 1ms);
  times.Add(3ms);
  EXPECT_EQ(times.mean, 2ms);
}

// Who is slow at reading: samples that take 10 ms, of which `waited` is reading, beside two workers
// whose samples take 2 ms.
bool SlowAtReading(std::optional<Duration> waited, std::optional<Duration> others_waited) {
  Members members(3);
  const auto computed = [&](std::uint32_t worker, Duration took, std::optional<Duration> read) {
    msg::RunTotals said{100, (100 * took).count(), {}};
    if (read) said.reading.waited_ns = static_cast<std::uint64_t>(100 * read->count());
    members.at(WorkerId(worker)).runs = RunTotals{}.With(said, 1h);
  };
  computed(0, 2ms, others_waited);
  computed(1, 10ms, waited);
  computed(2, 2ms, others_waited);
  return members.IsSlowAtReading(members.at(WorkerId(1)));
}

TEST(RunTotals, TellWhoWaitsForSamplesFromWhoComputesSlowly) {
  EXPECT_TRUE(SlowAtReading(8ms, 0ms));
  EXPECT_TRUE(SlowAtReading(5ms, std::nullopt)) << "more than half of 8 ms";
  EXPECT_FALSE(SlowAtReading(3ms, 0ms));
  EXPECT_FALSE(SlowAtReading(5ms, 1900us)) << "the others wait nearly as long";
  EXPECT_FALSE(SlowAtReading(std::nullopt, 0ms)) << "it does not say";
  EXPECT_EQ(RunTotals{}.With({100, 7, {}}, 1h).With({100, 9, {}}, 5ns).took, 12ns);
  const Members alone(1);
  EXPECT_FALSE(alone.IsSlowAtReading(alone.at(WorkerId(0))));
}

}  // namespace
}  // namespace lockstep::coordinator
