// Standings' answers against those of plain passes over all workers, in random looks of several
// sizes; and those that are kept from look to look against those that are made anew.
#include "policies/standings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/random.h"
#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

using std::chrono::milliseconds;

constexpr double kTrigger = 0.2;
constexpr Time kStart{std::chrono::seconds(5)};

// A round in which anything may change from look to look. Few values, so that there are ties.
class RandomRound {
 public:
  RandomRound(RandomStream& random, std::uint32_t workers, bool known, bool costs)
      : random_(random), known_(known), costs_(costs) {
    view_.now = view_.started = kStart;
    for (std::uint32_t i = 0; i < workers; ++i) workers_.push_back(NewWorker(i));
  }

  const RoundView& view() {
    view_.workers = workers_;
    return view_;
  }
  const RoundView& ViewWithChanges() {
    view();
    view_.changes = &changes_;
    return view_;
  }

  void GoOn() {
    view_.now += milliseconds(random_.NextBelow(3));
    for (std::uint64_t changes = random_.NextBelow(4); changes > 0; --changes) {
      if (random_.NextBelow(12) == 0) {
        ReplaceSome();
      } else if (!workers_.empty()) {
        const std::size_t i = random_.NextBelow(workers_.size());
        Change(&workers_[i]);
        changes_.places.push_back(static_cast<std::uint32_t>(i));
      }
    }
  }

 private:
  WorkerView NewWorker(std::uint32_t id) {
    WorkerView worker;
    worker.member = {WorkerId(id), Incarnation(1)};
    worker.units_given = 1 + static_cast<std::uint32_t>(random_.NextBelow(6));
    worker.runs = {.units = static_cast<std::uint32_t>(random_.NextBelow(3))};
    worker.progressed_at = view_.now;
    if (known_ || random_.NextBelow(4) > 0) {
      worker.unit_time_mean = milliseconds(1 + random_.NextBelow(4));
    }
    if (random_.NextBelow(3) == 0) worker.run_cost = 0.5;
    worker.takes_units = random_.NextBelow(4) > 0;
    SetCosts(&worker);
    return worker;
  }

  void SetCosts(WorkerView* worker) {
    if (!costs_) return;
    worker->cost_before = {0};
    for (std::uint32_t i = 0; i < worker->units_given; ++i) {
      worker->cost_before.push_back(worker->cost_before.back() + 0.5 * (1 + i % 3));
    }
  }

  void Change(WorkerView* worker) {
    switch (random_.NextBelow(8)) {
      case 0:
        worker->fenced = !worker->fenced;
        break;
      case 1:
        worker->revoking = !worker->revoking;
        break;
      case 2:
        worker->takes_units = !worker->takes_units;
        break;
      case 3:
        ++worker->units_given;
        worker->finished_at.reset();
        SetCosts(worker);
        break;
      case 4:
        worker->parts.push_back({PartIndex(0), 8, view_.now - milliseconds(2), view_.now});
        break;
      default:
        if (Computed(*worker)) {
          worker->finished_at = view_.now;
          break;
        }
        ++worker->units_done;
        worker->units_taken = std::min(worker->units_done + 1, worker->units_given);
        worker->progressed_at = view_.now;
        worker->pace = milliseconds(1 + random_.NextBelow(4));
    }
  }

  void ReplaceSome() {
    if (!workers_.empty() && random_.NextBelow(2) == 0) {
      workers_.erase(workers_.begin() +
                     static_cast<std::ptrdiff_t>(random_.NextBelow(workers_.size())));
    } else {
      workers_.push_back(NewWorker(workers_.empty() ? 0 : workers_.back().member.worker.value + 1));
    }
    ++changes_.list;
    changes_.places.clear();
  }

  RandomStream& random_;
  const bool known_;
  const bool costs_;
  std::vector<WorkerView> workers_;
  ViewChanges changes_;
  RoundView view_;
};

