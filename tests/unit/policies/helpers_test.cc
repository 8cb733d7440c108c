// Helpers' answers against those of passes over all workers, in random looks of several sizes.
#include "policies/helpers.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/random.h"
#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

constexpr double kTrigger = 0.2;

struct Look {
  std::vector<WorkerView> workers;
  std::vector<WorkerEstimate> estimates;
  RoundView view;
};

Look RandomLook(RandomStream& random, std::uint32_t count) {
  Look look;
  look.view.now = Time(std::chrono::seconds(5));
  const bool some_idle = random.NextBelow(2) == 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    WorkerView worker;
    worker.member = {WorkerId(i), Incarnation(1)};
    worker.units_given = 1 + static_cast<std::uint32_t>(random.NextBelow(6));
    worker.units_done =
        static_cast<std::uint32_t>(random.NextBelow(worker.units_given + (some_idle ? 1 : 0)));
    // Few values, so that there are ties.
    worker.progressed_at = look.view.now - std::chrono::milliseconds(random.NextBelow(4));
    WorkerEstimate estimate;
    estimate.unit_time = std::chrono::milliseconds(1 + random.NextBelow(4));
    estimate.end = std::max(ExpectedEnd(worker, look.view.now, estimate.unit_time), look.view.now);
    estimate.can_help = random.NextBelow(4) > 0;
    estimate.idle = estimate.can_help && Computed(worker);
    look.workers.push_back(worker);
    look.estimates.push_back(estimate);
  }
  look.view.workers = look.workers;
  return look;
}

bool SameGroup(std::size_t a, std::size_t b, std::uint32_t group_size) {
  return group_size == 0 || a / group_size == b / group_size;
}

bool IsBehind(const Look& look, std::size_t worker, std::uint32_t group_size) {
  const auto progressed = [&](std::size_t i) {
    return Progressed(look.workers[i], look.view.now, look.estimates[i].unit_time);
  };
  for (std::size_t i = 0; i < look.estimates.size(); ++i) {
    if (i == worker || !look.estimates[i].can_help || !SameGroup(i, worker, group_size)) continue;
    if (Computed(look.workers[i]) || progressed(i) - progressed(worker) > kTrigger) return true;
  }
  return false;
}

std::optional<std::size_t> Earliest(const Look& look, std::size_t worker,
                                    std::uint32_t group_size) {
  std::optional<std::size_t> best;
  const auto end = [&](std::size_t i) {
    return look.estimates[i].end + look.estimates[i].unit_time;
  };
  for (std::size_t i = 0; i < look.estimates.size(); ++i) {
    if (!look.estimates[i].can_help || !SameGroup(i, worker, group_size)) continue;
    if (!best || end(i) < end(*best)) best = i;
  }
  return best == worker ? std::nullopt : best;
}

TEST(Helpers, AnswerAsPassesOverAllWorkersWould) {
  RandomStream random(17, 1);
  Helpers helpers;  // one for all looks, as the rule has it
  for (int i = 0; i < 2000; ++i) {
    const auto count = 1 + static_cast<std::uint32_t>(random.NextBelow(12));
    const auto group_size = static_cast<std::uint32_t>(random.NextBelow(count + 2));
    Look look = RandomLook(random, count);
    helpers.Begin(look.view, look.estimates, group_size);
    for (std::size_t worker = 0; worker < count; ++worker) {
      if (Computed(look.workers[worker])) continue;
      EXPECT_EQ(helpers.IsBehind(worker, kTrigger), IsBehind(look, worker, group_size));
      const auto first = Earliest(look, worker, group_size);
      if (first) {
        EXPECT_EQ(helpers.Soonest(worker),
                  look.estimates[*first].end + look.estimates[*first].unit_time);
      }
    }
    for (int step = 0; step < 30; ++step) {
      const std::size_t worker = random.NextBelow(count);
      const auto expected = Earliest(look, worker, group_size);
      ASSERT_EQ(helpers.Earliest(worker), expected);
      if (expected && random.NextBelow(4) > 0) {
        look.estimates[*expected].end += look.estimates[*expected].unit_time;
        helpers.GaveOne(*expected, 1);
      } else {
        // It hands over: its end moves too, and it is no help any more.
        look.estimates[worker].end -= look.estimates[worker].unit_time;
        look.estimates[worker].can_help = false;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::policies
