// What-if predictions against what the other policy really comes to.
#include "tools/simulate/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/temp_folder.h"
#include "tools/simulate/job.h"

namespace lockstep::simulate {
namespace {

using test::TempFolder;

TEST(Measured, IsInterpolatedBetweenMeasurements) {
  Measured measured;
  measured.Add(20, 4);
  measured.Add(10, 2);
  measured.Sort();
  EXPECT_DOUBLE_EQ(measured.At(0), 2);
  EXPECT_DOUBLE_EQ(measured.At(15), 3);
  EXPECT_DOUBLE_EQ(measured.At(20), 4);
  EXPECT_DOUBLE_EQ(measured.At(99), 4);
}

TEST(UnitTimes, AreThoseOfTheRoundThatWasComputedThen) {
  UnitTimes times;
  for (int i = 0; i < 10; ++i) times.Add(1, 4);
  for (int i = 0; i < 10; ++i) times.Add(5, i < 5 ? 2 : 30);
  RandomStream random(3);
  for (const double at : {0.0, 1.0, 4.9}) EXPECT_EQ(times.Draw(at, random), 4);
  int longer = 0;
  for (int i = 0; i < 1000; ++i) longer += times.Draw(i % 2 == 0 ? 5 : 90, random) == 30 ? 1 : 0;
  EXPECT_NEAR(longer, 500, 80);
  EXPECT_EQ(times.Median(), 4);
  EXPECT_EQ(times.MedianAt(2), 4);
}

TEST(UnitTimes, ManyInOneEntryWeighAsMuchAsOneByOne) {
  UnitTimes times;
  times.Add(1, 4, 90);
  times.Add(1, 30, 10);
  RandomStream random(3);
  int longer = 0;
  for (int i = 0; i < 1000; ++i) longer += times.Draw(1, random) == 30 ? 1 : 0;
  EXPECT_NEAR(longer, 100, 40);
  EXPECT_EQ(times.MedianAt(1), 4);
  EXPECT_EQ(times.Median(), 4);
}

// A run of eight workers, one of them slow after a while.
SimulateOptions Job(const std::string& run_dir, const std::string& policy) {
  auto options = ParseSimulateOptions(std::vector<std::string>{
      "--workers=8", "--job.rounds=60", "--job.global_batch=256", "--train-samples=60000",
      "--unit-spread=0.1", "--emulate.unit_time=20ms", "--slowdown", "worker=3,factor=4,from=2s",
      "--policy.name=" + policy, "--run-dir=" + run_dir});
  EXPECT_TRUE(options.ok()) << options.error().message;
  return *options;
}

double SecondsOf(const std::string& run_dir) {
  const auto records = ReadRounds(run_dir);
  return records->back().commit - records->front().start;
}

TEST(Replay, PredictsTheRunAndWhatAnotherPolicyWouldHaveMade) {
  TempFolder folder;
  for (const char* policy : {"full", "backup"}) {
    const auto run = SimulateIntoRunDirectory(Job(folder / policy, policy));
    ASSERT_TRUE(run.ok()) << run.error().message;
  }
  const double full = SecondsOf(folder / "full");
  const double backup = SecondsOf(folder / "backup");
  ASSERT_GT(full, 1.5 * backup);

  const auto records = ReadRounds(folder / "full");
  ASSERT_TRUE(records.ok());
  const auto measured = MeasureRun(*records);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  const SimulateOptions options = Job("unused", "full");
  const auto again = Predict(options, *measured, "full");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_NEAR(again->seconds, full, 0.03 * full);
  const auto other = Predict(options, *measured, "backup+none");
  ASSERT_TRUE(other.ok()) << other.error().message;
  EXPECT_NEAR(other->seconds, backup, 0.05 * backup);
  EXPECT_EQ(other->rounds, 60u);
}

// Workers whose runs of however many units take 5 ms beside them.
SimulateOptions JobOfRuns(const std::string& run_dir, const std::string& policy) {
  auto options = ParseSimulateOptions(std::vector<std::string>{
      "--workers=4", "--job.rounds=40", "--job.global_batch=256", "--train-samples=60000",
      "--unit-time=20ms", "--run-time=5ms", "--slowdown", "worker=3,factor=3",
      "--policy.name=" + policy, "--run-dir=" + run_dir});
  EXPECT_TRUE(options.ok()) << options.error().message;
  return *options;
}

TEST(Replay, KnowsWhatARunCosts) {
  TempFolder folder;
  for (const char* policy : {"flexrr", "full"}) {
    const auto run = SimulateIntoRunDirectory(JobOfRuns(folder / policy, policy));
    ASSERT_TRUE(run.ok()) << run.error().message;
  }
  const auto records = ReadRounds(folder / "flexrr");
  ASSERT_TRUE(records.ok());
  // 64 units a worker, each a sixteenth of 20 ms.
  const auto measured = MeasureRun(*records);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  EXPECT_EQ(measured->unit_samples, 1);
  EXPECT_NEAR(measured->run_cost, 4, 0.2);
  const double real = SecondsOf(folder / "full");
  const auto predicted = Predict(JobOfRuns("unused", "full"), *measured, "full+none");
  ASSERT_TRUE(predicted.ok()) << predicted.error().message;
  EXPECT_NEAR(predicted->seconds, real, 0.02 * real);
  // With one unit after the other each would have its own cost in it.
  RunTimes costless = *measured;
  costless.run_cost = 0;
  const auto wrong = Predict(JobOfRuns("unused", "full"), costless, "full+none");
  ASSERT_TRUE(wrong.ok());
  EXPECT_LT(wrong->seconds, 0.97 * real);
}

TEST(Replay, WhatRunsCostIsNotKnownWhereAllAreOfOneLength) {
  TempFolder folder;
  ASSERT_TRUE(SimulateIntoRunDirectory(JobOfRuns(folder / "full", "full")).ok());
  const auto records = ReadRounds(folder / "full");
  ASSERT_TRUE(records.ok());
  for (const auto& record : *records) {
    ASSERT_EQ(record.units.size(), 4u) << "a share is one run, of equal units";
    for (const auto& entry : record.units) {
      EXPECT_EQ(entry.units, 4u);
      EXPECT_EQ(entry.run, 4u);
      EXPECT_EQ(entry.range.size(), 64u);
    }
  }
  const auto measured = MeasureRun(*records);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  EXPECT_EQ(measured->run_cost, 0);
  EXPECT_EQ(measured->unit_samples, 16);
}

// The records of eight workers with eight units each in each of 20 rounds, of so many seconds.
std::vector<coordinator::RoundRecord> RecordsOf(
    const std::function<double(std::uint32_t round, std::uint32_t worker, RandomStream&)>&
        seconds) {
  std::vector<coordinator::RoundRecord> records;
  RandomStream random(7);
  for (std::uint32_t r = 0; r < 20; ++r) {
    coordinator::RoundRecord& record = records.emplace_back();
    for (std::uint32_t u = 0; u < 64; ++u) {
      record.units.push_back(
          {WorkerId(u / 8), {64 * r + u, 64 * r + u + 1}, 0, seconds(r, u / 8, random)});
    }
  }
  return records;
}

// From 1 to 3 times as much, as sequences of different lengths make it.
double Length(RandomStream& random) { return 1 + 2 * static_cast<double>(random.NextUniform()); }

TEST(RangeTimes, BelongToTheSamplesWhereOnlyTheyDiffer) {
  const auto factors = WorkerFactorsIfTimesAreOfSamples(
      RecordsOf([](std::uint32_t r, std::uint32_t w, RandomStream& random) {
        return Length(random) * (w == 3 ? 2 : 1) * (r == 5 ? 4 : 1);
      }),
      8, 0);
  ASSERT_EQ(factors.size(), 8u);
  EXPECT_NEAR(factors[3] / factors[0], 2, 0.15);
  EXPECT_NEAR(factors[7] / factors[0], 1, 0.1);
}

TEST(RangeTimes, BelongToTheWorkersWhereTheseDiffer) {
  const auto belong = [](auto seconds) {
    return !WorkerFactorsIfTimesAreOfSamples(RecordsOf(seconds), 8, 0).empty();
  };
  EXPECT_FALSE(belong([](std::uint32_t r, std::uint32_t w, RandomStream& random) {
    return Length(random) * (w == 3 && r > 9 ? 3 : 1);
  })) << "a worker is slow after a while";
  EXPECT_FALSE(belong([](std::uint32_t, std::uint32_t w, RandomStream& random) {
    return w == 3 ? Length(random) : 1 + 0.1 * Length(random);
  })) << "one worker has other times each time";
  EXPECT_FALSE(belong([](std::uint32_t, std::uint32_t w, RandomStream& random) {
    return (w == 3 ? 2 : 1) + 0.01 * Length(random);
  })) << "units differ too little to tell";
}

TEST(RangeTimes, AreFoundWhereAllSamplesAreKnown) {
  RangeTimes times;
  times.Add(Epoch(1), {.range = {8, 16}, .worker = WorkerId(1), .seconds = 2});
  times.Add(Epoch(1), {.range = {0, 8}, .worker = WorkerId(0), .seconds = 1});
  times.Add(Epoch(1), {.range = {4, 12}, .worker = WorkerId(2), .seconds = 9});
  times.Add(Epoch(1), {.range = {20, 24}, .worker = WorkerId(3), .seconds = 3});
  times.Sort();
  EXPECT_EQ(times.Find(Epoch(1), {0, 16}).size(), 2u);
  ASSERT_EQ(times.Find(Epoch(1), {9, 10}).size(), 1u);
  EXPECT_EQ(times.Find(Epoch(1), {9, 10}).front().worker, WorkerId(1));
  EXPECT_EQ(times.Find(Epoch(1), {20, 24}).size(), 1u);
  EXPECT_TRUE(times.Find(Epoch(1), {8, 24}).empty());
  EXPECT_TRUE(times.Find(Epoch(1), {22, 25}).empty());
  EXPECT_TRUE(times.Find(Epoch(0), {0, 8}).empty());
}

// A job of 16 workers with eight units each. The times of units are of their samples.
class ReplayOfUnequalUnits : public testing::Test {
 protected:
  void Draw(std::uint64_t seed) {
    std::ofstream out(folder_ / "costs.csv");
    out << "round,unit,seconds\n";
    RandomStream random(seed);
    for (int r = 0; r < 20; ++r) {
      for (int u = 0; u < 128; ++u) out << r << ',' << u << ',' << 0.1 * Length(random) << "\n";
    }
  }
  SimulateOptions Job(const std::string& policy, const char* slowdown) {
    auto options = ParseSimulateOptions(std::vector<std::string>{
        "--workers=16", "--job.rounds=20", "--job.global_batch=128", "--train-samples=2560",
        "--exchange=modelled", "--slowdown", slowdown, "--unit-costs=" + (folder_ / "costs.csv"),
        "--policy.name=" + policy, "--run-dir=" + (folder_ / policy)});
    EXPECT_TRUE(options.ok()) << options.error().message;
    return *options;
  }
  // What the replay of the run under full comes to, beside that of the real run.
  double Predicted(const SimulateOptions& job, const std::string& policy, double real) {
    const auto records = ReadRounds(folder_ / "full");
    const auto measured = MeasureRun(*records);
    EXPECT_TRUE(measured.ok());
    const auto predicted = Predict(job, *measured, policy);
    EXPECT_TRUE(predicted.ok());
    return predicted->seconds / real;
  }

