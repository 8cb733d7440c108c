// Sums that are passed on, and whoever of those they pass is killed, stopped or cut off, at any
// moment between a commit and its end: the others come to the truth, by a direct second attempt
// where it takes one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tools/simulate/fault_job.h"
#include "tools/simulate/fault_runs.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {
namespace {

constexpr std::uint32_t kWorkers = 4;

FaultOutcome RunWith(const std::string& algorithm, const std::string& faults) {
  std::istringstream words(
      fmt::format("--faults --seed 8 --workers {} --policy.name=full --exchange.algorithm={} {}",
                  kWorkers, algorithm, faults));
  const std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
  auto options = ParseSimulateOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.error().message;
  FaultJob job = FaultJobOf(*options, options->first_seed);
  // So that there are several pieces of each shard on their way, and none rides along.
  job.blocks = {{0, 9000}};
  job.bucket_bytes = 16384;
  job.cluster.machine.piece_bytes = 4096;
  job.cluster.machine.inline_bytes = 0;
  job.epochs = 3;
  return RunFaultJob(job);
}

class PassedOn : public ::testing::TestWithParam<const char*> {};

TEST_P(PassedOn, ComeToTheTruthWhoeverFailsAtAnyMoment) {
  std::uint64_t further = 0;
  std::uint64_t taken = 0;
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    for (int tenths_ms = 0; tenths_ms < 60; tenths_ms += 6) {
      for (const char* fault :
           {"crash@Commit_9+{:.4f}s:{}", "stop@Commit_9+{:.4f}s:{},for=3s",
            "hang-reduction@Commit_9+{:.4f}s:{},for=3s", "cut-link@Commit_9+{:.4f}s:{}-1"}) {
        if (std::string(fault).starts_with("cut") && worker == 1) continue;
        const std::string line =
            "--fault " + fmt::format(fmt::runtime(fault), tenths_ms * 1e-4, worker);
        const FaultOutcome outcome = RunWith(GetParam(), line);
        ASSERT_EQ(outcome.failure, "") << line << "\n" << outcome.details;
        EXPECT_FALSE(outcome.all_lost) << line;
        EXPECT_TRUE(outcome.to_come.empty()) << line;
        const auto count = [&](const char* name) {
          const auto at = outcome.counts.find(name);
          return at == outcome.counts.end() ? 0 : at->second;
        };
        further += count("further attempts");
        taken += count("take sums");
      }
    }
  }
  EXPECT_GT(further, 20u) << "so few stopped what was passed on";
  EXPECT_GT(taken, 0u) << "nobody had all sums when another one failed";
}

INSTANTIATE_TEST_SUITE_P(Algorithms, PassedOn, ::testing::Values("ring", "tree"));

}  // namespace
}  // namespace lockstep::simulate
