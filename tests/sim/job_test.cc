// Whole simulated jobs into run directories.
#include "tools/simulate/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/interval_set.h"
#include "tests/temp_folder.h"
#include "tools/simulate/replay.h"

namespace lockstep::simulate {
namespace {

using test::TempFolder;

namespace fs = std::filesystem;

SimulateOptions Options(const std::vector<std::string>& arguments) {
  auto options = ParseSimulateOptions(arguments);
  EXPECT_TRUE(options.ok()) << options.error().message;
  return *options;
}

std::map<std::string, std::string> Files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[fs::relative(entry.path(), folder).string()] = text.str();
  }
  return files;
}

struct Case {
  std::string name;
  std::vector<std::string> arguments;
  std::string policy = "backup";
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {.name = "full", .arguments = {"--workers", "6", "--exchange", "full"}},
      {.name = "modelled", .arguments = {"--workers", "90", "--exchange", "modelled"}},
  };
  return cases;
}

std::vector<std::string> With(const Case& c, const fs::path& run_dir,
                              std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = c.arguments;
  for (const char* argument :
       {"--job.global_batch=720", "--job.epochs=2", "--train-samples=9000", "--unit-spread=0.3",
        "--worker-spread=0.1", "--slowdown", "worker=2,factor=3"}) {
    arguments.push_back(argument);
  }
  arguments.push_back("--policy.name=" + c.policy);
  arguments.push_back("--run-dir=" + run_dir.string());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(SimulatedJob, TheSameSeedGivesTheSameBytes) {
  std::vector<Case> cases = Cases();
  for (Case c : Cases()) {
    c.name += ", flexrr";
    c.policy = "flexrr";
    cases.push_back(c);
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    TempFolder folder;
    for (const char* name : {"a", "b"}) {
      const auto outcome = SimulateIntoRunDirectory(Options(With(c, folder / name)));
      ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    }
    const auto other =
        SimulateIntoRunDirectory(Options(With(c, folder / "other", {"--seed", "9"})));
    ASSERT_TRUE(other.ok()) << other.error().message;
    const auto a = Files(folder / "a");
    EXPECT_TRUE(a.contains("config.ini"));
    EXPECT_TRUE(a.contains("timeline.json"));
    EXPECT_EQ(a, Files(folder / "b"));
    EXPECT_NE(a.at("rounds.jsonl"), Files(folder / "other").at("rounds.jsonl"));
  }
}

nlohmann::json SummaryOf(const std::string& policy, const fs::path& run) {
  const auto outcome = SimulateIntoRunDirectory(Options(
      {"--workers", "8", "--job.units=128", "--job.rounds=60", "--job.epochs=0", "--unit-time=10ms",
       "--slowdown", "worker=5,factor=4", "--policy.name=" + policy, "--run-dir=" + run.string()}));
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return nlohmann::json::parse(Files(run).at("summary.json"));
}

// Worker 3's first units take a second. A slow one turns away when the round has closed without it;
// a stalled one stands still for that second.
TEST(SimulatedJob, WhoIsStalledStaysAway) {
  for (const char* exchange : {"full", "modelled"}) {
    SCOPED_TRACE(exchange);
    const auto back = [&](const char* slowdown) {
      TempFolder folder;
      const auto outcome = SimulateIntoRunDirectory(Options(
          {"--workers=4", "--job.rounds=60", "--job.epochs=0", "--unit-time=10ms",
           "--unit-spread=0.2", "--policy.name=backup", std::string("--exchange=") + exchange,
           "--slowdown", slowdown, "--run-dir=" + (folder / "run")}));
      EXPECT_TRUE(outcome.ok()) << outcome.error().message;
      std::istringstream lines(Files(folder / "run").at("rounds.jsonl"));
      for (std::string line; std::getline(lines, line);) {
        const auto round = nlohmann::json::parse(line);
        for (const auto& part : round["contributors"]) {
          if (part["worker"] == 3) return static_cast<double>(round["times"]["commit"]);
        }
      }
      return -1.0;
    };
    EXPECT_GT(back("worker=3,pattern=slow-worker,p=1,delay=1s,for=5ms"), 1);
    const double slow = back("worker=3,factor=100,for=5ms");
    EXPECT_GT(slow, 0);
    EXPECT_LT(slow, 0.5);
  }
}

// Twenty rounds of four workers on such a link, with this option.
double SecondsOfRounds(const char* exchange, const char* bandwidth, const std::string& option) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers=4", "--job.rounds=20", "--job.epochs=0", "--unit-time=1ms",
               "--model-bytes=16MiB", std::string("--bandwidth=") + bandwidth, "--policy.name=full",
               option, std::string("--exchange=") + exchange, "--run-dir=" + (folder / "run")}));
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return outcome->result.wall_seconds;
}

