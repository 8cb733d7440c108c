#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tools/bench/exchange_phases.h"
#include "tools/bench/options.h"
#include "tools/bench/process.h"
#include "tools/bench/report.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<BenchOptions> Parse(std::vector<std::string> arguments) {
  return ParseBenchOptions(arguments);
}

std::string ErrorOf(std::vector<std::string> arguments) {
  const auto options = Parse(std::move(arguments));
  return options ? std::string() : options.error().message;
}

TEST(BenchOptions, TheCoordinator) {
  const auto options = Parse({"coordinator", "--workers", "2,30", "--rounds=7", "--units", "4",
                              "--set", "policy.name=backup", "--json", "-"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->kind, BenchOptions::Kind::kCoordinator);
  EXPECT_THAT(options->coordinator.workers, ElementsAre(2, 30));
  EXPECT_EQ(options->coordinator.rounds, 7u);
  EXPECT_EQ(options->coordinator.units, 4u);
  ASSERT_EQ(options->coordinator.settings.size(), 1u);
  EXPECT_EQ(options->coordinator.settings[0].value, "backup");
  EXPECT_EQ(options->coordinator.json, "-");
}

TEST(BenchOptions, TheExchange) {
  for (const std::vector<std::string>& count : {std::vector<std::string>{"-n", "3"}, {"-n3"}}) {
    std::vector<std::string> arguments = {"exchange",    "--bytes",     "4096,104857600",
                                          "--transport", "tcp",         "--mapping",
                                          "off",         "--optimizer", "adamw"};
    arguments.insert(arguments.end(), count.begin(), count.end());
    const auto options = Parse(arguments);
    ASSERT_TRUE(options.ok()) << options.error().message;
    EXPECT_EQ(options->kind, BenchOptions::Kind::kExchange);
    EXPECT_EQ(options->exchange.workers, 3u);
    EXPECT_THAT(options->exchange.bytes, ElementsAre(4096, 104857600));
    EXPECT_EQ(options->exchange.transport, "tcp");
    EXPECT_EQ(options->exchange.mapping, "off");
    EXPECT_EQ(options->exchange.optimizer, "adamw");
  }
  EXPECT_EQ(Parse({"exchange"})->exchange.optimizer, "sgd");
}

TEST(BenchOptions, TheLimits) {
  const auto options = Parse({"limits", "-n", "3", "--bytes", "8,16", "--rounds=5", "--json", "-"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->kind, BenchOptions::Kind::kLimits);
  EXPECT_EQ(options->limits.workers, 3u);
  EXPECT_THAT(options->limits.bytes, ElementsAre(8, 16));
  EXPECT_EQ(options->limits.rounds, 5u);
  EXPECT_EQ(options->limits.json, "-");
}

TEST(BenchOptions, Tuning) {
  const auto here = Parse({"tune", "-n", "3", "--bytes", "4096", "--pairs", "2"});
  ASSERT_TRUE(here.ok()) << here.error().message;
  EXPECT_EQ(here->kind, BenchOptions::Kind::kTune);
  EXPECT_EQ(here->tune.here, 3u);
  EXPECT_EQ(here->tune.pairs, 2u);
  const auto hosts = Parse({"tune", "-n", "3", "--listen", "10.0.0.1", "--secret-file", "s"});
  ASSERT_TRUE(hosts.ok()) << hosts.error().message;
  EXPECT_EQ(hosts->tune.here, 1u);
  const auto worker = Parse({"exchange-worker", "--coordinator", "10.0.0.1:7", "--once"});
  ASSERT_TRUE(worker.ok()) << worker.error().message;
  EXPECT_EQ(worker->kind, BenchOptions::Kind::kTuneWorker);
  EXPECT_TRUE(worker->tune_worker.once);
}

TEST(BenchOptions, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("wants a command"));
  EXPECT_THAT(ErrorOf({"everything"}), HasSubstr("'everything' is no command"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", "0"}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", ""}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"coordinator", "--worker", "3"}), HasSubstr("--worker"));
  EXPECT_THAT(ErrorOf({"coordinator", "--rounds", "many"}), HasSubstr("--rounds"));
  EXPECT_THAT(ErrorOf({"coordinator", "--set", "policy"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", "4096", "--units", "17"}),
              HasSubstr("at most 65536 units"));
  EXPECT_THAT(ErrorOf({"exchange", "-n", "0"}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", "1,4"}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", "4097"}), HasSubstr("four bytes each"));
  EXPECT_THAT(ErrorOf({"exchange", "--optimizer", "lion"}), HasSubstr("--optimizer"));
  EXPECT_THAT(ErrorOf({"limits", "--bytes", "2"}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"tune", "--bytes", "2"}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"tune", "-n", "2", "--listen", "10.0.0.1", "--here", "3"}),
              HasSubstr("--here 3: there are 2 workers"));
  EXPECT_THAT(ErrorOf({"exchange-worker"}), HasSubstr("--coordinator is required"));
  EXPECT_THAT(ErrorOf({"limits", "--transport", "tcp"}), HasSubstr("transport"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", ""}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"exchange", "--transport", "mpi"}), HasSubstr("--transport"));
  EXPECT_THAT(ErrorOf({"exchange", "--mapping", "on"}), HasSubstr("--mapping"));
}

TEST(BenchOptions, HelpIsPrinted) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"coordinator", "--help"},
                                                    {"exchange", "--help"},
                                                    {"tune", "--help"},
                                                    {"exchange-worker", "--help"},
                                                    {"limits", "--help"}}) {
    const auto options = Parse(arguments);
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->kind, BenchOptions::Kind::kPrint);
    EXPECT_THAT(options->print,
                HasSubstr("lockstep-bench " + (arguments.size() == 2 ? arguments[0] : "COMMAND")));
  }
}

