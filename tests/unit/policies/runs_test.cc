#include "policies/runs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "policies/outlook.h"
#include "policies/registry.h"

namespace lockstep::policies {
namespace {

using namespace std::chrono_literals;

constexpr Duration kUnit = 1ms;

// Rounds of workers with equal shares, all of which are computed; what is asked for is the plan of
// the next one.
class Job {
 public:
  Job(std::uint32_t workers, std::uint32_t share, double run_cost)
      : shares_(workers, share), slow_(workers, 1.0), run_cost_(run_cost) {}

  void SetFactor(std::uint32_t worker, double factor) { slow_[worker] = factor; }
  void SetMostInRun(std::uint32_t units) { most_in_run_ = units; }
  void Round() {
    const std::vector<RunLimit> limits = Limits();
    std::vector<WorkerView> views = Views();
    for (std::size_t i = 0; i < views.size(); ++i) {
      WorkerView& view = views[i];
      view.units_planned = view.units_given = view.units_done = view.units_timed = shares_[i];
      const RunLimit limit = Within(limits[i], most_in_run_);
      const std::uint32_t first = NextRun(shares_[i], limit);
      for (std::uint32_t left = shares_[i], run = 0; left > 0; left -= run) {
        run = NextRun(left, limit);
        ++view.runs_timed;
        measured_ = measured_ || run != first;  // lengths differ
      }
      view.computed =
          FromSeconds(Seconds(kUnit) * slow_[i] * (shares_[i] + run_cost_ * view.runs_timed));
      view.finished_at = Time(1s) + view.computed;
    }
    RoundView round;
    round.started = Time(1s);
    round.now = Time(1h);
    round.workers = views;
    rule_->OnCommitted(round);
  }
  std::vector<RunLimit> Limits() { return rule_->Runs(Views(), shares_); }

 private:
  std::vector<WorkerView> Views() const {
    std::vector<WorkerView> views(shares_.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i].member = {WorkerId(static_cast<std::uint32_t>(i)), Incarnation(1)};
      if (measured_) views[i].run_cost = run_cost_;
      views[i].most_in_run = most_in_run_;
    }
    return views;
  }

  const std::vector<std::uint32_t> shares_;
  std::vector<double> slow_;
  const double run_cost_;
  const std::unique_ptr<RunRule> rule_ = MakeGuidedRuns();
  bool measured_ = false;
  std::uint32_t most_in_run_ = 0;
};

TEST(GuidedRuns, ShortOnesUntilItIsKnownWhatARunCosts) {
  Job job(4, 64, 10);
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, {1, true})) << "nothing is known of anybody";
  job.Round();
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, {8, true}));
}

TEST(GuidedRuns, FewUnitsTellWhatARunCostsToo) {
  Job job(4, 8, 2);
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, {1, true}));
  job.Round();
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, {2, true})) << "lengths differ";
  job.Round();
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, RunLimit{}));
}

TEST(GuidedRuns, AllAtOnceWhereARunCostsSomethingAndNobodyIsSlow) {
  Job job(4, 64, 2);
  job.Round();
  job.Round();
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, RunLimit{}));
  for (int i = 0; i < 10; ++i) job.Round();
  EXPECT_EQ(job.Limits(), std::vector<RunLimit>(4, RunLimit{}));
}

// Short runs cost more of them. Where memory takes the share of a late worker in three runs anyway,
// these are short enough; where they would be nearly all of it, short ones are as good as without.
TEST(GuidedRuns, WhatAWorkerCannotComputeAtOnceIsNotReckonedWith) {
  const auto limit = [](std::uint32_t most_in_run) {
    Job job(4, 64, 2);
    job.SetFactor(3, 1.5);
    job.SetMostInRun(most_in_run);
    for (int i = 0; i < 10; ++i) job.Round();
    return job.Limits()[3];
  };
  EXPECT_EQ(limit(0), (RunLimit{12, true}));
  EXPECT_EQ(limit(16), RunLimit{}) << "as many as it can, of what it has";
  EXPECT_EQ(limit(40), (RunLimit{12, true}));
}

