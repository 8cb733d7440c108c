// Finds helpers within one look at a round. A look at a thousand workers asks this for each that
// lags and for each unit that moves, so no answer costs a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/time.h"
#include "policies/policy.h"

namespace lockstep::policies {

// One look at one worker. While work is handed over `end` moves and `can_help` may end.
struct WorkerEstimate {
  Duration unit_time{};
  Time end;  // expected
  std::uint32_t movable = 0;
  bool can_help = false;
  bool idle = false;  // can help, and has computed all that it holds
  // A run's cost, beside run_share, before its first given unit: where none waits already.
  Duration start_cost{};
  // The cost of its queue's runs, for each unit in it. If this cost were not counted when a unit
  // moves, it would appear at the next look, and units would move back and forth.
  Duration run_share{};
  // The part of `end` for units that it is promised and has not got yet.
  Duration promised{};
  Duration Step() const { return unit_time + run_share; }  // by which one unit moves the end
  // The same of so many units that cost so much, in usual ones.
  Duration Steps(std::uint32_t units, double cost) const {
    if (cost == units) return Step() * units;
    return FromSeconds(Seconds(unit_time) * cost) + run_share * units;
  }
};

// Helpers help the workers of their own group: neighbours by worker id. Workers are named by their
// place in the view.
class Helpers {
 public:
  // Begins a look. `estimates` has to stay; only its `can_help` may end. `group_size` 0: one group.
  void Begin(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
             std::uint32_t group_size);

  // --- as it was at the beginning of the look
  // One that helps is more than `trigger` further than this worker, or has nothing left. The worker
  // has units left.
  bool IsBehind(std::size_t worker, double trigger);
  // When the group's first helper would be done with one unit more; kNever without helpers.
  Time Soonest(std::size_t worker) { return GroupOf(worker).soonest; }

  // --- as it is now
  // Who would be done first with one unit more, at a tie the first by id. Nobody where that is the
  // worker itself: all others would be done after it then.
  std::optional<std::size_t> Earliest(std::size_t worker);
  // The worker that Earliest named last has got one unit more, of this cost.
  void GaveOne(std::size_t helper, double cost);

 private:
  struct Entry {
    Time end;  // with one unit more
    std::size_t worker;
    bool operator<(const Entry& other) const {  // of a heap: the earliest on top
      return end != other.end ? end > other.end : worker > other.worker;
    }
  };
  struct Group {
    bool looked_at = false;
    bool any_idle = false;
    double furthest = -1;  // progress, where nobody is idle
    Time soonest;
    bool heaped = false;
    std::vector<Entry> heap;  // who cannot help any more is taken out when on top
  };

  Group& GroupOf(std::size_t worker);
  std::vector<Entry>& HeapOf(std::size_t worker);
  std::pair<std::size_t, std::size_t> Members(std::size_t worker) const;
  double Progress(std::size_t worker) const;

  const RoundView* view_ = nullptr;
  const std::vector<WorkerEstimate>* estimates_ = nullptr;
  std::size_t group_size_ = 1;
  std::vector<Group> groups_;
};

}  // namespace lockstep::policies
