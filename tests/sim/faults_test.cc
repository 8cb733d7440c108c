// Each kind of fault does to a job what it says, and the job goes on as it has to.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tools/simulate/fault.h"
#include "tools/simulate/fault_job.h"
#include "tools/simulate/fault_runs.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {
namespace {

SimulateOptions OptionsOf(const std::string& arguments) {
  std::istringstream words("--faults " + arguments);
  const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  auto options = ParseSimulateOptions(all);
  EXPECT_TRUE(options.ok()) << options.error().message;
  return *std::move(options);
}

FaultOutcome RunWith(const std::string& faults, std::uint32_t seed = 8) {
  const SimulateOptions options =
      OptionsOf(fmt::format("--seed {} --workers 3 --policy.name=full {}", seed, faults));
  return RunFaultJob(FaultJobOf(options, options.first_seed));
}

TEST(Faults, AJobHasAsManyWorkersAsItsPolicyNeeds) {
  const SimulateOptions options =
      OptionsOf("--seeds 1..40 --policy.name=backup --backup.workers=2");
  EXPECT_TRUE(CheckFaultJobs(options).ok());
  std::set<std::uint32_t> workers;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    workers.insert(FaultJobOf(options, seed).workers);
  }
  EXPECT_EQ(*workers.begin(), 3u);
  EXPECT_EQ(*workers.rbegin(), 6u);
  const Status none = CheckFaultJobs(OptionsOf("--seed 1 --workers 1 --policy.name=backup"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message, "backup.workers = 1 must be less than the 1 workers of the job");
}

TEST(Faults, WhatTheCoordinatorRefusesIsRefused) {
  const std::string options = "--seed 710002 --optimizer.replicas=2 --exchange.algorithm=ring";
  const Status refused = CheckFaultJobs(OptionsOf(options));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "optimizer.replicas = 2 with --workers 6: exchange.algorithm has to be direct");
  // Where each worker holds all of the state, it fits.
  EXPECT_TRUE(CheckFaultJobs(OptionsOf(options + " --workers 2")).ok());
}

TEST(Faults, AreWrittenAndReadAlike) {
  FaultMix mix{true, true, true, true, true, true, true, true, true, true, true, true, true, true};
  mix.until = std::chrono::seconds(20);
  mix.mean_pause = std::chrono::milliseconds(20);
  RandomStream random(3);
  std::set<FaultKind> kinds;
  for (const Fault& fault : DrawFaults(mix, 4, random)) {
    kinds.insert(fault.kind);
    const auto read = ParseFault(ToString(fault));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, fault) << ToString(fault);
  }
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(FaultKind::kFlip));  // all but that one
}

class Harmless : public ::testing::TestWithParam<const char*> {};

TEST_P(Harmless, TheJobCompletes) {
  const FaultOutcome outcome = RunWith(GetParam());
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_FALSE(outcome.all_lost);
  EXPECT_GT(outcome.rounds, 100u);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Harmless,
    ::testing::Values("--fault control-out@0.1s:1,for=0.4s", "--fault control-in@0.1s:1,for=0.4s",
                      // For longer than the time-out: it is lost, and the others go on.
                      "--fault control-out@0.1s:1,for=3s", "--fault slow-control@0.1s:1,for=0.05s",
                      "--fault one-way@0.1s:0-1,for=0.5s", "--fault hang-reduction@0.1s:2,for=0.5s",
                      "--fault hang-compute@0.1s:2,for=600s", "--fault die-unseen@0.1s:2,for=3s",
                      // The one that comes back does not reach the other, whose death is not known.
                      "--fault die-unseen@0.1s:1,for=1.5s --fault crash@0.15s:2",
                      "--fault fast-clock@0.1s:0,for=0.05s --fault slow-clock@0.1s:1,for=0.05s",
                      "--fault partition@0.1s:0-1,for=600s", "--fault one-way@0.1s:1-0,for=600s",
                      "--fault fail-checkpoint@0.05s,for=0.1s"));

// The books and the state go on from the checkpoint, or the checker would say so.
TEST(Faults, AJobIsResumedFromItsLastCheckpoint) {
  const FaultOutcome outcome =
      RunWith("--fault resume@0.25s,for=0.2s --fault crash@0.8s:1 --fault resume@0.9s,for=0.01s");
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_EQ(outcome.counts.at("resumed"), 2u);
  EXPECT_FALSE(outcome.all_lost);
}

// No round is computed again that a worker has applied, and none counts twice, or the checker would
// say so: without a checkpoint there is nothing else to go on from.
TEST(Faults, AJobOutlivesItsCoordinators) {
  for (const char* policy : {"full", "flexrr", "backup", "auto", "local", "async"}) {
    const SimulateOptions options =
        OptionsOf(fmt::format("--seed 9 --workers 3 --policy.name={} "
                              "--fault crash-coordinator@0.1s,for=0.2s "
                              "--fault crash-coordinator@0.6s,for=0.01s "
                              "--fault crash-coordinator@Applied_round_100,for=0.3s",
                              policy));
    FaultOutcome outcome = RunFaultJob(FaultJobOf(options, options.first_seed));
    EXPECT_EQ(outcome.failure, "") << policy << "\n" << outcome.details;
    EXPECT_EQ(outcome.counts["taken over"], 3u) << policy;
    EXPECT_FALSE(outcome.all_lost) << policy;
  }
}

TEST(Faults, WorkersOutliveACoordinatorThatDiesBeforeItHasBegun) {
  // Of this seed without a checkpoint.
  FaultOutcome outcome = RunWith(
      "--fault crash-coordinator@0.2s,for=0.1s --fault crash-coordinator@Reached#5,for=0.1s", 9);
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_EQ(outcome.counts["taken over"], 1u);
  EXPECT_FALSE(outcome.all_lost);
}

// A worker that dies meanwhile copies, and so does one that was stopped too long to be waited for.
TEST(Faults, WorkersMayDieWithTheirCoordinator) {
  FaultOutcome outcome = RunWith(
      "--fault crash@0.2s:1 --fault crash-coordinator@0.2s,for=0.3s "
      "--fault stop@0.6s:2,for=1.5s --fault crash-coordinator@0.61s,for=0.1s",
      11);  // a job that is long enough for both
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_EQ(outcome.counts["taken over"], 2u);
  EXPECT_GT(outcome.caught_up, 0u);
  EXPECT_FALSE(outcome.all_lost);
}

// What each worker should have kept is reckoned out of the commits, and compared with what it
// sends.
TEST(Faults, WhatWasNotSentGoesWithLaterGradients) {
  const std::array<std::pair<std::uint32_t, std::uint32_t>, 2> forms = {{{11, 0}, {0, 2}}};
  for (const auto& [kept, rank] : forms) {
    for (const char* policy : {"full", "full+flexrr", "backup"}) {
      FaultDraw draw;
      draw.workers = 4;
      draw.kept = kept;
      draw.rank = rank;
      draw.policy.emplace();
      draw.policy->name = policy;
      for (draw.seed = 1; draw.seed <= 4; ++draw.seed) {
        FaultOutcome outcome = RunFaultJob(DrawFaultJob(draw));
        ASSERT_EQ(outcome.failure, "") << policy << " seed " << draw.seed << "\n"
                                       << outcome.details;
        EXPECT_GT(outcome.counts["residuals"], outcome.rounds);
      }
    }
  }
}

TEST(Faults, AFullDiskEndsTheJob) {
  FaultOutcome outcome = RunWith("--fault full-disk@0.2s,for=600s");
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_EQ(outcome.counts["ended by the disk"], 1u);
}

}  // namespace
}  // namespace lockstep::simulate
