// What a coordinator will not start with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "coordinator/core/coordinator.h"
#include "coordinator/round/planner.h"
#include "policies/registry.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const StartParameters& start) {
  auto made = Coordinator::Make(start);
  return made.ok() ? "" : made.error().message;
}

TEST(Start, WrongConfigsAreOneLine) {
  StartParameters start;
  start.workers = 4;
  EXPECT_EQ(ErrorOf(start), "");
  StartParameters wrong = start;
  wrong.config.policy.name = "ful";
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("'full'"));
  wrong = start;
  wrong.config.job.min_workers = 5;
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("job.min_workers"));
  wrong = start;
  wrong.config.job.global_batch = 0;
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("job.global_batch"));
  wrong = start;
  wrong.config.job.global_batch = 10;
  wrong.config.job.units = 11;
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("job.units"));
  wrong = start;
  wrong.config.policy.name = "backup";
  wrong.config.policy.backup_workers = 4;
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("backup.workers"));
}

// By what the policy is, not by its name: a plugin may be of any kind.
TEST(Start, WhatDoesNotGoWithThePolicyIsOneLine) {
  StartParameters start;
  start.workers = 4;
  start.config.policy.name = "plugin";
  start.plugin = [](const PolicySection& section, std::uint32_t workers) {
    PolicySection async = section;
    async.name = "async";
    return policies::MakePolicy(async, workers);
  };
  EXPECT_EQ(ErrorOf(start), "");
  StartParameters wrong = start;
  wrong.config.exchange.compression = "topk";
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("exchange.compression = topk and policy.name = plugin"));
  wrong = start;
  wrong.config.optimizer.replicas = 2;
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("policy.name = plugin needs all of the state"));
  wrong = start;
  wrong.config.optimizer.name = "custom";
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("optimizer.name = custom and policy.name = plugin"));
}

TEST(Start, AsManyUnitsAsThePolicyHasUseFor) {
  StartParameters start;
  start.workers = 8;
  start.config.job.global_batch = 1024;
  const auto units = [&start](const std::string& name) {
    start.config.policy.name = name;
    const auto policy = policies::MakePolicy(start.config.policy, start.workers, nullptr);
    LOCKSTEP_CHECK(policy.ok(), "{}", policy.error().message);
    return UnitsPerRound(start, *policy, {});
  };
  for (const char* name : {"flexrr", "auto", "balance", "partial"}) EXPECT_EQ(units(name), 512u);
  for (const char* name : {"full", "backup", "async"}) EXPECT_EQ(units(name), 32u) << name;
  start.config.policy.local_steps = 16;
  EXPECT_EQ(units("local"), 128u);
  start.config.job.global_batch = 100;
  EXPECT_EQ(units("auto"), 100u) << "a unit has a sample at least";
  start.config.job.global_batch = 100000;
  start.workers = 100;
  EXPECT_EQ(units("auto"), 4096u);
  start.workers = 2000;
  EXPECT_EQ(units("auto"), 8000u);
  start.config.job.units = 3000;
  EXPECT_EQ(units("auto"), 3000u);
  EXPECT_EQ(units("full"), 3000u);
}

// So that no worker is given a unit that it cannot compute at once.
TEST(Start, NoUnitIsAboveAWorkersBoundWhereItsSizeIsFree) {
  StartParameters start;
  start.workers = 2;
  start.config.job.global_batch = 60;
  start.config.policy.name = "full";
  const auto policy = policies::MakePolicy(start.config.policy, start.workers, nullptr);
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 8}), 8u);
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 7}), 9u);
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 1}), 60u);
  // Of one size where they are computed one by one: 8 of 60 are not, 10 are.
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 60, .units = 1}), 10u);
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 5, .units = 1}), 12u);
  start.config.job.global_batch = 61;
  EXPECT_EQ(UnitsPerRound(start, *policy, {.units = 1}), 8u) << "a prime number: 61 of one sample";
  // As many as somebody has said, whatever they are.
  start.config.job.units = 3;
  EXPECT_EQ(UnitsPerRound(start, *policy, {.samples = 8, .units = 1}), 3u);
}