  TempFolder folder_;
};

// One move more or less changes a job's moves from there on, so several jobs are compared together.
TEST_F(ReplayOfUnequalUnits, KeepsTheTimesOfTheirSamples) {
  for (const char* slowdown : {"worker=3,factor=1", "worker=3,factor=2"}) {
    double predicted = 0;
    constexpr int kJobs = 4;
    for (int seed = 1; seed <= kJobs; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", slowdown, seed));
      Draw(static_cast<std::uint64_t>(seed));
      for (const char* policy : {"full", "flexrr"}) {
        const auto run = SimulateIntoRunDirectory(Job(policy, slowdown));
        ASSERT_TRUE(run.ok()) << run.error().message;
      }
      const SimulateOptions job = Job("full", slowdown);
      EXPECT_NEAR(Predicted(job, "full+none", SecondsOf(folder_ / "full")), 1, 0.01);
      predicted += Predicted(job, "full+flexrr", SecondsOf(folder_ / "flexrr")) / kJobs;
      std::filesystem::remove_all(folder_ / "full");
      std::filesystem::remove_all(folder_ / "flexrr");
    }
    EXPECT_NEAR(predicted, 1, 0.03) << slowdown;
  }
}

// The run itself, where workers become slow and quick again within rounds.
TEST(Replay, KeepsTheTimesOfAWorkersUnitsInTheirPlace) {
  TempFolder folder;
  const std::string run_dir = folder / "run";
  const auto options = ParseSimulateOptions(std::vector<std::string>{
      "--workers=4", "--job.rounds=60", "--job.global_batch=64", "--job.units=64",
      "--train-samples=60000", "--emulate.unit_time=20ms", "--unit-spread=0.05", "--slowdown",
      "pattern=disrupted,factor=4,length=300ms,gap=300ms", "--run-dir=" + run_dir});
  ASSERT_TRUE(options.ok()) << options.error().message;
  ASSERT_TRUE(SimulateIntoRunDirectory(*options).ok());
  const auto records = ReadRounds(run_dir);
  ASSERT_TRUE(records.ok());
  const auto measured = MeasureRun(*records);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  EXPECT_TRUE(measured->factors.empty());
  const auto again = Predict(*options, *measured, "full");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_NEAR(again->seconds / SecondsOf(run_dir), 1, 0.01);
}

TEST(Replay, TheTableHasARowForEachPolicyThatThereIs) {
  TempFolder folder;
  const std::string run_dir = folder / "run";
  ASSERT_TRUE(SimulateIntoRunDirectory(Job(run_dir, "full")).ok());
  auto options = ParseSimulateOptions(std::vector<std::string>{"--replay=" + run_dir});
  ASSERT_TRUE(options.ok()) << options.error().message;
  const auto table = Replay(*options);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_NE(table->find("full+none"), std::string::npos);
  EXPECT_NE(table->find("backup+none"), std::string::npos);
  EXPECT_NE(table->find("(as it ran)"), std::string::npos);
  EXPECT_FALSE(Replay([&] {
                 SimulateOptions none = *options;
                 none.replay = run_dir + "/none";
                 return none;
               }())
                   .ok());
}

// What is asked for is no reproduction of the run, also where the policy has the same name.
TEST(Replay, OtherSettingsMakeARowBesideThatOfTheRun) {
  TempFolder folder;
  const std::string run_dir = folder / "run";
  ASSERT_TRUE(SimulateIntoRunDirectory(Job(run_dir, "backup")).ok());
  const auto rows = [&](std::vector<std::string> arguments) {
    arguments.push_back("--replay=" + run_dir);
    auto options = ParseSimulateOptions(arguments);
    EXPECT_TRUE(options.ok()) << options.error().message;
    const auto table = Replay(*options);
    EXPECT_TRUE(table.ok()) << table.error().message;
    std::vector<std::string> found;
    std::istringstream lines(*table);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("backup+none ")) found.push_back(line);
    }
    return found;
  };
  const auto plain = rows({"--policy.name=backup"});
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_TRUE(plain[0].ends_with("(as it ran)")) << plain[0];
  for (const bool named : {true, false}) {
    std::vector<std::string> arguments = {"--set", "backup.workers=4"};
    if (named) arguments.push_back("--policy.name=backup");
    const auto both = rows(arguments);
    ASSERT_EQ(both.size(), 2u);
    EXPECT_EQ(both[0], plain[0]);
    EXPECT_EQ(both[1].find("as it ran"), std::string::npos) << both[1];
  }
}