TEST(GuidedRuns, AWorkerThatIsSlowTakesShortOnesOfTheSameTime) {
  Job job(4, 64, 2);
  job.SetFactor(3, 4);
  job.Round();
  job.Round();
  const std::vector<RunLimit> limits = job.Limits();
  EXPECT_EQ(limits[0], RunLimit{}) << "the others are not late";
  // A 16th of what a quarter of the speed makes in a round of 64 * 4 / 3.25 unit times.
  EXPECT_EQ(limits[3], (RunLimit{1, true}));
  job.SetFactor(3, 100);
  job.Round();
  EXPECT_EQ(job.Limits()[3].units, 1u);
}

TEST(GuidedRuns, WhoIsNoLongerSlowTakesLongOnesAgain) {
  Job job(4, 64, 2);
  job.SetFactor(3, 4);
  for (int i = 0; i < 20; ++i) job.Round();
  job.SetFactor(3, 1);
  int rounds = 0;
  for (; job.Limits()[3] != RunLimit{} && rounds < 100; ++rounds) job.Round();
  EXPECT_GT(rounds, 0);
  EXPECT_LT(rounds, 10);
}

// Somebody else each few rounds: nobody is known to be late before, all may be next.
TEST(GuidedRuns, ShortOnesForAllWhereSlownessComesAsASurprise) {
  for (const double cost : {0.01, 100.0}) {
    Job job(4, 64, cost);
    for (std::uint32_t i = 0; i < 60; ++i) {
      job.SetFactor(i / 6 % 4, i % 6 < 3 ? 4 : 1);
      job.Round();
    }
    if (cost < 1) {
      for (const RunLimit& limit : job.Limits()) EXPECT_TRUE(limit.guided);
    } else {
      EXPECT_EQ(job.Limits()[1], RunLimit{}) << "runs cost more than surprises";
    }
  }
}

// It is slow, and what it is given as one run never comes.
TEST(GuidedRuns, ShorterAndShorterOnesForWhomRoundsHaveClosedWithout) {
  const std::unique_ptr<RunRule> rule = MakeGuidedRuns();
  std::vector<WorkerView> views(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    views[i].member.worker = WorkerId(i);
    views[i].units_planned = 16;
  }
  views[0].units_timed = 16;
  views[0].runs_timed = 1;
  views[0].computed = 16ms;
  views[0].run_cost = 3.0;
  views[0].finished_at = Time(1s);
  RoundView round;
  round.workers = views;
  const std::vector<std::uint32_t> shares = {16, 16};
  // Half of the first is work; in the end single units, of which something has to come.
  for (const std::uint32_t most : {3, 2, 1, 1}) {
    rule->OnCommitted(round);
    EXPECT_EQ(rule->Runs(views, shares)[0], RunLimit{});
    EXPECT_EQ(rule->Runs(views, shares)[1], (RunLimit{most, true}));
  }
}

TEST(GuidedRuns, WhoIsNotWaitedForIsLateBesideTheOthersAndNotBesideTheirUnits) {
  // Four workers share two processors: a round lasts ten times as long as a share's units.
  const std::unique_ptr<RunRule> rule = MakeGuidedRuns();
  std::vector<WorkerView> views(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    views[i].member.worker = WorkerId(i);
    views[i].units_planned = views[i].units_timed = 16;
    views[i].runs_timed = 1;
    views[i].computed = 16ms;
    views[i].run_cost = 3.0;
    views[i].finished_at = Time(160ms);
  }
  views[3].finished_at.reset();
  RoundView round;
  round.now = Time(161ms);
  round.workers = views;
  for (int i = 0; i < 20; ++i) rule->OnCommitted(round);
  const std::vector<std::uint32_t> shares = {16, 16, 16, 16};
  for (const RunLimit& limit : rule->Runs(views, shares)) EXPECT_EQ(limit, RunLimit{});
}

TEST(GuidedRuns, ANewHolderOfASlotBeginsAnew) {
  const std::unique_ptr<RunRule> rule = MakeGuidedRuns();
  std::vector<WorkerView> views(2);
  views[1].member.worker = WorkerId(1);
  for (WorkerView& view : views) {
    view.units_planned = view.units_timed = 8;
    view.runs_timed = 1;
    view.computed = 8ms;
    view.run_cost = 1.0;
    view.finished_at = Time(1s);
  }
  views[1].computed = 80ms;
  RoundView round;
  round.workers = views;
  for (int i = 0; i < 4; ++i) rule->OnCommitted(round);
  const std::vector<std::uint32_t> shares = {8, 8};
  EXPECT_TRUE(rule->Runs(views, shares)[1].guided);
  views[1].member.incarnation = Incarnation(2);
  EXPECT_EQ(rule->Runs(views, shares)[1], RunLimit{});
}

