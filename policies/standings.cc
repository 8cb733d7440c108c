#include "policies/standings.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::policies {
namespace {

// A time so far away may be more than can be counted.
Time After(Time from, Duration time) { return time < kNever - from ? from + time : kNever; }

}  // namespace

// What a look has changed itself holds no longer, and what is over by its time is renewed with what
// the view says has changed.
bool Standings::Look(const RoundView& view) {
  now_ = view.now;
  const bool keeps =
      list_ && view.changes != nullptr && *list_ == std::pair(view.round, view.changes->list) &&
      read_ <= view.changes->places.size() && standings_.size() == view.workers.size();
  if (!keeps || !knows_all_) {
    list_.reset();
    if (!RenewAll(view)) return false;
    if (view.changes != nullptr) list_.emplace(view.round, view.changes->list);
  } else {
    const auto renew = [&](std::size_t i) {
      const Duration unit_time = UnitTimeOf(view.workers[i], {});
      knows_all_ = knows_all_ && unit_time > Duration{};
      Renew(view, i, unit_time);
    };
    for (const std::size_t i : changed_) renew(i);
    for (; read_ < view.changes->places.size(); ++read_) renew(view.changes->places[read_]);
    for (std::size_t i = 0; i < standings_.size(); ++i) {
      if (until_[i] < now_) renew(i);
    }
    if (!knows_all_ && !RenewAll(view)) {
      list_.reset();
      return false;
    }
  }
  if (view.changes != nullptr) read_ = view.changes->places.size();
  changed_.clear();
  groups_.resize((standings_.size() + GroupSize() - 1) / GroupSize());
  for (Group& group : groups_) group.looked_at = group.heaped = false;
  return !standings_.empty();
}

bool Standings::RenewAll(const RoundView& view) {
  const std::size_t workers = view.workers.size();
  standings_.assign(workers, {});
  until_.assign(workers, kNever);
  estimates_.assign(workers, {});
  progress_.assign(workers, {});
  delivered_.assign(workers, {});
  movable_ = 0;
  all_delivered_ = {};
  median_.reset();
  knows_all_ = true;
  costs_ = false;
  Duration usual{};
  for (std::size_t i = 0; i < workers; ++i) {
    knows_all_ = knows_all_ && UnitTimeOf(view.workers[i], {}) > Duration{};
    Duration unit_time = UnitTimeOf(view.workers[i], usual);
    if (unit_time == Duration{}) {
      usual = unit_time = MedianUnitTime(view);
      if (usual == Duration{}) return false;
    }
    const WorkerId worker = view.workers[i].member.worker;
    standings_[i].worker = worker;
    standings_[i].marked = worker.value < marked_.size() && marked_[worker.value];
    Renew(view, i, unit_time);
  }
  return true;
}

// All but begun units can move. Of a worker without news for long, so can units that its report
// does not show as begun: it may still be in a unit of an earlier round. It answers what is true.
void Standings::Renew(const RoundView& view, std::size_t i, Duration unit_time) {
  Count(i, -1);
  const WorkerView& worker = view.workers[i];
  WorkerEstimate estimate;
  estimate.unit_time = unit_time;
  const Duration run = RunTime(worker, 0, unit_time);
  const bool computed = Computed(worker);
  if (worker.runs.units > 0) estimate.run_share = run / worker.runs.units;
  if (Begun(worker) >= worker.units_given) estimate.start_cost = run - estimate.run_share;
  estimate.can_help = worker.takes_units && !worker.fenced && !worker.revoking;
  estimate.idle = estimate.can_help && computed;

  Standing& standing = standings_[i];
  Time until = kNever;
  standing.end = {};
  standing.times_now = 1;
  std::uint32_t begun = worker.units_given;
  if (!computed) {
    const std::uint32_t in_hand = InHand(worker);
    const std::uint32_t done = worker.units_done;
    const Duration usual = RunTime(worker, done, done + in_hand, unit_time);
    const Duration queue = QueueTime(worker, worker.units_given - done - in_hand, unit_time);
    const Time due = After(worker.progressed_at, usual);
    if (now_ <= due) {
      standing.times_now = 0;
      standing.end = worker.progressed_at.time_since_epoch() + usual + queue;
      until = due;
    } else {
      standing.times_now = 2;
      standing.end = queue - usual - worker.progressed_at.time_since_epoch();
    }
    const Time overdue =
        After(worker.progressed_at, RunTime(worker, done, done + in_hand + 1, unit_time));
    if (now_ <= overdue) until = std::min(until, overdue);
    begun = now_ > overdue ? std::max(worker.units_taken, worker.units_done) : Begun(worker);
  }
  until_[i] = until;
  estimate.movable = worker.fenced || worker.revoking ? 0 : worker.units_given - begun;
  standing.helps_after = estimate.start_cost + estimate.Step();
  standing.can_help = estimate.can_help;
  standing.idle = estimate.idle;
  standing.movable = estimate.movable > 0;
  if (estimates_[i].unit_time != unit_time || standing.fenced != worker.fenced) median_.reset();
  standing.fenced = worker.fenced;
  const bool has_work = !worker.fenced && worker.units_given > 0;
  standing.done = has_work && worker.finished_at;
  standing.late = has_work && !worker.finished_at;
  standing.finished = worker.finished_at.value_or(Time{});
  estimates_[i] = estimate;
  progress_[i] = ProgressLine(worker, unit_time);
  costs_ = costs_ || !worker.cost_before.empty();
  Delivered& delivered = delivered_[i];
  delivered = {};
  for (const PartView& part : worker.parts) {
    if (!part.delivered_at) continue;
    delivered.took += *part.delivered_at - part.ready_at;
    ++delivered.parts;
  }
  Count(i, 1);
}

