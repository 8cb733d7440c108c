#include "worker/runtime/run_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <string>

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

constexpr std::array kUnits = {Unit{UnitIndex(4), {320, 336}}, Unit{UnitIndex(5), {336, 352}}};
constexpr Duration kShort = std::chrono::milliseconds(1);
constexpr Duration kLong = std::chrono::hours(1);

TEST(RunWatch, SaysWhatIsInHand) {
  RunWatch watch;
  EXPECT_EQ(watch.InHand().units, 0u);
  watch.Begin(RoundId(3), kUnits);
  EXPECT_EQ(watch.InHand().units, 2u);
  EXPECT_GE(watch.InHand().lasts_ns, 0);
  watch.LeaveOut(kLong);  // all that it has lasted, and more
  EXPECT_EQ(watch.InHand().lasts_ns, 0);
  watch.End();
  EXPECT_EQ(watch.InHand().units, 0u);
}

TEST(RunWatch, NamesTheRunThatHasNoEnd) {
  std::promise<std::string> said;
  RunWatch watch;
  watch.Begin(RoundId(3), kUnits);
  watch.PutOut("no unit finished for 10.0 s", kShort,
               [&](const std::string& line) { said.set_value(line); });
  const std::string line = said.get_future().get();
  EXPECT_THAT(line, HasSubstr("no unit finished for 10.0 s"));
  EXPECT_THAT(line, HasSubstr("a run of 2 units"));
  EXPECT_THAT(line, HasSubstr("round 3, from position 320"));
}

// What comes back, ends or was in no run is not hung.
TEST(RunWatch, LeavesAThreadThatComesBackAlone) {
  const auto never = [](const std::string& line) { ADD_FAILURE() << line; };
  {
    RunWatch watch;
    watch.PutOut("silence", Duration{}, never);
  }
  {
    RunWatch watch;
    watch.Begin(RoundId(3), kUnits);
    watch.PutOut("silence", kLong, never);
    watch.End();
  }
  {
    RunWatch watch;
    watch.Begin(RoundId(3), kUnits);
    watch.PutOut("silence", kLong, never);
  }
}

}  // namespace
}  // namespace lockstep::worker