// A run of three workers whose lines a test changes.
class ReplayOfABrokenRun : public testing::Test {
 protected:
  void SetUp() override {
    auto options = ParseSimulateOptions(std::vector<std::string>{
        "--workers=3", "--job.rounds=5", "--job.global_batch=64", "--run-dir=" + run_dir_});
    ASSERT_TRUE(options.ok()) << options.error().message;
    ASSERT_TRUE(SimulateIntoRunDirectory(*options).ok());
    std::ifstream in(run_dir_ + "/rounds.jsonl");
    for (std::string line; std::getline(in, line);) lines_.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(lines_.size(), 5u);
  }

  // What the replay of the lines says.
  Result<std::string> Played(std::vector<std::string> arguments = {}) {
    std::ofstream out(run_dir_ + "/rounds.jsonl", std::ios::trunc);
    for (const nlohmann::json& line : lines_) out << line.dump() << "\n";
    out.close();
    arguments.push_back("--replay=" + run_dir_);
    auto options = ParseSimulateOptions(arguments);
    if (!options) return options.error();
    return Replay(*options);
  }
  void ExpectRefused(const std::string& words) {
    const auto table = Played();
    ASSERT_FALSE(table.ok()) << *table;
    EXPECT_NE(table.error().message.find(words), std::string::npos) << table.error().message;
    EXPECT_EQ(table.error().message.find('\n'), std::string::npos) << table.error().message;
  }