TEST(BenchReport, QuantilesAreValuesThatWereMeasured) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({7}, 0.95), 7);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.95), 95);
  EXPECT_EQ(Quantile(hundred, 1), 100);
}

TEST(BenchReport, ColumnsAreAligned) {
  EXPECT_EQ(Table({{"n", "us"}, {"1000", "3"}}), "   n  us\n1000   3\n");
}

TEST(BenchReport, AFileThatCannotBeIsNamed) {
  const Status written = WriteReport("/nowhere/at/all.json", "{}");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(written.error().message, HasSubstr("/nowhere/at/all.json"));
}

Time At(std::int64_t us) { return Time(std::chrono::microseconds(us)); }

TEST(ExchangePhases, EachEndsWithTheLastWorker) {
  const WorkerReport first{.rounds = {{.round = RoundId{3},
                                       .sealed = At(1000),
                                       .delivered = At(1200),
                                       .committed = At(1300),
                                       .reduced = At(1450),
                                       .published = At(1460),
                                       .taken = At(1600),
                                       .applied = At(1700),
                                       .copied = 300}}};
  WorkerReport second = first;
  second.rounds[0].sealed = At(1100);
  second.rounds[0].applied = At(1950);
  second.rounds[0].copied = 100;
  const std::vector<WorkerReport> both = {first, second};
  const auto rounds = PhasesOf(both, 0);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_THAT(rounds[0].phases_us, ElementsAre(100, 100, 150, 10, 140, 350));
  EXPECT_EQ(rounds[0].total_us, 850);
  EXPECT_EQ(CopiedPerByte(both, 0, 100), 2);
}

TEST(ExchangePhases, WhatDidNotHappenTookNoTime) {
  // Mapped, and it owns nothing: no receipts, no shard of its own.
  const std::vector<WorkerReport> one = {{.rounds = {{.round = RoundId{3},
                                                      .sealed = At(1000),
                                                      .committed = At(1300),
                                                      .taken = At(1600),
                                                      .applied = At(1700)}}}};
  const auto rounds = PhasesOf(one, 0);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_THAT(rounds[0].phases_us, ElementsAre(0, 300, 0, 0, 300, 100));
}

TEST(ExchangePhases, RoundsCountFromTheFirstOnAndThatAllHave) {
  const auto report = [](std::initializer_list<std::uint64_t> numbers) {
    WorkerReport made;
    for (const std::uint64_t number : numbers) {
      made.rounds.push_back({.round = RoundId{number}, .sealed = At(1), .applied = At(3)});
    }
    return made;
  };
  const std::vector<WorkerReport> both = {report({1, 2, 4}), report({1, 2, 3, 4})};
  EXPECT_EQ(PhasesOf(both, 2).size(), 2u);
  EXPECT_EQ(PhasesOf(both, 5).size(), 0u);
  EXPECT_EQ(CopiedPerByte(both, 5, 100), 0);
}

TEST(WorkerReports, AreReadAsWritten) {
  auto folder = TempFolder::Make();
  ASSERT_TRUE(folder.ok());
  const std::filesystem::path file = folder->path() / "report";
  EXPECT_FALSE(ReadWorkerReport(file).ok());
  const WorkerReport report{
      .rounds = {{.round = RoundId{7}, .sealed = At(5), .applied = At(9), .copied = 11},
                 {.round = RoundId{8}, .sealed = At(15), .committed = At(16), .applied = At(19)}},
      .peak_bytes = 1234567};
  ASSERT_TRUE(Write(report, file).ok());
  const auto read = ReadWorkerReport(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->peak_bytes, 1234567u);
  ASSERT_EQ(read->rounds.size(), 2u);
  EXPECT_EQ(read->rounds[0].copied, 11u);
  EXPECT_EQ(read->rounds[1].round, RoundId{8});
  EXPECT_EQ(read->rounds[1].committed, At(16));
  EXPECT_EQ(read->rounds[1].applied, At(19));
  std::ofstream(file, std::ios::app) << "9 17";
  EXPECT_FALSE(ReadWorkerReport(file).ok()) << "its last line is not whole";
}

}  // namespace
}  // namespace lockstep::bench