// As outlook.h has it, worker by worker.
WorkerEstimate Estimate(const WorkerView& worker, Time now, Duration unit_time) {
  WorkerEstimate estimate;
  estimate.unit_time = unit_time;
  estimate.end = std::max(ExpectedEnd(worker, now, unit_time), now);
  const Duration run = RunTime(worker, 0, unit_time);
  if (worker.runs.units > 0) estimate.run_share = run / worker.runs.units;
  if (Begun(worker) >= worker.units_given) estimate.start_cost = run - estimate.run_share;
  estimate.can_help = worker.takes_units && !worker.fenced && !worker.revoking;
  estimate.idle = estimate.can_help && Computed(worker);
  const bool overdue =
      now - worker.progressed_at >
      RunTime(worker, worker.units_done, worker.units_done + InHand(worker) + 1, unit_time);
  if (!worker.fenced && !worker.revoking) {
    estimate.movable = worker.units_given -
                       (overdue ? std::max(worker.units_taken, worker.units_done) : Begun(worker));
  }
  return estimate;
}

std::vector<WorkerEstimate> Estimates(const RoundView& view) {
  std::vector<WorkerEstimate> all;
  for (const WorkerView& worker : view.workers) {
    const Duration unit_time = UnitTimeOf(worker, MedianUnitTime(view));
    if (unit_time == Duration{}) return {};
    all.push_back(Estimate(worker, view.now, unit_time));
  }
  return all;
}

bool SameGroup(std::size_t a, std::size_t b, std::uint32_t group_size) {
  return group_size == 0 || a / group_size == b / group_size;
}

bool IsBehind(const RoundView& view, const std::vector<WorkerEstimate>& all, std::size_t worker,
              std::uint32_t group_size) {
  const auto progressed = [&](std::size_t i) {
    return Progressed(view.workers[i], view.now, all[i].unit_time);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == worker || !all[i].can_help || !SameGroup(i, worker, group_size)) continue;
    if (all[i].idle || progressed(i) - progressed(worker) > kTrigger) return true;
  }
  return false;
}

Time OneMore(const WorkerEstimate& estimate) {
  return estimate.end + estimate.start_cost + estimate.Step();
}

std::optional<std::size_t> Earliest(const std::vector<WorkerEstimate>& all, std::size_t worker,
                                    std::uint32_t group_size) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].can_help || !SameGroup(i, worker, group_size)) continue;
    if (!best || OneMore(all[i]) < OneMore(all[*best])) best = i;
  }
  return best == worker ? std::nullopt : best;
}

void ExpectEqual(const WorkerEstimate& a, const WorkerEstimate& b) {
  EXPECT_EQ(a.unit_time, b.unit_time);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.movable, b.movable);
  EXPECT_EQ(a.can_help, b.can_help);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.start_cost, b.start_cost);
  EXPECT_EQ(a.run_share, b.run_share);
  EXPECT_EQ(a.promised, b.promised);
}

// What the rule does with it: promises, and units that are given away one by one.
void HandOver(Standings* standings, std::vector<WorkerEstimate> all, const RoundView& view,
              std::uint32_t group_size, RandomStream& random) {
  if (random.NextBelow(3) == 0) {
    const std::size_t helper = random.NextBelow(all.size());
    WorkerEstimate& estimate = all[helper];
    const Duration more = estimate.start_cost + estimate.Steps(2, 1.5);
    estimate.end += more;
    estimate.promised += more;
    estimate.start_cost = {};
    estimate.idle = false;
    standings->Promise(helper, 2, 1.5);
  }
  const std::vector<WorkerEstimate> before = all;
  const auto latest = [&](std::size_t worker) {
    Time end{};
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i].movable > 0 && SameGroup(i, worker, group_size)) {
        end = std::max(end, before[i].end);
      }
    }
    return end;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    ExpectEqual(standings->At(i), all[i]);
    if (Computed(view.workers[i])) continue;
    EXPECT_EQ(standings->IsBehind(i, kTrigger), IsBehind(view, all, i, group_size));
    const auto first = Earliest(all, i, group_size);
    if (first) {
      EXPECT_EQ(standings->Soonest(i), OneMore(all[*first]));
    }
  }
  for (int step = 0; step < 10; ++step) {
    const std::size_t worker = random.NextBelow(all.size());
    if (all[worker].movable == 0) continue;
    const auto expected = Earliest(all, worker, group_size);
    const auto found = standings->Earliest(worker);
    if (!found && expected && OneMore(all[*expected]) >= latest(worker)) continue;
    ASSERT_EQ(found, expected);
    if (!expected || OneMore(all[*expected]) >= all[worker].end) continue;
    WorkerEstimate& quick = all[*expected];
    quick.end += quick.start_cost + quick.Steps(1, 1);
    quick.start_cost = {};
    quick.idle = false;
    all[worker].end -= all[worker].Steps(1, 1);
    standings->Give(worker, *expected, 1);
    // It hands over, and is no help any more.
    all[worker].can_help = false;
    standings->EndHelp(worker);
    ExpectEqual(standings->At(*expected), quick);
    ExpectEqual(standings->At(worker), all[worker]);
    const bool single = group_size == 0 || group_size >= all.size();
    if (!single || !view.workers[0].cost_before.empty()) continue;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto helper = Earliest(all, i, group_size);
      const bool none = !helper || OneMore(all[*helper]) >= all[i].end;
      if (standings->NobodyHelps(all[i].end)) {
        EXPECT_TRUE(none || all[i].movable == 0);
      }
    }
  }
}

