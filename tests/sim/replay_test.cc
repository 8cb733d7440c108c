// What-if predictions against what the other policy really comes to.
#include "tools/simulate/replay.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::simulate