// Where links are what a round waits for. A copy of the state would take as long as ever.
TEST(SimulatedJob, NumbersOfTwoBytesTakeALinkHalfTheTime) {
  for (const char* exchange : {"full", "modelled"}) {
    SCOPED_TRACE(exchange);
    const auto seconds = [&](const std::string& dtype) {
      return SecondsOfRounds(exchange, "16MiB", "--exchange.dtype=" + dtype);
    };
    const double wide = seconds("fp32");
    EXPECT_GT(wide, 20 * 1.5);  // 2 (n - 1) / n of the model, each way
    EXPECT_NEAR(seconds("bf16") / wide, 0.5, 0.05);
    EXPECT_EQ(seconds("fp16"), seconds("bf16"));
  }
}

// Of each 4096 bytes a contribution has 68 and the sum of four of them 264, where all are 4096.
TEST(SimulatedJob, FewNumbersOfManyTakeALinkLittleTime) {
  for (const char* exchange : {"full", "modelled"}) {
    SCOPED_TRACE(exchange);
    const auto seconds = [&](const std::string& compression) {
      return SecondsOfRounds(exchange, "1MiB", "--exchange.compression=" + compression);
    };
    EXPECT_NEAR(seconds("topk") / seconds("none"), (68.0 + 264.0) / (2 * 4096), 0.01);
    // Eight columns of 512 of a matrix of 512 x 512, each way.
    EXPECT_NEAR(seconds("powersgd") / seconds("none"), 8.0 / 512, 0.01);
  }
}

// Five units for three workers: two each for two of them, and one for the slow one. Their times
// differ, so rounds are shorter and longer than usual ones.
TEST(SimulatedJob, WhoWaitsForAllSavesNothingWhereUnitsCannotBeSharedOutEvenly) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers=3", "--job.rounds=20", "--job.epochs=0", "--job.units=5",
               "--unit-time=10ms", "--unit-spread=0.3", "--slowdown=worker=2,factor=4",
               "--policy.name=full", "--run-dir=" + (folder / "run")}));
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->result.saved_seconds, 0);
}

// Rounds have waited a few times for a little of its contribution, and have been spared seconds.
TEST(SimulatedJob, WhoComputesSlowlyIsNoSlowLinkBecauseItsWorkWasMoved) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers=4", "--job.units=64", "--job.rounds=60", "--job.epochs=0",
               "--unit-time=5ms", "--unit-spread=0.1", "--slowdown=worker=2,factor=3",
               "--exchange=modelled", "--policy.name=flexrr", "--run-dir=" + (folder / "run")}));
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  const auto& worst = outcome->result.stragglers.at(0);
  EXPECT_EQ(worst.worker, WorkerId(2));
  EXPECT_LT(worst.held_up_seconds, 0.01 * worst.would_have_held_up_seconds);
  EXPECT_EQ(worst.kind, "compute");
}

// What the job says of itself against the job that waited for all.
TEST(SimulatedJob, TellsWhatThePolicyHasSaved) {
  TempFolder folder;
  const auto full = SummaryOf("full", folder / "full");
  const auto flexrr = SummaryOf("flexrr", folder / "flexrr");
  const auto balance = SummaryOf("balance", folder / "balance");
  const double waited = full["wall_seconds"];
  EXPECT_LT(full["saved_seconds"], 0.01 * waited);
  EXPECT_EQ(full["stragglers"][0]["worker"], 5);
  EXPECT_GT(full["stragglers"][0]["held_up_seconds"], 0.6 * waited);
  for (const auto& summary : {flexrr, balance}) {
    const double saved = waited - static_cast<double>(summary["wall_seconds"]);
    EXPECT_GT(saved, 0.6 * waited);
    EXPECT_NEAR(summary["saved_seconds"], saved, 0.1 * saved);
    EXPECT_EQ(summary["stragglers"][0]["worker"], 5);
    EXPECT_NEAR(summary["stragglers"][0]["would_have_held_up_seconds"], saved, 0.1 * saved);
    EXPECT_EQ(summary["samples_dropped"], 0);
  }
}

