// Jobs whose units have times of their own, from a file.
#include "tools/simulate/unit_costs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/temp_folder.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/job.h"
#include "tools/simulate/replay.h"

namespace lockstep::simulate {
namespace {

using std::chrono::milliseconds;
using test::TempFolder;

// Round r has units of 100 r + 10, 100 r + 11, ... milliseconds.
CostTable Table(std::uint32_t rounds, std::uint32_t units) {
  CostTable table{.rounds = rounds, .units = units, .seconds = {}};
  for (std::uint32_t r = 0; r < rounds; ++r) {
    for (std::uint32_t u = 0; u < units; ++u) table.seconds.push_back(0.1 * r + 0.01 + 0.001 * u);
  }
  return table;
}

TEST(CostTable, HasItsLinesInAnyOrder) {
  const auto table =
      ParseCostTable("round,unit,seconds\r\n1,0,0.5\r\n0,1,2\r\n0,0,1e-3\r\n1,1,0", "costs.csv");
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->rounds, 2u);
  EXPECT_EQ(table->units, 2u);
  EXPECT_EQ(table->seconds, (std::vector<double>{1e-3, 2, 0.5, 0}));
}

TEST(CostTable, NamesTheFirstMistake) {
  const std::string rows = "round,unit,seconds\n0,0,1\n0,1,1\n";
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "costs.csv:1: expected 'round,unit,seconds'"},
      {"round,worker,unit,seconds\n", "costs.csv:1: expected 'round,unit,seconds'"},
      {"round,unit,seconds\n", "costs.csv: has no units"},
      {rows + "1,0,1\n", "costs.csv: round 1 has no unit 1"},
      {rows + "1,1,1\n", "costs.csv: round 1 has no unit 0"},
      {rows + "2,0,1\n2,1,1\n", "costs.csv: round 1 has no unit 0"},
      {rows + "999999,65535,1\n", "costs.csv: round 0 has no unit 2"},
      {rows + "0,1,3\n", "costs.csv: round 0 has unit 1 twice"},
      {rows + "1,0,-1\n", "costs.csv:4: the seconds are no number from 0 to 3600"},
      {rows + "1,0,nan\n", "costs.csv:4: the seconds are no number from 0 to 3600"},
      {rows + "1,0,3601\n", "costs.csv:4: the seconds are no number from 0 to 3600"},
      {rows + "1,0\n", "costs.csv:4: the seconds are no number from 0 to 3600"},
      {rows + "1,0,1,1\n", "costs.csv:4: the seconds are no number from 0 to 3600"},
      {rows + "1,-1,1\n", "costs.csv:4: the unit is no number from 0 to 65535"},
      {rows + "1,65536,1\n", "costs.csv:4: the unit is no number from 0 to 65535"},
      {rows + "x,0,1\n", "costs.csv:4: the round is no number from 0 to 999999"},
      {rows + "99999999999999999999,0,1\n", "costs.csv:4: the round is no number from 0 to 999999"},
      {rows + "\n", "costs.csv:4: the round is no number from 0 to 999999"},
  };
  for (const auto& [text, message] : wrong) {
    const auto table = ParseCostTable(text, "costs.csv");
    ASSERT_FALSE(table.ok()) << text;
    EXPECT_EQ(table.error().message, message);
  }
}

TEST(UnitCosts, AreOfTheSamplesAndRepeat) {
  // Epochs of two rounds of 12 samples and one of 6, in units of 3.
  const UnitCosts costs(Table(2, 4), 12, 30);
  const auto ms = [&](std::uint32_t epoch, std::uint64_t from, std::uint64_t to) {
    return 1e3 * costs.SecondsOf(Epoch(epoch), {from, to});
  };
  EXPECT_DOUBLE_EQ(ms(0, 0, 3), 10);
  EXPECT_DOUBLE_EQ(ms(0, 9, 12), 13);
  EXPECT_DOUBLE_EQ(ms(0, 15, 18), 111);
  EXPECT_DOUBLE_EQ(ms(0, 24, 27), 10) << "the third round has the times of the first";
  EXPECT_DOUBLE_EQ(ms(1, 0, 3), 110) << "and the fourth those of the second";
  EXPECT_DOUBLE_EQ(ms(0, 0, 12), 10 + 11 + 12 + 13);
  EXPECT_NEAR(ms(0, 2, 4), 10 / 3. + 11 / 3., 1e-9) << "a unit that is cut differently";
  EXPECT_NEAR(ms(0, 11, 13), 13 / 3. + 110 / 3., 1e-9);
}

