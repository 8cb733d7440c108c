#include "policies/async.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::policies {
namespace {

class AsyncTest : public ::testing::Test {
 protected:
  // `base`: the round in which the worker was given its units.
  WorkerView& Worker(std::uint64_t base, bool finished) {
    WorkerView worker;
    worker.member = {WorkerId(static_cast<std::uint32_t>(workers_.size())), Incarnation(1)};
    worker.base = RoundId(base);
    worker.units_given = 2;
    if (finished) {
      worker.finished_at = now_;
      worker.parts = {{PartIndex(0), 8, now_, now_}};
    }
    workers_.push_back(worker);
    return workers_.back();
  }

  ClosingVerdict Judge(Policy& policy, std::uint64_t round, bool explain = false) {
    RoundView view;
    view.round = RoundId(round);
    view.now = now_;
    view.configured_workers = 4;
    view.explain = explain;
    for (const WorkerView& worker : workers_) {
      view.with_units += 1;
      view.finished += worker.finished_at ? 1 : 0;
    }
    view.workers = workers_;
    return policy.closing->Judge(view);
  }

  const Time now_ = Time(std::chrono::seconds(5));
  std::vector<WorkerView> workers_;
};

TEST_F(AsyncTest, ClosesOverWhatIsThere) {
  Policy policy = MakeAsync({.staleness = 10, .damping = true});
  EXPECT_TRUE(policy.relaxed);
  Worker(3, false);
  Worker(5, true);
  Worker(4, true);
  Worker(5, false);
  const ClosingVerdict verdict = Judge(policy, 5);
  ASSERT_TRUE(verdict.close);
  ASSERT_EQ(verdict.parts.size(), 2u);
  EXPECT_EQ(verdict.parts[0].worker, WorkerId(1));
  EXPECT_EQ(verdict.parts[1].worker, WorkerId(2));
  EXPECT_EQ(verdict.reason, "2 of 4 contributions are there, the stalest by 1 commits");
}

TEST_F(AsyncTest, WaitsForTheFirst) {
  Policy policy = MakeAsync({.staleness = 10, .damping = true});
  Worker(0, false);
  EXPECT_FALSE(Judge(policy, 0).close);
  EXPECT_NE(Judge(policy, 0, true).reason.find("waiting for the first contribution"),
            std::string::npos);
}

TEST_F(AsyncTest, DoesNotLetAnybodyGrowStalerThanTheBound) {
  Policy policy = MakeAsync({.staleness = 3, .damping = true});
  Worker(2, false);
  Worker(5, true);
  EXPECT_TRUE(Judge(policy, 4).close);  // worker 0 may be in the next one, 3 commits old
  EXPECT_FALSE(Judge(policy, 5).close);
  EXPECT_EQ(Judge(policy, 5, true).reason,
            "waiting for worker 0, which began 3 commits ago, the most allowed");
  workers_[0].finished_at = now_;
  workers_[0].parts = {{PartIndex(0), 8, now_, now_}};
  EXPECT_TRUE(Judge(policy, 5).close);
}

TEST_F(AsyncTest, BoundZeroIsSynchronous) {
  Policy policy = MakeAsync({.staleness = 0, .damping = true});
  Worker(7, true);
  Worker(7, false);
  EXPECT_FALSE(Judge(policy, 7).close);
  workers_[1].finished_at = now_;
  EXPECT_TRUE(Judge(policy, 7).close);
}

// Its parts cannot be committed before it has applied the round before.
TEST_F(AsyncTest, PassesOverWhoHasNotApplied) {
  Policy policy = MakeAsync({.staleness = 10, .damping = true});
  Worker(4, true).level = false;
  EXPECT_FALSE(Judge(policy, 5).close);
  Worker(4, true);
  const ClosingVerdict verdict = Judge(policy, 5);
  ASSERT_TRUE(verdict.close);
  ASSERT_EQ(verdict.parts.size(), 1u);
  EXPECT_EQ(verdict.parts[0].worker, WorkerId(1));
}

TEST_F(AsyncTest, DampsWhatIsStalerThanUsual) {
  Policy policy = MakeAsync({.staleness = 100, .damping = true});
  Policy plain = MakeAsync({.staleness = 100, .damping = false});
  Worker(17, true);  // 3 = workers - 1: usual
  Worker(13, true);  // 7
  const ClosingVerdict verdict = Judge(policy, 20);
  ASSERT_EQ(verdict.parts.size(), 2u);
  EXPECT_EQ(verdict.parts[0].weight, 1.0f);
  EXPECT_EQ(verdict.parts[1].weight, 0.5f);
  EXPECT_EQ(Judge(plain, 20).parts[1].weight, 1.0f);
}

}  // namespace
}  // namespace lockstep::policies
