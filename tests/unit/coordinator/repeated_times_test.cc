// Times that belong to the samples are told from those that belong to workers, to chance and to a
// round's beginning.
#include "coordinator/core/repeated_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "base/permutation.h"
#include "base/random.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint64_t kSeed = 5;
constexpr std::uint64_t kSamples = 1024;
constexpr std::uint32_t kWorkers = 4;
constexpr std::uint64_t kRun = 8;  // samples; a round has one run of each worker

struct TimedRun {
  WorkerId worker;
  Epoch epoch;
  SampleRange range;
  bool first = false;  // of the epoch
};

class TimedJobs {
 public:
  // `seconds`: of a run.
  std::optional<RepeatedTimes::Verdict> Train(
      std::uint32_t epochs, const std::function<double(const TimedRun&)>& seconds) {
    RepeatedTimes times(kSeed);
    for (std::uint32_t e = 0; e < epochs; ++e) {
      for (std::uint64_t from = 0; from < kSamples; from += kWorkers * kRun) {
        RoundRecord record;
        record.epoch = Epoch(e);
        record.round = RoundId(from);
        for (std::uint32_t w = 0; w < kWorkers; ++w) {
          const TimedRun run{WorkerId((w + e) % kWorkers),
                             Epoch(e),
                             {from + w * kRun, from + (w + 1) * kRun},
                             from == 0};
          record.units.push_back({run.worker, run.range, 0, seconds(run)});
        }
        if (const auto found = times.OnClosed(record, kSamples)) return found;
      }
    }
    return std::nullopt;
  }
  double Chance() { return 0.8 + 0.4 * static_cast<double>(random_.NextBelow(1000)) / 1000; }

 private:
  RandomStream random_{3};
};

// One in four is eight times as long.
double CostOf(std::uint64_t sample) {
  RandomStream random(sample);
  return random.NextBelow(4) == 0 ? 8 : 1;
}

TEST(RepeatedTimes, FindsThatTimesBelongToShuffledSamples) {
  TimedJobs jobs;
  const auto found = jobs.Train(6, [&](const TimedRun& run) {
    const auto order = EpochOrder(kSeed, run.epoch, kSamples);
    double sum = 0;
    for (std::uint64_t at = run.range.from; at < run.range.to; ++at) sum += CostOf(order[at]);
    return sum * jobs.Chance();
  });
  ASSERT_TRUE(found);
  EXPECT_GT(found->correlation, 0.15);
  EXPECT_GE(found->runs, 64u);
  EXPECT_GT(found->spread, 0.1);
}

TEST(RepeatedTimes, FindsThatTimesBelongToSamplesInTheSameOrder) {
  TimedJobs jobs;
  const auto found = jobs.Train(3, [&](const TimedRun& run) {
    double sum = 0;
    for (std::uint64_t at = run.range.from; at < run.range.to; ++at) sum += CostOf(at);
    return sum * jobs.Chance();
  });
  ASSERT_TRUE(found);
  EXPECT_GT(found->correlation, 0.5);
}

TEST(RepeatedTimes, SaysNothingInTheFirstEpoch) {
  TimedJobs jobs;
  EXPECT_FALSE(jobs.Train(1, [&](const TimedRun& run) { return CostOf(run.range.from); }));
}

TEST(RepeatedTimes, SaysNothingOfSlowMachinesChanceAndBeginnings) {
  TimedJobs jobs;
  EXPECT_FALSE(jobs.Train(60, [&](const TimedRun& run) {
    const double machine = run.worker == WorkerId(2) ? 5 : 1;
    return machine * (run.first ? 3 : 1) * jobs.Chance();
  }));
}

TEST(RepeatedTimes, SaysNothingOfWorkersThatAreSlowByTurns) {
  TimedJobs jobs;
  RandomStream random(11);
  double factor = 1;
  EXPECT_FALSE(jobs.Train(60, [&](const TimedRun& run) {
    if (run.worker == WorkerId(1) && random.NextBelow(20) == 0) factor = factor == 1 ? 4 : 1;
    return (run.worker == WorkerId(1) ? factor : 1) * jobs.Chance();
  }));
}

// With the same order in all epochs the same samples are in short runs each time.
TEST(RepeatedTimes, SaysNothingOfShortRuns) {
  TimedJobs jobs;
  RepeatedTimes times(kSeed);
  for (std::uint32_t e = 0; e < 40; ++e) {
    for (std::uint64_t from = 0; from + 36 <= kSamples; from += 36) {
      RoundRecord record;
      record.epoch = Epoch(e);
      record.round = RoundId(from);
      for (std::uint32_t w = 0; w < kWorkers; ++w) {
        const std::uint64_t at = from + 9 * w;
        record.units.push_back({WorkerId(w), {at, at + 8}, 0, (8 + 2) * jobs.Chance()});
        record.units.push_back({WorkerId(w), {at + 8, at + 9}, 0, (1 + 2) * jobs.Chance()});
      }
      ASSERT_FALSE(times.OnClosed(record, kSamples)) << e;
    }
  }
}

TEST(RepeatedTimes, LeavesLargeEpochsAlone) {
  const auto found = [](std::uint64_t epoch_samples) {
    RepeatedTimes times(kSeed);
    bool any = false;
    for (std::uint32_t e = 0; e < 100; ++e) {
      RoundRecord record;
      record.epoch = Epoch(e);
      for (const double seconds : {1, 1, 3}) {
        const std::uint64_t from = 8 * record.units.size();
        record.units.push_back({WorkerId(0), {from, from + 8}, 0, seconds});
      }
      any = any || times.OnClosed(record, epoch_samples);
    }
    return any;
  };
  EXPECT_TRUE(found(24));
  EXPECT_FALSE(found(RepeatedTimes::kMostSamples + 1));
}

}  // namespace
}  // namespace lockstep::coordinator