TEST(GuidedRuns, AreForPoliciesThatMoveUnitsOrLeaveThemOut) {
  PolicySection section;
  const auto guided = [&section](const std::string& name) {
    section.name = name;
    auto policy = MakePolicy(section, 4, nullptr);
    return policy.ok() && policy->runs != nullptr;
  };
  for (const char* name : {"flexrr", "backup", "deadline+balance", "partial", "auto"}) {
    EXPECT_TRUE(guided(name)) << name;
  }
  for (const char* name : {"full", "full+balance", "local", "async"}) {
    EXPECT_FALSE(guided(name)) << name;
  }
}

// --- a round with runs, as rules see it

TEST(Outlook, ARunCannotBeMoved) {
  WorkerView worker;
  worker.units_given = 20;
  EXPECT_EQ(Begun(worker), 20u);
  worker.runs = {.units = 4};
  EXPECT_EQ(Begun(worker), 4u);
  worker.units_done = 4;
  EXPECT_EQ(Begun(worker), 8u);
  worker.units_taken = 6;
  EXPECT_EQ(Begun(worker), 6u) << "as it has said";
  EXPECT_EQ(InHand(worker), 2u);
  worker.runs = {.guided = true};
  worker.units_taken = 4;
  EXPECT_EQ(InHand(worker), 8u);
  worker.units_done = worker.units_taken = 20;
  EXPECT_EQ(InHand(worker), 0u);
}

TEST(Outlook, ARunIsExpectedToEndAsAWhole) {
  WorkerView worker;
  worker.units_given = 20;
  worker.runs = {.units = 8};
  worker.progressed_at = Time(1s);
  EXPECT_EQ(ExpectedEnd(worker, Time(1s) + 5 * kUnit, kUnit), Time(1s) + 20 * kUnit);
  // It should have ended 4 units ago, so it takes 4 more.
  EXPECT_EQ(ExpectedEnd(worker, Time(1s) + 12 * kUnit, kUnit), Time(1s) + 28 * kUnit);
  EXPECT_DOUBLE_EQ(Progressed(worker, Time(1s) + 5 * kUnit, kUnit), 5.0 / 20);
  EXPECT_DOUBLE_EQ(Progressed(worker, Time(1s) + 12 * kUnit, kUnit), 7.9 / 20);
}

TEST(Outlook, EachRunCostsSomethingBesideItsUnits) {
  WorkerView worker;
  worker.units_given = 20;
  worker.runs = {.units = 8};
  worker.run_cost = 3.0;
  worker.progressed_at = Time(1s);
  EXPECT_EQ(RunTime(worker, 8, kUnit), 11 * kUnit);
  EXPECT_EQ(QueueTime(worker, 20, kUnit), 29 * kUnit) << "8, 8 and 4";
  EXPECT_EQ(QueueTime(worker, 0, kUnit), Duration{});
  EXPECT_EQ(ExpectedEnd(worker, Time(1s) + 5 * kUnit, kUnit), Time(1s) + 29 * kUnit);
  EXPECT_NEAR(Progressed(worker, Time(1s) + 11 * kUnit / 2, kUnit), 4.0 / 20, 1e-9);
  worker.runs.guided = true;
  EXPECT_EQ(QueueTime(worker, 16, kUnit), 31 * kUnit) << "8, 4, 2, 1 and 1";
  worker.runs = {};
  EXPECT_EQ(QueueTime(worker, 20, kUnit), 23 * kUnit);
  worker.run_cost = -1.0;
  EXPECT_EQ(QueueTime(worker, 20, kUnit), 20 * kUnit) << "noise";
}

TEST(Outlook, WhatARunCostsLiesBetweenWhatTwoWorkersKnow) {
  const auto median = [](const std::vector<double>& costs) {
    std::vector<WorkerView> views(costs.size() + 1);  // one of them knows nothing
    for (std::size_t i = 0; i < costs.size(); ++i) views[i].run_cost = costs[i];
    return MedianRunCost(views);
  };
  EXPECT_EQ(median({}), std::nullopt);
  EXPECT_EQ(median({3}), 3.0);
  EXPECT_EQ(median({12, 1}), 6.5);
  EXPECT_EQ(median({12, 1, 2}), 2.0);
  EXPECT_EQ(median({-3, 1}), 0.0);
}

}  // namespace
}  // namespace lockstep::policies