// Two workers share 128 samples, the second is slower; computing 30 of them at once takes twice as
// long as one.
std::vector<coordinator::RoundRecord> TwoUnequal(const std::string& policy,
                                                 const std::string& slowdown) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(Options(
      {"--workers=2", "--job.global_batch=128", "--job.rounds=250", "--job.epochs=0",
       "--train-samples=60000", "--unit-time=0.075ms", "--run-time=2.2ms",
       "--policy.name=" + policy, "--slowdown", slowdown, "--run-dir=" + (folder / "run")}));
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  auto records = ReadRounds(folder / "run");
  EXPECT_TRUE(records.ok()) << records.error().message;
  EXPECT_EQ(records->size(), 250u);
  return std::move(*records);
}

// A slow worker that gets all its units at once, or now and then a single one, has not become
// slower or faster by that.
TEST(SimulatedJob, WhoIsKnownToBeSlowStaysKnown) {
  bool known = false;
  for (const auto& record : TwoUnequal("flexrr", "worker=1,factor=4")) {
    std::uint64_t slow = 0;  // samples
    for (const auto& contributor : record.contributors) {
      slow += contributor.worker.value == 1 ? contributor.samples : 0;
    }
    if (known) {
      EXPECT_LT(slow, 16u) << "round " << record.round.value;
    }
    known = known || slow == 0;
  }
  EXPECT_TRUE(known);
}

// Each round goes on without it before it has computed anything. Alone the other one computes 128
// samples in 11.8 ms, and that is what they take in the end.
TEST(SimulatedJob, WhoNeverFinishesInTimeBecomesKnownToBeSlow) {
  for (const char* policy : {"flexrr", "auto"}) {
    for (const char* slowdown : {"worker=1,factor=12", "worker=1,factor=12,from=300ms"}) {
      const auto records = TwoUnequal(policy, slowdown);
      ASSERT_EQ(records.size(), 250u);
      std::uint64_t counted = 0;
      for (std::size_t i = 100; i < records.size(); ++i) counted += records[i].samples;
      const double milliseconds = 1e3 * (records.back().commit - records[99].commit);
      EXPECT_LT(milliseconds / (static_cast<double>(counted) / 128), 13)
          << policy << ", " << slowdown;
    }
  }
}

TEST(SimulatedJob, LeavesARunDirectoryLikeARealOne) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    TempFolder folder;
    const fs::path run = folder / "run";
    const auto outcome = SimulateIntoRunDirectory(Options(With(c, run)));
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    const auto files = Files(run);
    const auto summary = nlohmann::json::parse(files.at("summary.json"));
    EXPECT_EQ(summary["status"], "completed");
    EXPECT_EQ(summary["simulated"], true);
    EXPECT_EQ(summary["emulated"], true);
    EXPECT_EQ(summary["exchange"], c.name);
    EXPECT_EQ(summary["policy"], "backup+none");
    EXPECT_TRUE(summary["train_loss"].is_null());
    EXPECT_EQ(summary["epochs"], 2);
    EXPECT_EQ(summary["samples_counted"], 18000);
    EXPECT_GT(summary["samples_requeued"], 0);
    EXPECT_TRUE(nlohmann::json::parse(files.at("timeline.json")).contains("traceEvents"));
    const auto config = ParseJobConfig(files.at("config.ini"), "config.ini");
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->policy.name, "backup");

    const auto records = ReadRounds(run.string());
    ASSERT_TRUE(records.ok()) << records.error().message;
    std::map<Epoch, IntervalSet> counted;
    double last = 0;
    for (const auto& record : *records) {
      for (const auto& contributor : record.contributors) {
        for (const SampleRange& range : contributor.ranges) {
          EXPECT_TRUE(counted[record.epoch].Add(range));
        }
      }
      EXPECT_GE(record.start, last);
      EXPECT_GT(record.commit, record.start);
      last = record.start;
      for (const auto& [worker, ready] : record.ready) {
        EXPECT_LE(ready, record.delivered.at(worker));
        EXPECT_LE(record.delivered.at(worker), record.commit);
      }
    }
    for (const auto& [epoch, ranges] : counted) EXPECT_EQ(ranges.positions(), 9000u);
  }
}

double MillisecondsARound(const std::vector<std::string>& arguments) {
  TempFolder folder;
  std::vector<std::string> all = arguments;
  all.push_back("--run-dir=" + (folder / "run"));
  const auto outcome = SimulateIntoRunDirectory(Options(all));
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return 1e3 * outcome->result.wall_seconds / static_cast<double>(outcome->result.totals.rounds);
}