TEST(Standings, AreThoseOfPassesOverAllWorkersAtEachLook) {
  RandomStream random(17, 1);
  std::size_t looks = 0;
  for (int i = 0; i < 300; ++i) {
    const auto count = 1 + static_cast<std::uint32_t>(random.NextBelow(12));
    const auto group_size = static_cast<std::uint32_t>(random.NextBelow(count + 2));
    RandomRound round(random, count, random.NextBelow(3) > 0, random.NextBelow(4) == 0);
    Standings kept(group_size);
    for (int look = 0; look < 30; ++look, round.GoOn()) {
      const RoundView& view = round.ViewWithChanges();
      const std::vector<WorkerEstimate> all = Estimates(view);
      ASSERT_EQ(kept.Look(view), !all.empty());
      if (all.empty()) continue;
      ++looks;
      EXPECT_EQ(kept.MedianOfUnitTimes(view), MedianUnitTime(view));
      bool any_movable = false;
      std::size_t late = 0;
      Duration delivered{};
      int parts = 0;
      for (std::size_t k = 0; k < all.size(); ++k) {
        const WorkerView& worker = view.workers[k];
        any_movable = any_movable || all[k].movable > 0;
        late += !worker.fenced && worker.units_given > 0 && !worker.finished_at ? 1 : 0;
        for (const PartView& part : worker.parts) {
          delivered += *part.delivered_at - part.ready_at;
          ++parts;
        }
      }
      EXPECT_EQ(kept.any_movable(), any_movable);
      EXPECT_EQ(kept.LookAtFinish(view.started).late.size(), late);
      ASSERT_EQ(kept.MeanDelivery().has_value(), parts > 0);
      if (parts > 0) {
        EXPECT_EQ(*kept.MeanDelivery(), delivered / parts);
      }
      HandOver(&kept, all, view, group_size, random);
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(looks, 5000u);
}

// Some are marked: they were behind before. Of the others those that are not behind do not count.
TEST(Standings, AQuietGroupHasNothingToHandOver) {
  RandomStream random(18, 1);
  std::size_t quiet = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto count = 1 + static_cast<std::uint32_t>(random.NextBelow(8));
    RandomRound round(random, count, true, false);
    for (std::uint64_t steps = random.NextBelow(16); steps > 0; --steps) round.GoOn();
    const RoundView& view = round.view();
    const std::vector<WorkerEstimate> all = Estimates(view);
    Standings standings(0);
    if (!standings.Look(view)) continue;
    std::vector<bool> marked(all.size());
    for (std::size_t k = 0; k < all.size(); ++k) {
      marked[k] = random.NextBelow(2) == 0;
      if (marked[k]) standings.Mark(k);
    }
    if (!standings.IsQuiet(0, kTrigger)) continue;
    ++quiet;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].movable == 0) continue;
      const auto helper = Earliest(all, k, 0);
      const bool none = !helper || OneMore(all[*helper]) >= all[k].end;
      EXPECT_TRUE(marked[k] ? none : !IsBehind(view, all, k, 0));
    }
  }
  EXPECT_GT(quiet, 300u);
}

}  // namespace
}  // namespace lockstep::policies