void Standings::Count(std::size_t i, int by) {
  movable_ += standings_[i].movable ? static_cast<std::size_t>(by) : 0;
  all_delivered_.took += delivered_[i].took * by;
  all_delivered_.parts += delivered_[i].parts * static_cast<std::uint32_t>(by);
}

const std::vector<WorkerEstimate>& Standings::All() {
  for (std::size_t i = 0; i < standings_.size(); ++i) estimates_[i].end = EndOf(standings_[i]);
  return estimates_;
}

std::optional<Duration> Standings::MeanDelivery() const {
  if (all_delivered_.parts == 0) return std::nullopt;
  return all_delivered_.took / all_delivered_.parts;
}

Duration Standings::MedianOfUnitTimes(const RoundView& view) {
  if (!knows_all_) return MedianUnitTime(view);
  if (median_) return *median_;
  unit_times_.clear();
  for (std::size_t i = 0; i < standings_.size(); ++i) {
    if (!standings_[i].fenced) unit_times_.push_back(estimates_[i].unit_time);
  }
  median_ = Duration{};
  if (unit_times_.empty()) return *median_;
  const auto middle =
      unit_times_.begin() + static_cast<std::ptrdiff_t>((unit_times_.size() - 1) / 2);
  std::nth_element(unit_times_.begin(), middle, unit_times_.end());
  median_ = *middle;
  return *median_;
}

const Standings::Finish& Standings::LookAtFinish(Time started) {
  finish_.done = finish_.free = 0;
  finish_.fenced = 0;
  finish_.delivered = started;
  finish_.late.clear();
  for (std::size_t i = 0; i < standings_.size(); ++i) {
    const Standing& standing = standings_[i];
    if (standing.late) finish_.late.push_back(i);
    finish_.fenced += standing.fenced ? 1 : 0;
    if (!standing.done) continue;
    ++finish_.done;
    finish_.free += standing.can_help ? 1 : 0;
    finish_.delivered = std::max(finish_.delivered, standing.finished);
  }
  return finish_;
}

void Standings::SetEnd(std::size_t i, Time end) {
  standings_[i].end = end.time_since_epoch();
  standings_[i].times_now = 0;
  changed_.push_back(i);
}

void Standings::Promise(std::size_t helper, std::uint32_t units, double cost) {
  WorkerEstimate& estimate = estimates_[helper];
  const Duration more = estimate.start_cost + estimate.Steps(units, cost);
  SetEnd(helper, end(helper) + more);
  estimate.promised += more;
  estimate.start_cost = {};
  estimate.idle = standings_[helper].idle = false;
  standings_[helper].helps_after = estimate.Step();
}

void Standings::Give(std::size_t helpee, std::size_t helper, double cost) {
  std::vector<Entry>& heap = HeapOf(helper);
  LOCKSTEP_CHECK(!heap.empty() && heap.front().worker == helper, "helper {} is not the earliest",
                 helper);
  WorkerEstimate& quick = estimates_[helper];
  SetEnd(helper, end(helper) + quick.start_cost + quick.Steps(1, cost));
  quick.start_cost = {};
  quick.idle = standings_[helper].idle = false;
  standings_[helper].helps_after = quick.Step();
  SetEnd(helpee, end(helpee) - estimates_[helpee].Steps(1, cost));
  std::pop_heap(heap.begin(), heap.end());
  heap.back().end = end(helper) + standings_[helper].helps_after;
  std::push_heap(heap.begin(), heap.end());
}