TEST(SimulatedJob, BothFidelitiesAgree) {
  const auto run = [](const char* exchange, const char* policy) {
    return MillisecondsARound({"--workers=12", "--job.rounds=30", "--job.global_batch=480",
                               "--model-bytes=1MiB", "--unit-time=10ms", "--slowdown",
                               "worker=5,factor=2", std::string("--exchange=") + exchange,
                               std::string("--policy.name=") + policy});
  };
  EXPECT_NEAR(run("full", "full"), run("modelled", "full"), 0.05 * 80);
  EXPECT_NEAR(run("full", "backup"), run("modelled", "backup"), 0.05 * 40);
}

TEST(SimulatedJob, ASlowWorkerCostsWhatItShouldAndBackupGetsItBack) {
  const auto run = [](const char* policy, const char* slow) {
    return MillisecondsARound({"--workers=200", "--job.rounds=20", "--job.global_batch=8000",
                               "--train-samples=1000000", "--model-bytes=64KiB", "--slowdown", slow,
                               std::string("--policy.name=") + policy});
  };
  const double even = run("full", "worker=7,factor=1");
  EXPECT_NEAR(run("full", "worker=7,factor=5") / even, 4.6, 0.5);
  EXPECT_NEAR(run("backup", "worker=7,factor=5") / even, 1.0, 0.1);
}

// Workers that share processors wait for one now and then, as long as many units take. Who has the
// fewest units has the slowest ones then; it is not slower than the others. Moving work for it
// costs more than it brings: shares become uneven, and short runs cost 3.4 ms each.
TEST(SimulatedJob, WhoWaitsNowAndThenIsNotSlower) {
  const auto run = [](const char* policy) {
    return MillisecondsARound({"--workers=4", "--job.rounds=400", "--job.global_batch=256",
                               "--job.units=256", "--train-samples=1000000", "--unit-time=1.2ms",
                               "--run-time=3.4ms", "--unit-spread=0.05", "--model-bytes=64KiB",
                               "--slowdown", "pattern=pause,every=100ms,length=30ms",
                               std::string("--policy.name=") + policy});
  };
  const double full = run("full");
  for (const char* policy : {"full+balance", "flexrr", "auto"}) {
    const double milliseconds = run(policy);
    EXPECT_LT(milliseconds, 1.06 * full) << policy;
  }
}

// The slow one has four of 128 units: out of so few it is not told what a run costs, and where that
// is taken for too little, the other one computes its share in nine runs. At their speeds the units
// take 148 ms, each run's 3.4 ms included.
TEST(SimulatedJob, WhatARunCostsIsNotToldByWhoHasFewUnits) {
  for (const char* policy : {"flexrr", "auto"}) {
    EXPECT_LT(MillisecondsARound({"--workers=2", "--job.rounds=300", "--job.global_batch=128",
                                  "--job.units=128", "--train-samples=1000000", "--unit-time=1.2ms",
                                  "--run-time=3.4ms", "--unit-spread=0.05", "--model-bytes=64KiB",
                                  "--slowdown", "worker=1,factor=12",
                                  std::string("--policy.name=") + policy}),
              1.12 * 148)
        << policy;
  }
}

Result<JobOutcome> JobOf(std::vector<std::string> arguments) {
  TempFolder folder;
  arguments.push_back("--run-dir=" + (folder / "run"));
  return SimulateIntoRunDirectory(Options(arguments));
}

// One is found too slow after the other, each while the one before is back; the other two have both
// of their parts by then.
TEST(SimulatedJob, TwoThatAreTooSlowDoNotTakeTurns) {
  for (int seed = 1; seed <= 5; ++seed) {
    const auto outcome =
        JobOf({"--workers=4", "--exchange=full", "--job.rounds=40", "--unit-time=500ms",
               "--worker-spread=0.2", "--slowdown=worker=2,factor=30,from=30s",
               "--slowdown=worker=3,factor=30,from=30s", "--seed=" + std::to_string(seed)});
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.error().message;
    EXPECT_EQ(outcome->result.totals.rounds, 40u);
  }
}

