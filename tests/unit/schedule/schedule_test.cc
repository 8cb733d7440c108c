#include "base/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

ScheduleSection Named(const std::string& name) {
  ScheduleSection schedule;
  schedule.name = name;
  schedule.step_every = 10;
  schedule.factor = 0.5;
  return schedule;
}

TEST(Schedule, ConstantStays) {
  const ScheduleSection schedule = Named("constant");
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 0, 100), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 1e6, 100), 0.4);
}

TEST(Schedule, StepFallsAtEachStep) {
  const ScheduleSection schedule = Named("step");
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 9, 100), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 10, 100), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 29, 100), 0.1);
}

TEST(Schedule, ExponentialFallsBetweenSteps) {
  const ScheduleSection schedule = Named("exponential");
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 10, 100), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 5, 100), 0.4 * std::sqrt(0.5));
}

TEST(Schedule, CosineEndsAtItsFinalRate) {
  ScheduleSection schedule = Named("cosine");
  schedule.final_lr = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.5, 0, 100), 0.5);
  EXPECT_NEAR(LearningRate(schedule, 0.5, 50, 100), 0.3, 1e-12);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.5, 100, 100), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.5, 150, 100), 0.1);
}

TEST(Schedule, WarmUpRisesLinearlyAndIsNeverZero) {
  for (const char* name : {"constant", "cosine"}) {
    ScheduleSection schedule = Named(name);
    schedule.warmup = 4;
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 0, 100), 0.1) << name;
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 1, 100), 0.2) << name;
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 2, 100), 0.3) << name;
    EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 4, 100), 0.4) << name;
  }
}

TEST(Schedule, WarmUpMultipliesADecay) {
  ScheduleSection schedule = Named("step");
  schedule.warmup = 40;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.4, 19, 100), 0.4 * 0.5 * 0.5);
}

TEST(Schedule, CosineSurvivesAJobShorterThanItsWarmUp) {
  ScheduleSection schedule = Named("cosine");
  schedule.warmup = 50;
  EXPECT_DOUBLE_EQ(LearningRate(schedule, 0.5, 24, 10), 0.25);
}

TEST(Schedule, LinearScaling) {
  EXPECT_DOUBLE_EQ(StepFraction(256, 256), 1);
  EXPECT_DOUBLE_EQ(StepFraction(192, 256), 0.75);
  EXPECT_DOUBLE_EQ(StepFraction(320, 256), 1.25);
}

TEST(Schedule, ChecksItsSection) {
  EXPECT_TRUE(CheckSchedule(Named("cosine")).ok());
  const Status unknown = CheckSchedule(Named("cosin"));
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, HasSubstr("'cosine'?"));
  ScheduleSection schedule = Named("step");
  schedule.step_every = 0;
  const Status never = CheckSchedule(schedule);
  ASSERT_FALSE(never.ok());
  EXPECT_THAT(never.error().message, HasSubstr("schedule.step_every"));
}

}  // namespace
}  // namespace lockstep