void Standings::EndHelp(std::size_t worker) {
  estimates_[worker].can_help = standings_[worker].can_help = false;
  changed_.push_back(worker);
}

std::pair<std::size_t, std::size_t> Standings::MembersOf(std::size_t group) const {
  const std::size_t first = group * GroupSize();
  return {first, std::min(first + GroupSize(), standings_.size())};
}

Standings::Group& Standings::GroupOf(std::size_t worker) {
  Group& group = groups_[worker / GroupSize()];
  if (group.looked_at) return group;
  group.looked_at = true;
  group.any_idle = false;
  group.furthest = -1;
  group.soonest = kNever;
  group.latest = group.latest_marked = Time{};
  group.all_marked = true;
  group.least = 1;
  const auto [first, last] = MembersOf(worker / GroupSize());
  for (std::size_t i = first; i < last; ++i) {
    const Standing& standing = standings_[i];
    const Time end = EndOf(standing);
    if (standing.can_help) {
      group.any_idle = group.any_idle || standing.idle;
      if (end + standing.helps_after < group.soonest) {
        group.soonest = end + standing.helps_after;
        group.first = i;
      }
    }
    if (standing.movable) {
      group.latest = std::max(group.latest, end);
      if (standing.marked) group.latest_marked = std::max(group.latest_marked, end);
      group.all_marked = group.all_marked && standing.marked;
    }
  }
  if (group.any_idle) return group;
  for (std::size_t i = first; i < last; ++i) {
    const Standing& standing = standings_[i];
    const bool gives = standing.movable && !standing.marked;
    if (!standing.can_help && !gives) continue;
    const double progress = progress_[i].At(now_);
    if (standing.can_help) group.furthest = std::max(group.furthest, progress);
    if (gives) group.least = std::min(group.least, progress);
  }
  return group;
}

void Standings::Mark(std::size_t worker) {
  standings_[worker].marked = true;
  const std::uint32_t slot = standings_[worker].worker.value;
  if (marked_.size() <= slot) marked_.resize(slot + 1);
  marked_[slot] = true;
}

bool Standings::IsQuiet(std::size_t group, double trigger) {
  const Group& looked_at = GroupOf(group * GroupSize());
  if (looked_at.soonest == kNever) return true;
  if (looked_at.latest_marked > looked_at.soonest) return false;
  if (looked_at.any_idle) return looked_at.all_marked;
  return looked_at.furthest - looked_at.least <= trigger;
}

bool Standings::IsBehind(std::size_t worker, double trigger) {
  const Group& group = GroupOf(worker);
  return group.any_idle || group.furthest - progress_[worker].At(now_) > trigger;
}

// Without known costs no unit goes to who would be done with it after all that could give one away.
std::vector<Standings::Entry>& Standings::HeapOf(std::size_t worker) {
  Group& group = GroupOf(worker);
  if (group.heaped) return group.heap;
  group.heaped = true;
  group.heap.clear();
  const auto [first, last] = MembersOf(worker / GroupSize());
  for (std::size_t i = first; i < last; ++i) {
    const Standing& standing = standings_[i];
    const Time end = EndOf(standing) + standing.helps_after;
    if (standing.can_help && (costs_ || end < group.latest)) group.heap.push_back({end, i});
  }
  std::make_heap(group.heap.begin(), group.heap.end());
  return group.heap;
}

std::optional<std::size_t> Standings::Earliest(std::size_t worker) {
  const Group& group = GroupOf(worker);
  if (!group.heaped) {
    if (group.soonest == kNever || group.first == worker) return std::nullopt;
    return group.first;
  }
  std::vector<Entry>& heap = HeapOf(worker);
  while (!heap.empty() && !standings_[heap.front().worker].can_help) {
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
  }
  if (heap.empty() || heap.front().worker == worker) return std::nullopt;
  if (!costs_ && heap.front().end >= group.latest) return std::nullopt;
  return heap.front().worker;
}

bool Standings::NobodyHelps(Time end) {
  if (costs_ || groups_.size() != 1) return false;
  const Group& group = GroupOf(0);
  if (!group.heaped) return group.soonest >= end;
  Earliest(0);  // takes out who cannot help any more
  return group.heap.empty() || group.heap.front().end >= end;
}

}  // namespace lockstep::policies
