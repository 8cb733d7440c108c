// A stalled worker delays no round of a tolerant policy by more than three usual rounds, however
// long the stall is and with all defaults. In virtual time; tools/experiments/stall-table measures
// real jobs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "tests/temp_folder.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/job.h"
#include "tools/simulate/simulation.h"

namespace lockstep::simulate {
namespace {

constexpr double kRound = 0.032;  // seconds: 32 units of 4 ms on 4 workers
constexpr double kStallAt = 2;

// The longest time between two commits once the workers' times are known, in usual rounds.
double LongestGap(const std::string& policy, const std::string& slowdown) {
  const test::TempFolder folder;
  auto options = ParseSimulateOptions(std::vector<std::string>{
      "--workers", "4", "--exchange", "full", "--unit-time=4ms", "--job.units=32",
      "--job.global_batch=64", "--train-samples=2048", "--job.rounds=300", "--job.epochs=0",
      "--policy.name=" + policy, "--slowdown", slowdown, "--run-dir=" + folder / "run"});
  EXPECT_TRUE(options.ok()) << options.error().message;
  std::vector<double> commits;
  ModelCompute compute(options->unit, options->seed, Simulation::kStart, options->workers);
  const auto outcome =
      SimulateJob(*options, &compute, [&](const coordinator::RoundRecord& record) -> Status {
        commits.push_back(record.commit);
        return {};
      });
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  double longest = 0;
  for (std::size_t i = 1; i < commits.size(); ++i) {
    if (commits[i] > kStallAt) longest = std::max(longest, commits[i] - commits[i - 1]);
  }
  return longest / kRound;
}

class Stall : public ::testing::TestWithParam<std::string> {};

TEST_P(Stall, DelaysNoRoundForLong) {
  for (const int rounds : {1, 3, 10, 30, 100}) {
    const int ms = static_cast<int>(1000 * rounds * kRound);
    // Of the whole machine, and of the unit that the worker is in.
    for (const std::string& slowdown :
         {fmt::format("worker=2,pattern=pause,every=1000s,length={}ms,from=2s", ms),
          fmt::format("worker=2,pattern=slow-worker,p=0.125,delay={0}ms..{0}ms,from=2s,for=40ms",
                      ms),
          fmt::format("worker=2,pattern=delay,p=1,times={},from=2s,for=40ms", rounds),
          // Its units become as long.
          fmt::format("worker=2,factor={},from=2s,for={}ms", 1 + 8 * rounds, ms)}) {
      EXPECT_LE(LongestGap(GetParam(), slowdown), 3) << slowdown;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Stall,
                         ::testing::Values("flexrr", "backup", "deadline", "partial",
                                           "backup+flexrr", "deadline+flexrr", "auto"),
                         [](const auto& policy) {
                           std::string name = policy.param;
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

// With a stall there is a gap where the policy waits for all, or these tests would show nothing.
TEST(StallUnderFull, IsWaitedFor) {
  EXPECT_GE(LongestGap("full", "worker=2,pattern=pause,every=1000s,length=960ms,from=2s"), 25);
}

}  // namespace
}  // namespace lockstep::simulate
