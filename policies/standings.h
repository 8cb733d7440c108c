// How the workers of a round stand, from look to look: when each is expected to end, who can help
// whom, and who is behind. A look renews the workers that have changed since the last one, by the
// view's list of changes or because their time is over. For the others it is one short pass over
// dense numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/time.h"
#include "policies/outlook.h"
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

// Workers are named by their place in the view. Helpers help the workers of their own group:
// neighbours by worker id.
//
// Invariant: after Look all is as if it were made of this view alone; Promise, Give and EndHelp
// hold until the next look.
class Standings {
 public:
  explicit Standings(std::uint32_t group_size) : group_size_(group_size) {}  // 0: one group

  // Begins a look. False: nothing is known of anybody's unit times.
  bool Look(const RoundView& view);
  // Nothing of earlier looks holds: another round.
  void Forget() {
    list_.reset();
    marked_.clear();
  }

  std::size_t size() const { return standings_.size(); }
  WorkerId worker(std::size_t i) const { return standings_[i].worker; }
  bool any_movable() const { return movable_ > 0; }
  const WorkerEstimate& At(std::size_t i) {
    estimates_[i].end = EndOf(standings_[i]);
    return estimates_[i];
  }
  Duration unit_time(std::size_t i) const { return estimates_[i].unit_time; }
  std::uint32_t movable(std::size_t i) const { return estimates_[i].movable; }
  Time end(std::size_t i) const { return EndOf(standings_[i]); }
  const std::vector<WorkerEstimate>& All();
  // The workers' means of what their delivered parts took; nullopt: none was delivered.
  std::optional<Duration> MeanDelivery() const;
  // As outlook.h says.
  Duration MedianOfUnitTimes(const RoundView& view);

  // The workers that have finished and those that have not.
  struct Finish {
    std::uint32_t done = 0;
    std::uint32_t free = 0;  // of those, who can take units
    std::size_t fenced = 0;
    Time delivered;  // when the last of them was done
    std::vector<std::size_t> late;
  };
  const Finish& LookAtFinish(Time started);

  // --- in this look
  // It gets so many units that cost so much when their holder has given them back.
  void Promise(std::size_t helper, std::uint32_t units, double cost);
  // One unit of this cost goes to the worker that Earliest named last.
  void Give(std::size_t helpee, std::size_t helper, double cost);
  void EndHelp(std::size_t worker);

  // --- groups, as they were at the beginning of the look
  std::size_t groups() const { return groups_.size(); }
  std::pair<std::size_t, std::size_t> MembersOf(std::size_t group) const;
  // Nobody of the group has anything to hand over: each that could is not behind, or is marked and
  // would end sooner than any helper.
  bool IsQuiet(std::size_t group, double trigger);
  // One that helps is more than `trigger` further than this worker, or has nothing left. The worker
  // has units left.
  bool IsBehind(std::size_t worker, double trigger);
  // When the group's first helper would be done with one unit more; kNever without helpers.
  Time Soonest(std::size_t worker) { return GroupOf(worker).soonest; }
  // It was behind once: from now on IsQuiet asks for its end alone.
  void Mark(std::size_t worker);

  // --- as it is now
  // The worker that would be done first with one unit more, at a tie the first by id. Nobody where
  // that is the worker itself: all others would be done after it then. Nobody, perhaps, where it
  // would be done after all that had something to give away.
  std::optional<std::size_t> Earliest(std::size_t worker);
  // Nobody who ends by `end` can give anything away any more. False where that is not known.
  bool NobodyHelps(Time end);

 private:
  // The end moves by `times_now` times as quickly as the time: not at all, with it (all is
  // computed), or twice as quickly (a run that takes longer than usual).
  struct Standing {
    Duration end{};  // without the part that moves
    Duration helps_after{};
    Time finished;  // where `done`
    WorkerId worker;
    std::uint8_t times_now = 0;
    bool can_help = false;
    bool idle = false;
    bool movable = false;
    bool marked = false;
    bool fenced = false;
    bool done = false;
    bool late = false;
  };
  struct Delivered {
    Duration took{};
    std::uint32_t parts = 0;
  };
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
    std::size_t first = 0;  // who that is
    Time latest;            // of those that can give something away
    Time latest_marked;     // of them, those that are marked
    bool all_marked = true;
    double least = 1;         // progress of the others, where nobody is idle
    bool heaped = false;      // since the first unit of the look was given
    std::vector<Entry> heap;  // who cannot help any more is taken out when on top
  };

  bool RenewAll(const RoundView& view);
  void Renew(const RoundView& view, std::size_t i, Duration unit_time);
  void Count(std::size_t i, int by);
  Time EndOf(const Standing& standing) const {
    return Time(standing.end + standing.times_now * now_.time_since_epoch());
  }
  void SetEnd(std::size_t i, Time end);
  Group& GroupOf(std::size_t worker);
  std::vector<Entry>& HeapOf(std::size_t worker);
  std::size_t GroupSize() const {
    return group_size_ == 0 ? std::max<std::size_t>(standings_.size(), 1) : group_size_;
  }

  const std::uint32_t group_size_;
  Time now_;
  // Which list of changes is known, and how much of it; nullopt: all has to be renewed.
  std::optional<std::pair<RoundId, std::uint64_t>> list_;
  std::size_t read_ = 0;
  bool knows_all_ = false;  // unit times; else all depend on all
  bool costs_ = false;      // some units have known costs

  // Parallel to the view's workers.
  std::vector<Standing> standings_;
  std::vector<Time> until_;  // it has to be renewed afterwards
  std::vector<WorkerEstimate> estimates_;
  std::vector<ProgressLine> progress_;
  std::vector<Delivered> delivered_;
  std::vector<std::size_t> changed_;  // by this look's hand-overs
  std::vector<bool> marked_;          // by slot: Standing::marked, where places change

  std::size_t movable_ = 0;
  Delivered all_delivered_;
  std::optional<Duration> median_;
  std::vector<Duration> unit_times_;  // for the median
  std::vector<Group> groups_;
  Finish finish_;
};

}  // namespace lockstep::policies
