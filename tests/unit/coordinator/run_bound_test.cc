// What a worker can compute at once: in plans, in what policies are shown, and in what is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "coordinator/round/planner.h"
#include "policies/registry.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two workers, of which the second one has a bound; rounds of 16 samples.
class RunBoundTest : public ::testing::Test {
 protected:
  void Begin(std::uint32_t units, const RunBound& bound) {
    StartParameters start;
    start.workers = 2;
    start.config.job.global_batch = 16;
    start.config.job.units = units;
    auto policy = policies::MakePolicy(start.config.policy, start.workers, nullptr);
    ASSERT_TRUE(policy.ok());
    job_ = std::make_unique<Job>(std::move(start), std::move(*policy), 1);
    Edit(job_->out) = &actions_;
    for (const std::uint32_t i : {0u, 1u}) {
      Member* member = job_->members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
      Bring(job_->members, *member, MemberState::kLive, Time{});
    }
    job_->members.at(WorkerId(1)).ready.run_bound = bound;
    planner_ = std::make_unique<Planner>(job_.get());
  }
  PlannedRound Plan(std::uint64_t round) {
    return planner_->PlanRound(RoundId(round), 0, round, std::nullopt, &sampler_);
  }
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    for (const Action& action : actions_) {
      if (const auto* line = std::get_if<LogLine>(&action)) lines.push_back(line->text);
    }
    actions_.clear();
    return lines;
  }

  Actions actions_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Planner> planner_;
  Sampler sampler_{160, 16, 8};
};

TEST_F(RunBoundTest, IsInThePlanAndInWhatPoliciesSee) {
  Begin(0, {.samples = 5});
  const PlannedRound planned = Plan(0);
  ASSERT_EQ(planned.plan.assignments.size(), 2u);
  EXPECT_EQ(planned.plan.assignments[0].units.size(), 4u);
  EXPECT_EQ(planned.plan.assignments[0].runs, RunLimit{});
  EXPECT_EQ(planned.plan.assignments[1].runs, RunLimit{.units = 2}) << "5 samples, units of 2";
  EXPECT_EQ(job_->members.at(WorkerId(1)).longest_run, 2u);
  const RoundWork work(planned.plan, planned.exact, {}, job_->members, Time{});
  EXPECT_EQ(work.WorkerViewOf(WorkerId(0))->most_in_run, 0u);
  EXPECT_EQ(work.WorkerViewOf(WorkerId(1))->most_in_run, 2u);
  EXPECT_EQ(work.WorkerViewOf(WorkerId(1))->runs, RunLimit{.units = 2});
  EXPECT_THAT(Lines(), ElementsAre("a round is 8 units of 2 samples, for 2 workers; some workers "
                                   "at most 5 samples at once"));
}

// One to whom the plan gives nothing, and who is given a lost worker's units.
TEST_F(RunBoundTest, HoldsForWhoIsGivenUnitsLater) {
  Begin(0, {.samples = 5});
  PlannedRound planned = Plan(0);
  planned.plan.assignments.pop_back();
  RoundWork work(planned.plan, planned.exact, {}, job_->members, Time{});
  ASSERT_EQ(work.WorkerViewOf(WorkerId(1)), nullptr);
  work.Fence(WorkerId(0), 1);
  work.Give(job_->members.at(WorkerId(1)), work.TakeUnassigned(), 2, job_->members, Time{});
  EXPECT_EQ(work.WorkerViewOf(WorkerId(1))->runs, RunLimit{.units = 2});
}

TEST_F(RunBoundTest, OfUnitsIsARunOfEach) {
  Begin(0, {.samples = 8, .units = 1});
  EXPECT_EQ(Plan(0).plan.assignments[1].runs, RunLimit{.units = 1});
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("; each unit is computed by itself")));
}

// It is never divided; whoever has set job.units is told.
TEST_F(RunBoundTest, AUnitThatIsLargerIsARun) {
  Begin(2, {.samples = 5});
  EXPECT_EQ(Plan(0).plan.assignments[1].runs, RunLimit{.units = 1});
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("2 units of 8 samples"),
                                   HasSubstr("a unit has 8 samples, but some workers want "
                                             "at most 5 at once")));
}

TEST_F(RunBoundTest, WhatChangesIsSaidAgain) {
  Begin(0, {.samples = 5});
  Plan(0);
  sampler_.Settle({{0, 16}});
  EXPECT_EQ(Lines().size(), 1u);
  job_->members.at(WorkerId(1)).ready.run_bound.samples = 1;
  EXPECT_EQ(Plan(1).plan.assignments[1].units.size(), 8u) << "units that it can compute at once";
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("16 units of 1 sample,")));
}

}  // namespace
}  // namespace lockstep::coordinator