  TempFolder folder_;
  const std::string run_dir_ = folder_ / "run";
  std::vector<nlohmann::json> lines_;
};

TEST_F(ReplayOfABrokenRun, NamesWorkersThatCannotBe) {
  for (const std::int64_t worker : {-1LL, 16384LL, 1'000'000LL, 4294967295LL}) {
    lines_[1]["units"][0]["worker"] = worker;
    ExpectRefused("rounds.jsonl:2");
  }
  lines_[1]["units"][0]["worker"] = 16383;  // a slot that jobs may have, but not this one
  ExpectRefused("too few for the 16384 workers");
}

TEST_F(ReplayOfABrokenRun, NamesRoundsThatAreNotInOrder) {
  std::swap(lines_[1], lines_[2]);
  ExpectRefused("rounds.jsonl:2: round 2 follows round 0");
  lines_.erase(lines_.begin() + 1);
  ExpectRefused("rounds.jsonl:3: round 3 follows round 1");
  lines_.resize(2);
  lines_[1]["times"]["start"] = -1;
  ExpectRefused("starts before");
}

TEST_F(ReplayOfABrokenRun, NamesRangesSamplesAndTimesThatCannotBe) {
  const auto good = lines_;
  std::swap(lines_[2]["units"][1]["range"][0], lines_[2]["units"][1]["range"][1]);
  ExpectRefused("rounds.jsonl:3");
  lines_ = good;
  lines_[0]["contributors"][0]["samples"] = 1;
  ExpectRefused("its ranges have");
  lines_ = good;
  lines_[0]["samples"] = 65;
  ExpectRefused("its contributors 64");
  lines_ = good;
  lines_[4]["units"][0]["end"] = -1;
  ExpectRefused("ends before it starts");
  lines_ = good;
  lines_[4]["units"][0]["end"] = 9e8;  // virtual time would not be enough
  ExpectRefused("too long to be played");
  lines_ = good;
  lines_[4]["policy"] = "\x1b[2J";
  ExpectRefused("no text");
  lines_.resize(1);
  lines_[0] = good[0];
  lines_[0]["times"]["commit"] = lines_[0]["times"]["start"];
  ExpectRefused("took no time");
}

