#include "worker/runtime/local_steps.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::worker {
namespace {

JobConfig Config() {
  JobConfig config;
  config.policy.name = "local";
  config.policy.local_steps = 2;
  config.job.global_batch = 32;  // 4 workers: steps of 4 samples
  config.optimizer.name = "sgd";
  config.optimizer.momentum = 0;
  return config;
}

LocalSteps Make(const JobConfig& config) {
  auto steps = LocalSteps::Make(config, 4, 3);
  EXPECT_TRUE(steps.ok());
  return std::move(*steps);
}

// A unit whose mean gradient is `mean` in every parameter, over `divisor` (nullopt: its samples).
void Unit(LocalSteps& steps, std::uint64_t samples, float mean,
          std::optional<std::uint64_t> divisor = std::nullopt) {
  const std::uint64_t over = divisor.value_or(samples);
  for (float& g : steps.gradient()) g += mean * static_cast<float>(over);
  steps.UnitDone(samples, over);
}

TEST(LocalSteps, TheContributionIsTheWayThatWasGoneTimesTheSamples) {
  LocalSteps steps = Make(Config());
  const std::vector<float> base = {1, 2, 3};
  steps.Begin(base, 0.5f);
  Unit(steps, 4, 1);  // 0.5 down
  EXPECT_EQ(steps.parameters()[0], 0.5f);
  Unit(steps, 4, 2);  // 1 down
  std::vector<float> contribution(3);
  steps.Seal(base, contribution);
  EXPECT_EQ(contribution, (std::vector<float>{12, 12, 12}));  // 8 * 1.5
}

TEST(LocalSteps, AStepGathersUnitsUntilItHasItsSamples) {
  LocalSteps steps = Make(Config());
  const std::vector<float> base = {0, 0, 0};
  steps.Begin(base, 1);
  Unit(steps, 2, 4);
  EXPECT_EQ(steps.parameters()[0], 0);
  Unit(steps, 2, 8);
  EXPECT_EQ(steps.parameters()[0], -6);
  Unit(steps, 1, 2);  // the last step has a quarter of the samples
  std::vector<float> contribution(3);
  steps.Seal(base, contribution);
  EXPECT_EQ(steps.parameters()[0], -6.5f);
  EXPECT_EQ(contribution[0], 32.5f);
}

// Steps are as long as samples say, means and the contribution's weight as the divisors.
TEST(LocalSteps, MeansAreOverWhatUnitsCountFor) {
  LocalSteps steps = Make(Config());
  const std::vector<float> base = {0, 0, 0};
  steps.Begin(base, 1);
  Unit(steps, 2, 4, 30);
  EXPECT_EQ(steps.parameters()[0], 0);
  Unit(steps, 2, 8, 10);
  EXPECT_EQ(steps.parameters()[0], -5);
  Unit(steps, 4, 0, 0);  // a step over nothing
  EXPECT_EQ(steps.parameters()[0], -5);
  std::vector<float> contribution(3);
  steps.Seal(base, contribution);
  EXPECT_EQ(contribution[0], 40 * 5.0f);
}

TEST(LocalSteps, ClipsEachStep) {
  JobConfig config = Config();
  config.optimizer.clip = 1;
  LocalSteps steps = Make(config);
  const std::vector<float> base = {0, 0, 0};
  steps.Begin(base, 1);
  steps.gradient()[1] = 400;  // a mean of 100 in one parameter
  steps.UnitDone(4, 4);
  EXPECT_FLOAT_EQ(steps.parameters()[1], -1);
}

// What a part comes to does not depend on what was computed before it.
TEST(LocalSteps, EachPartBeginsWithEmptyState) {
  JobConfig config = Config();
  config.optimizer.momentum = 0.9;
  LocalSteps steps = Make(config);
  const std::vector<float> base = {0, 0, 0};
  std::vector<float> first(3), second(3);
  for (std::vector<float>* contribution : {&first, &second}) {
    steps.Begin(base, 1);
    Unit(steps, 4, 1);
    Unit(steps, 4, 1);
    EXPECT_FLOAT_EQ(steps.parameters()[0], -2.9f);  // with momentum within the part
    steps.Seal(base, *contribution);
  }
  EXPECT_EQ(first, second);
}

TEST(LocalSteps, TheOuterOptimizerTakesTheAverage) {
  JobConfig config = Config();
  config.optimizer.weight_decay = 0.1;
  config.optimizer.clip = 3;
  const OptimizerSection plain = OuterOptimizer(config);
  auto outer = MakeOptimizer(plain);
  ASSERT_TRUE(outer.ok());
  EXPECT_TRUE((*outer)->state_names().empty());
  // Two contributions of 8 samples, from 1 to 0.5 and to 0.
  std::vector<float> parameters = {1};
  const std::vector<float> sum = {8 * 0.5f + 8 * 1.0f};
  UpdateScalars scalars;
  scalars.scale = 1.0f / 16;
  scalars.learning_rate = 1;
  (*outer)->Apply(scalars, {.first = 0,
                            .count = 1,
                            .parameters = parameters.data(),
                            .state = {},
                            .gradient_sum = sum.data()});
  EXPECT_EQ(parameters[0], 0.25f);
  config.policy.local_momentum = 0.5;
  EXPECT_EQ((*MakeOptimizer(OuterOptimizer(config)))->state_names().size(), 1u);
}

}  // namespace
}  // namespace lockstep::worker