// They copy the parameters, and get units of the round that is open.
TEST(SimulatedJob, WhoIsBackComputesWhatItIsGivenInThatRound) {
  for (const char* exchange : {"full", "modelled"}) {
    for (int seed = 1; seed <= 3; ++seed) {
      const auto outcome =
          JobOf({"--workers=8", std::string("--exchange=") + exchange, "--job.rounds=60",
                 "--unit-time=200ms", "--slowdown=pattern=pause,every=40s,length=15s",
                 "--seed=" + std::to_string(seed)});
      ASSERT_TRUE(outcome.ok()) << exchange << ", seed " << seed << ": " << outcome.error().message;
      EXPECT_EQ(outcome->result.totals.rounds, 60u);
    }
  }
}

// As much as a worker's program takes.
TEST(SimulatedJob, AnyShareOfARoundMayComeToOneWorker) {
  const auto outcome =
      JobOf({"--workers=200", "--exchange=modelled", "--policy.name=balance", "--job.rounds=10",
             "--job.global_batch=65536", "--unit-time=10ms", "--worker-spread=3"});
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->result.totals.rounds, 10u);
}

TEST(SimulatedJob, AThousandWorkers) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers=1000", "--job.rounds=5", "--job.global_batch=4000",
               "--train-samples=100000", "--run-dir=" + (folder / "run")}));
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->result.totals.rounds, 5u);
  // Four units, their progress, seal, receipt, commit, publication, update: nothing for each pair.
  EXPECT_LT(outcome->events, 5u * 1000 * 40 + 50000);
}

TEST(SimulateOptions, MistakesAreOneLine) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"--workers=4"},
      {"--workers=4", "--run-dir=x", "--policy.nam=full"},
      {"--workers=4", "--run-dir=x", "--set", "policy.name"},
      {"--workers=4", "--run-dir=x", "--set", "job.units=2"},
      {"--workers=4", "--run-dir=x", "--seeds=1..2"},
      {"--workers=4", "--run-dir=x", "--history"},
      {"--workers=4", "--run-dir=x", "--slow-link=4=1MiB"},
      {"--workers=4", "--run-dir=x", "--slowdown=worker=4,factor=3"},
      {"--workers=4", "--run-dir=x", "--slowdown=factor=2", "--slowdown=pattern=pause,worker=9"},
      {"--workers=4", "--run-dir=x", "--slowdown=pattern=disrupted,factor=3,length=1s,workers=5"},
      {"--faults", "--seeds=9..2"},
      {"--faults", "--workers=100"},
      {"--faults", "--replay=x"},
      {"--faults", "--fault=flood@1s:2"},
      {"--faults", "--slowdown=factor=2"},
      {"--faults", "--run-dir=x"},
      {"--replay=x", "--workers=4"},
      {"--replay=x", "--slowdown=worker=0,factor=2"},
      {"--replay=x", "--latency=1ms"},
      {"--replay=x", "--unit-costs=x"},
      {"--replay=x", "--set=job.rounds=5"},
      {"--exchange-times", "--workers=4", "--unit-time=1s"},
      {"--exchange-times", "--workers=4", "--exchange.compression=topk"},
  };
  for (const auto& arguments : wrong) {
    const auto options = ParseSimulateOptions(arguments);
    ASSERT_FALSE(options.ok()) << (arguments.empty() ? "no arguments" : arguments.back());
    EXPECT_EQ(options.error().message.find('\n'), std::string::npos);
  }
  const auto replay =
      ParseSimulateOptions(std::vector<std::string>{"--replay=x", "--slowdown=factor=2"});
  ASSERT_FALSE(replay.ok());
  EXPECT_EQ(replay.error().message, "--slowdown: does nothing with --replay");
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers=4", "--run-dir=" + (folder / "x"), "--set=policy.name=nothing"}));
  ASSERT_FALSE(outcome.ok());
  EXPECT_FALSE(fs::exists(folder / "x"));
}

// Five rounds passed and the last one ended the job: its members were dropped for not applying it
// within the time-out.
TEST(SimulatedJob, AnExchangeThatTakesManyTimeoutsEndsAsItBegan) {
  TempFolder folder;
  const auto outcome = SimulateIntoRunDirectory(
      Options({"--workers", "4", "--exchange", "full", "--model-bytes", "16000000", "--bandwidth",
               "1000000", "--liveness.timeout=2s", "--job.rounds=3", "--train-samples", "1000",
               "--run-dir=" + (folder / "run")}));
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->result.outcome, coordinator::JobOutcome::kCompleted) << outcome->result.reason;
  EXPECT_EQ(outcome->result.totals.rounds, 3u);
}

}  // namespace
}  // namespace lockstep::simulate