// Each costs a run: not as many as where runs are long as a rule.
TEST(Start, AFewUnitsForEachWorkerWhereTheyAreComputedOneByOne) {
  StartParameters start;
  start.workers = 4;
  start.config.job.global_batch = 1024;
  start.config.policy.name = "auto";
  const auto policy = policies::MakePolicy(start.config.policy, start.workers, nullptr);
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(UnitsPerRound(start, *policy, {}), 256u);
  EXPECT_EQ(UnitsPerRound(start, *policy, {.units = 1}), 32u);
}

TEST(Start, FailsWhenTooFewJoinInTimeAndSaysWhoIsMissing) {
  StartParameters start;
  start.workers = 2;
  start.config.job.join_timeout_s = 5;
  auto coordinator = std::move(*Coordinator::Make(start));
  Actions actions;
  coordinator->Step(Time{}, Connected{ConnectionId(1), "127.0.0.1"}, &actions);
  coordinator->Step(Time{}, Received{ConnectionId(1), msg::Hello{}}, &actions);
  msg::Ready ready;
  ready.transports = {{"tcp", "address", ""}};
  ready.train_samples = ready.parameter_count = 10;
  coordinator->Step(Time{}, Received{ConnectionId(1), ready}, &actions);
  Time timer;
  while (!coordinator->finished() && timer < Time(std::chrono::minutes(1))) {
    for (const Action& action : actions) {
      if (const auto* set = std::get_if<SetTimer>(&action)) timer = set->at;
    }
    actions.clear();
    coordinator->Step(timer, Received{ConnectionId(1), msg::Pong{}}, &actions);
    if (!coordinator->finished()) coordinator->Step(timer, TimerFired{}, &actions);
  }
  ASSERT_TRUE(coordinator->finished());
  EXPECT_EQ(timer, Time(std::chrono::seconds(5)));
  const auto* finished = std::get_if<JobFinished>(&actions.back());
  ASSERT_NE(finished, nullptr);
  EXPECT_EQ(finished->result.outcome, JobOutcome::kFailed);
  EXPECT_THAT(finished->result.reason, HasSubstr("worker 1 is not there"));
}

TEST(Start, AWorkerWithMoreSamplesThanCanBeNumberedIsPutOut) {
  StartParameters start;
  start.workers = 1;
  for (const bool test : {false, true}) {
    auto coordinator = std::move(*Coordinator::Make(start));
    Actions actions;
    coordinator->Step(Time{}, Connected{ConnectionId(1), "127.0.0.1"}, &actions);
    coordinator->Step(Time{}, Received{ConnectionId(1), msg::Hello{}}, &actions);
    msg::Ready ready;
    ready.transports = {{"tcp", "address", ""}};
    ready.train_samples = ready.parameter_count = 10;
    (test ? ready.test_samples : ready.train_samples) = msg::kMaxSamples + 1;
    actions.clear();
    coordinator->Step(Time{}, Received{ConnectionId(1), ready}, &actions);
    const bool refused = std::ranges::any_of(actions, [](const Action& action) {
      const auto* send = std::get_if<Send>(&action);
      const auto* refuse = send == nullptr ? nullptr : std::get_if<msg::Refuse>(&*send->message);
      return refuse != nullptr && refuse->reason.find("4294967296") != std::string::npos;
    });
    EXPECT_TRUE(refused) << test;
  }
}

TEST(Start, WhatARuleOfAPluginThrowsEndsTheJob) {
  StartParameters start;
  start.workers = 2;
  start.config.policy.name = "plugin";
  start.plugin = [](const PolicySection& section, std::uint32_t workers) {
    PolicySection full = section;
    full.name = "full";
    auto policy = policies::MakePolicy(full, workers);
    policy->threw = std::make_shared<const std::string>("a rule of its own");
    return policy;
  };
  auto coordinator = std::move(*Coordinator::Make(start));
  Actions actions;
  coordinator->Step(Time{}, Connected{ConnectionId(1), "127.0.0.1"}, &actions);
  ASSERT_TRUE(coordinator->finished());
  const auto* finished = std::get_if<JobFinished>(&actions.back());
  ASSERT_NE(finished, nullptr);
  EXPECT_EQ(finished->result.outcome, JobOutcome::kFailed);
  EXPECT_THAT(finished->result.reason, HasSubstr("full+none threw: a rule of its own"));
}

}  // namespace
}  // namespace lockstep::coordinator