TEST(UnitCosts, ABatchMayNotDivideIntoEqualUnits) {
  EXPECT_EQ(UnitsOfRound(14, 4), 4u);
  EXPECT_EQ(UnitsOfRound(60, 32), 30u) << "no unit is larger than an equal share";
  const UnitCosts costs(Table(1, 4), 14, 14);  // 3, 4, 3 and 4 samples
  const std::vector<SampleRange> units = {{0, 3}, {3, 7}, {7, 10}, {10, 14}};
  for (std::size_t u = 0; u < units.size(); ++u) {
    EXPECT_DOUBLE_EQ(costs.SecondsOf(Epoch(0), units[u]), 0.01 + 0.001 * static_cast<double>(u));
  }
}

TEST(UnitCosts, AreMultipliedByWhatSlowsTheWorker) {
  UnitTimeOptions options;
  options.costs.emplace(Table(1, 4), 12, 12);
  auto spec = ParseSlowdownSpec("worker=1,factor=3");
  ASSERT_TRUE(spec.ok());
  options.slowdowns = {*spec};
  ModelCompute compute(options, 1, Time{}, 2);
  RandomStream random(1);
  const auto time = [&](std::uint32_t worker, std::uint32_t unit) {
    return compute.UnitTime(WorkerId(worker), Time{}, RoundId(0), Epoch(0),
                            Unit{UnitIndex(unit), {3 * unit, 3 * unit + 3}}, 1, random);
  };
  EXPECT_EQ(time(0, 2), milliseconds(12));
  EXPECT_EQ(time(1, 2), milliseconds(36));
}

class JobOfCosts : public testing::Test {
 protected:
  // Rounds of 16 units of a sample each; every worker has one that takes long.
  void SetUp() override {
    std::ofstream out(file_);
    out << "round,unit,seconds\n";
    for (int r = 0; r < 3; ++r) {
      for (int u = 0; u < 16; ++u) out << fmt::format("{},{},{}\n", r, u, Seconds(r, u));
    }
  }

  static double Seconds(std::uint64_t round, std::uint64_t unit) {
    return (unit % 4 == 3 ? 0.08 : 0.02) + 0.001 * static_cast<double>(round) +
           0.0001 * static_cast<double>(unit);
  }

  Result<SimulateOptions> Options(std::vector<std::string> more = {}) {
    for (const char* argument : {"--workers=4", "--job.global_batch=16", "--job.rounds=7",
                                 "--train-samples=160", "--slowdown=worker=3,factor=3"}) {
      more.emplace_back(argument);
    }
    more.push_back("--unit-costs=" + file_);
    more.push_back("--run-dir=" + (folder_ / "run"));
    return ParseSimulateOptions(more);
  }

  TempFolder folder_;
  const std::string file_ = folder_ / "costs.csv";
};

// Nobody has told the costs, and no machine is slow: three rounds of units with times of their own
// come again in each epoch.
TEST_F(JobOfCosts, WorkersAreLateBecauseOfTheirDataOnceThatIsKnown) {
  const std::string drawn = folder_ / "drawn.csv";
  std::ofstream out(drawn);
  out << "round,unit,seconds\n";
  RandomStream random(5);
  for (int r = 0; r < 3; ++r) {
    for (int u = 0; u < 16; ++u) {
      out << fmt::format("{},{},{}\n", r, u, random.NextBelow(4) == 0 ? 0.09 : 0.02);
    }
  }
  out.close();
  const auto kinds = [&](const std::string& epochs) {
    std::vector<std::string> arguments = {"--workers=4",        "--job.global_batch=16",
                                          "--train-samples=48", "--unit-costs=" + drawn,
                                          "--policy.name=full", "--run-dir=" + (folder_ / "run")};
    arguments.push_back(epochs);
    std::filesystem::remove_all(folder_ / "run");
    const auto options = ParseSimulateOptions(arguments);
    EXPECT_TRUE(options.ok()) << options.error().message;
    const auto outcome = SimulateIntoRunDirectory(*options);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    std::set<std::string> found;
    for (const auto& straggler : outcome->result.stragglers) found.insert(straggler.kind);
    return found;
  };
  EXPECT_EQ(kinds("--job.epochs=60"), std::set<std::string>{"data"});
  EXPECT_EQ(kinds("--job.epochs=1"), std::set<std::string>{"compute"}) << "nothing came again";
}

