// Jobs whose optimizer's state is shared out among holders (optimizer.replicas): the same bits as
// where everybody holds everything, whoever is lost and whenever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tools/simulate/fault.h"
#include "tools/simulate/fault_job.h"

namespace lockstep::simulate {
namespace {

FaultJob JobOf(std::uint64_t seed, std::uint32_t workers, std::uint32_t replicas) {
  FaultDraw draw;
  draw.seed = seed;
  draw.workers = workers;
  draw.replicas = replicas;
  draw.policy.emplace();
  return DrawFaultJob(draw);
}

class Replicas : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t>> {};

// Truth compares the parameters of all workers after each round, and what holders hold, with sums
// that it makes by itself, as it does where everybody holds everything.
TEST_P(Replicas, HaveTheBitsOfAJobInWhichEverybodyHoldsEverything) {
  const auto [workers, replicas] = GetParam();
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    FaultOutcome outcome = RunFaultJob(JobOf(seed, workers, replicas));
    ASSERT_EQ(outcome.failure, "") << "seed " << seed << "\n" << outcome.details;
    EXPECT_GT(outcome.rounds, 10u);
    EXPECT_GE(outcome.counts["decide"], outcome.rounds);
    EXPECT_EQ(outcome.counts["further attempts"], 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, Replicas,
                         ::testing::Values(std::tuple(3u, 1u), std::tuple(3u, 2u),
                                           std::tuple(4u, 2u), std::tuple(5u, 3u),
                                           std::tuple(8u, 2u)));

// What is said in a round by one worker after the other, from its commit to the parameters that
// come out of it. Whoever is lost right behind that, others hold what it held.
class ReplicasLosing : public ::testing::TestWithParam<const char*> {};

TEST_P(ReplicasLosing, AnyOneWorkerInARoundGoOn) {
  std::uint64_t attempts = 0;
  std::uint64_t came_back = 0;
  for (const std::uint64_t seed : {2, 9}) {
    for (std::uint32_t worker = 0; worker < 4; ++worker) {
      for (std::uint32_t count = 1; count <= 4; ++count) {
        const std::string fault = fmt::format("crash@{}#{}+0.0002s:{}", GetParam(), count, worker);
        FaultJob job = JobOf(seed, 4, 2);
        const auto crash = ParseFault(fault);
        ASSERT_TRUE(crash.ok()) << crash.error().message;
        job.faults = {*crash};
        FaultOutcome outcome = RunFaultJob(job);
        ASSERT_EQ(outcome.failure, "") << fault << " seed " << seed << "\n" << outcome.details;
        EXPECT_FALSE(outcome.all_lost) << fault << " seed " << seed;
        attempts += outcome.counts["further attempts"];
        came_back += outcome.caught_up;
      }
    }
  }
  EXPECT_GT(came_back, 0u);
  if (std::string(GetParam()).starts_with("Held")) {
    EXPECT_GT(attempts, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, ReplicasLosing,
                         ::testing::Values("Sealed_round_12", "Published_round_12", "Held_round_12",
                                           "Decide_round_12", "Applied_round_12"));

// One that is stopped, and not lost, is still connected and has what it said that it has. Nobody
// waits for it: what others need of it they have from who else holds it.
class ReplicasStopping : public ::testing::TestWithParam<const char*> {};

FaultJob LongJob(std::uint64_t seed = 9) {
  FaultJob job = JobOf(seed, 4, 2);
  job.min_workers = 2;
  job.epochs = 30;  // it goes on for longer than a stop
  job.slow.clear();
  job.faults.clear();
  return job;
}

FaultOutcome RunWith(FaultJob job, const std::vector<std::string>& faults) {
  for (const std::string& text : faults) {
    const auto fault = ParseFault(text);
    if (!fault) {
      FaultOutcome outcome;
      outcome.failure = fault.error().message;
      return outcome;
    }
    job.faults.push_back(*fault);
  }
  return RunFaultJob(job);
}

TEST_P(ReplicasStopping, AnyOneWorkerInARoundHoldsNobodyUp) {
  FaultJob job = LongJob();
  job.policy.name = "backup";
  FaultOutcome quiet = RunFaultJob(job);
  ASSERT_EQ(quiet.failure, "") << quiet.details;
  for (std::uint32_t worker = 0; worker < 4; ++worker) {
    for (const int count : {1, 3}) {
      const std::string fault =
          fmt::format("stop@{}#{}+0.0002s:{},for=1.8s", GetParam(), count, worker);
      FaultOutcome outcome = RunWith(job, {fault});
      ASSERT_EQ(outcome.failure, "") << fault << "\n" << outcome.details;
      EXPECT_LT(outcome.took, quiet.took + std::chrono::milliseconds(700)) << fault;
    }
  }
}

// Two that together are all who hold a shard, as a host that stands still for a moment: they are
// waited for, since without them the state is lost.
TEST_P(ReplicasStopping, AllHoldersOfAShardForAMomentLosesNothing) {
  for (const std::string policy : {"full", "backup"}) {
    FaultJob job = LongJob(2);
    job.policy.name = policy;
    for (std::uint32_t worker = 0; worker < 4; ++worker) {
      const std::string moment = fmt::format("stop@{}+0.0002s:", GetParam());
      const std::vector<std::string> faults = {
          fmt::format("{}{},for=0.9s", moment, worker),
          fmt::format("{}{},for=0.9s", moment, (worker + 1) % 4)};
      FaultOutcome outcome = RunWith(job, faults);
      ASSERT_EQ(outcome.failure, "") << faults[0] << " " << policy << "\n" << outcome.details;
      EXPECT_FALSE(outcome.all_lost) << faults[0] << " " << policy;
    }
  }
}

// One of them is back before long, and has what the other one has as well.
TEST_P(ReplicasStopping, TheHolderThatIsBackIsAskedForTheState) {
  FaultJob job = LongJob();
  job.policy.name = "backup";
  FaultOutcome quiet = RunFaultJob(job);
  ASSERT_EQ(quiet.failure, "") << quiet.details;
  for (std::uint32_t worker = 0; worker < 4; ++worker) {
    const std::string moment = fmt::format("stop@{}+0.0002s:", GetParam());
    const std::vector<std::string> faults = {
        fmt::format("{}{},for=1.8s", moment, worker),
        fmt::format("{}{},for=0.1s", moment, (worker + 1) % 4)};
    FaultOutcome outcome = RunWith(job, faults);
    ASSERT_EQ(outcome.failure, "") << faults[0] << "\n" << outcome.details;
    EXPECT_LT(outcome.took, quiet.took + std::chrono::milliseconds(1300)) << faults[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, ReplicasStopping,
                         ::testing::Values("Sealed_round_12", "Published_round_12", "Held_round_12",
                                           "Decide_round_12", "Applied_round_12"));

// Counts the lines that have `words`, and takes the longest time between two decisions.
struct Said {
  std::uint64_t lines = 0;
  double longest_seconds = 0;
};

FaultOutcome RunAndLook(FaultJob job, const std::string& fault, const std::string& words,
                        Said* said) {
  const auto parsed = ParseFault(fault);
  EXPECT_TRUE(parsed.ok()) << fault;
  job.faults.push_back(*parsed);
  std::optional<double> last;
  return RunFaultJob(job, [&](const std::string& line) {
    said->lines += line.find(words) != std::string::npos ? 1 : 0;
    if (line.find(": Decide") == std::string::npos) return;
    const double now = std::stod(line);
    said->longest_seconds = std::max(said->longest_seconds, now - last.value_or(now));
    last = now;
  });
}

// Two that do not reach each other are both alive. Nobody is put out for it: one is behind while
// the edge is broken, the rounds go on without it, and it comes back with the edge.
TEST(ReplicasOnABrokenEdge, OneIsBehindForAsLongAsItLasts) {
  FaultJob job = LongJob();
  job.epochs = 150;
  // In times of liveness.timeout: a peer's silence, looked at each 3/8; the time for the link to be
  // made again, looked at each 1/8.
  const double found = 2 * (1.5 + 0.375 + 0.25 + 0.125);
  for (const std::string kind : {"one-way", "partition"}) {
    const std::string fault = kind + "@0.2s:1-2,for=";
    Said joined;
    const FaultOutcome broken = RunAndLook(job, fault + "600s", ": Hello", &joined);
    ASSERT_EQ(broken.failure, "") << kind << "\n" << broken.details;
    EXPECT_EQ(joined.lines, job.workers) << kind;
    EXPECT_LT(joined.longest_seconds, found) << kind;

    Said back;
    const FaultOutcome mended = RunAndLook(job, fault + "6s", "2 -> coordinator: Level", &back);
    ASSERT_EQ(mended.failure, "") << kind << "\n" << mended.details;
    EXPECT_EQ(back.lines, 1u) << kind;
    EXPECT_LT(back.longest_seconds, found) << kind;
  }
}

// A reset is no reason to copy the parameters.
TEST(ReplicasOnABrokenEdge, AConnectionThatIsMadeAgainCostsNobodyItsPlace) {
  Said copies;
  const FaultOutcome outcome = RunAndLook(LongJob(), "cut-link@0.2s:1-2", ": CatchUp", &copies);
  ASSERT_EQ(outcome.failure, "") << outcome.details;
  EXPECT_EQ(copies.lines, 0u);
}

// At a job's end nobody copies any more what a lost holder had, and the last checkpoint is to have
// it.
struct LastRound {
  std::uint64_t round = 0;
  std::uint32_t writer = 0;

  // Whoever is the `count`th to have applied it.
  std::string Applied(int count) const { return fmt::format("@Applied_round_{}#{}", round, count); }
};

FaultJob ShortJob(std::uint64_t seed) {
  FaultJob job = LongJob(seed);
  job.epochs = 2;
  return job;
}

// Of the job as it is without a fault.
LastRound LastRoundOf(const FaultJob& job) {
  LastRound last;
  const FaultOutcome quiet = RunFaultJob(job, [&](const std::string& line) {
    const std::size_t at = line.find(" -> coordinator: StateChunk");
    if (at != std::string::npos) last.writer = static_cast<std::uint32_t>(line[at - 1] - '0');
  });
  EXPECT_EQ(quiet.failure, "") << quiet.details;
  last.round = quiet.rounds - 1;
  return last;
}

// One is stopped, so that the last round is not closed yet when the writer of the checkpoint is
// lost, which has written all of it. As soon as it is closed another one is lost, perhaps the other
// holder of a shard.
TEST(ReplicasAtTheEnd, WhatHasBeenWrittenIsNotLostWithItsWriter) {
  for (const std::uint64_t seed : {2, 9}) {
    const FaultJob job = ShortJob(seed);
    const LastRound last = LastRoundOf(job);
    for (std::uint32_t i = 1; i < 4; ++i) {
      const std::uint32_t stopped = (last.writer + i) % 4;
      const std::uint32_t other = (last.writer + i % 3 + 1) % 4;
      const std::vector<std::string> faults = {
          fmt::format("stop@Decide_round_{}:{},for=0.3s", last.round, stopped),
          fmt::format("crash{}+0.1s:{}", last.Applied(3), last.writer),
          fmt::format("crash{}+0.00001s:{}", last.Applied(4), other)};
      const FaultOutcome outcome = RunWith(job, faults);
      ASSERT_EQ(outcome.failure, "") << faults[0] << " " << faults[2] << " seed " << seed << "\n"
                                     << outcome.details;
      EXPECT_TRUE(outcome.to_come.empty()) << faults[0] << " seed " << seed;
      EXPECT_FALSE(outcome.all_lost) << faults[0] << " seed " << seed;
    }
  }
}

// Both holders of a shard, before its state is in the checkpoint: the job fails and names the
// shard, and no other worker is asked for what nobody has.
TEST(ReplicasAtTheEnd, WhatIsLostBeforeItIsWrittenIsNamed) {
  std::uint64_t lost = 0;
  for (const std::uint64_t seed : {2, 9}) {
    const FaultJob job = ShortJob(seed);
    const std::string closed = LastRoundOf(job).Applied(4) + "+0.00001s";
    for (std::uint32_t first = 0; first < 4; ++first) {
      const std::uint32_t second = (first + 1) % 4;
      const std::string who = fmt::format("workers {} and {}, seed {}", first, second, seed);
      const FaultOutcome outcome = RunWith(job, {fmt::format("crash{}:{}", closed, first),
                                                 fmt::format("crash{}:{}", closed, second)});
      ASSERT_EQ(outcome.failure, "") << who << "\n" << outcome.details;
      EXPECT_TRUE(outcome.to_come.empty()) << who;
      EXPECT_LT(outcome.took, std::chrono::seconds(9)) << who;
      lost += outcome.all_lost ? 1 : 0;
    }
  }
  EXPECT_GT(lost, 0u);
}

}  // namespace
}  // namespace lockstep::simulate