// What `tools/ctl policy` makes of it, or a resume: no row is of the run then.
TEST_F(ReplayOfABrokenRun, NamesEachPolicyThatItRanUnder) {
  for (std::size_t round : {3, 4}) lines_[round]["policy"] = "backup+none";
  const auto table = Played();
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_NE(table->find(" under full+none, then backup+none, "), std::string::npos) << *table;
  EXPECT_EQ(table->find("(as it ran)"), std::string::npos) << *table;
  EXPECT_NE(table->find("the policy changed in the run"), std::string::npos) << *table;
  for (const char* row : {"\nfull+none ", "\nbackup+none "}) {
    const auto at = table->find(row);
    ASSERT_NE(at, std::string::npos) << *table;
    EXPECT_EQ(table->find(row, at + 1), std::string::npos) << *table;
  }
  const auto asked = Played({"--policy.name=flexrr"});
  ASSERT_TRUE(asked.ok()) << asked.error().message;
  EXPECT_NE(asked->find("\nfull+flexrr "), std::string::npos) << *asked;
  EXPECT_EQ(asked->find("\nbackup+none "), std::string::npos) << *asked;
  lines_[0]["policy"] = "mine";  // a plug-in's own name
  const auto plugin = Played();
  ASSERT_TRUE(plugin.ok()) << plugin.error().message;
  EXPECT_NE(plugin->find(" under mine, then full+none, then backup+none, "), std::string::npos);
  EXPECT_NE(plugin->find("left out: policy.name = plugin: --policy.plugin must"), std::string::npos)
      << *plugin;
}

TEST_F(ReplayOfABrokenRun, LoadsNoPluginThatOnlyTheRunNames) {
  {
    std::ofstream config(run_dir_ + "/config.ini", std::ios::trunc);
    config << "[job]\nrounds = 5\nglobal_batch = 64\n"
              "[policy]\nname = plugin\nplugin = ./evil.so\n";
  }
  const auto table = Played();
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_NE(table->find("left out: the run's config names the plug-in \"./evil.so\""),
            std::string::npos)
      << *table;
  EXPECT_EQ(table->find("cannot be loaded"), std::string::npos) << *table;
  const auto asked = Played({"--policy.name=plugin"});
  ASSERT_FALSE(asked.ok());
  EXPECT_NE(asked.error().message.find("--policy.plugin=FILE"), std::string::npos);
  // Named by who runs it, it is loaded; here there is none.
  const auto named = Played({"--policy.plugin=./evil.so"});
  ASSERT_TRUE(named.ok()) << named.error().message;
  EXPECT_NE(named->find("cannot be loaded"), std::string::npos) << *named;
}

}  // namespace
}  // namespace lockstep::simulate