// No machine is slow, and units take different times, some three times as long as most. Nobody has
// told so. The rules may find nothing to gain, and must not lose.
TEST_F(JobOfCosts, NoRuleIsSlowerThanWaitingForAll) {
  const std::string drawn = folder_ / "drawn.csv";
  std::ofstream out(drawn);
  out << "round,unit,seconds\n";
  RandomStream random(1);
  for (int r = 0; r < 30; ++r) {
    for (int u = 0; u < 128; ++u) {
      const double long_one = random.NextBelow(20) == 0 ? 2.1 : 1.3;
      const double seconds = random.NextBelow(10) < 3 ? long_one : 0.7;
      out << fmt::format("{},{},{:.4f}\n", r, u,
                         seconds + 0.001 * static_cast<double>(random.NextBelow(100)));
    }
  }
  out.close();
  // Of a sample that counts: what is left out comes again.
  const auto seconds_a_sample = [&](const std::string& policy) {
    std::filesystem::remove_all(folder_ / "run");
    const std::vector<std::string> arguments = {"--workers=16",
                                                "--job.global_batch=128",
                                                "--train-samples=3840",
                                                "--job.rounds=60",
                                                "--unit-costs=" + drawn,
                                                "--policy.name=" + policy,
                                                "--run-dir=" + (folder_ / "run")};
    const auto options = ParseSimulateOptions(arguments);
    EXPECT_TRUE(options.ok()) << options.error().message;
    const auto outcome = SimulateIntoRunDirectory(*options);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    const auto records = ReadRounds(folder_ / "run");
    EXPECT_TRUE(records.ok()) << records.error().message;
    double samples = 0;
    for (const auto& record : *records) samples += static_cast<double>(record.samples);
    return outcome->result.wall_seconds / samples;
  };
  const double full = seconds_a_sample("full");
  for (const char* policy :
       {"balance", "deadline", "partial", "deadline+balance", "partial+balance"}) {
    EXPECT_LT(seconds_a_sample(policy), 1.02 * full) << policy;
  }
  for (const char* policy : {"flexrr", "auto", "deadline+flexrr"}) {
    EXPECT_LT(seconds_a_sample(policy), 0.95 * full) << policy;
  }
}

// Rounds 3 to 6 have the times of 0 to 2 and 0.
TEST_F(JobOfCosts, AUnitThatMovesKeepsItsOwnTime) {
  const auto options = Options({"--policy.name=flexrr"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.units, 16u) << "the file's number";
  const auto outcome = SimulateIntoRunDirectory(*options);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_GT(outcome->result.totals.samples_moved, 7u);
  const auto records = ReadRounds(folder_ / "run");
  ASSERT_TRUE(records.ok()) << records.error().message;
  ASSERT_EQ(records->size(), 7u);
  for (const auto& record : *records) {
    ASSERT_EQ(record.units.size(), 16u);
    for (const auto& unit : record.units) {
      const double factor = unit.worker == WorkerId(3) ? 3 : 1;
      EXPECT_NEAR(unit.end - unit.start,
                  factor * Seconds(record.round.value % 3, unit.range.from % 16), 1e-6)
          << fmt::format("worker {}, round {}, {}", unit.worker, record.round, unit.range.from);
    }
  }
}

TEST_F(JobOfCosts, ThatDoesNotFitIsOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--job.units=8"},
       "--unit-costs " + file_ +
           ": it has 16 units a round, the job 8 (job.units = 8, job.global_batch = 16)"},
      {{"--unit-time=1s"}, "--unit-time: does nothing with --unit-costs"},
  };
  for (const auto& [more, message] : wrong) {
    const auto options = Options(more);
    ASSERT_FALSE(options.ok()) << more.front();
    EXPECT_EQ(options.error().message, message);
  }
  std::filesystem::remove(file_);
  const auto options = Options();
  ASSERT_FALSE(options.ok());
  EXPECT_EQ(options.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(options.error().message, file_ + ": No such file or directory");
}

}  // namespace
}  // namespace lockstep::simulate
