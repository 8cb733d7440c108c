#include "policies/helpers.h"

#include <algorithm>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::policies {

void Helpers::Begin(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
                    std::uint32_t group_size) {
  view_ = &view;
  estimates_ = &estimates;
  group_size_ = group_size == 0 ? std::max<std::size_t>(estimates.size(), 1) : group_size;
  groups_.resize((estimates.size() + group_size_ - 1) / group_size_);
  for (Group& group : groups_) group.looked_at = group.heaped = false;
}

std::pair<std::size_t, std::size_t> Helpers::Members(std::size_t worker) const {
  const std::size_t first = worker / group_size_ * group_size_;
  return {first, std::min(first + group_size_, estimates_->size())};
}

double Helpers::Progress(std::size_t worker) const {
  return Progressed(view_->workers[worker], view_->now, (*estimates_)[worker].unit_time);
}

Helpers::Group& Helpers::GroupOf(std::size_t worker) {
  Group& group = groups_[worker / group_size_];
  if (group.looked_at) return group;
  group.looked_at = true;
  group.any_idle = false;
  group.furthest = -1;
  group.soonest = kNever;
  const auto [first, last] = Members(worker);
  for (std::size_t i = first; i < last; ++i) {
    const WorkerEstimate& estimate = (*estimates_)[i];
    if (!estimate.can_help) continue;
    group.any_idle = group.any_idle || estimate.idle;
    group.soonest = std::min(group.soonest, estimate.end + estimate.start_cost + estimate.Step());
  }
  if (group.any_idle) return group;
  for (std::size_t i = first; i < last; ++i) {
    if ((*estimates_)[i].can_help) group.furthest = std::max(group.furthest, Progress(i));
  }
  return group;
}

bool Helpers::IsBehind(std::size_t worker, double trigger) {
  const Group& group = GroupOf(worker);
  return group.any_idle || group.furthest - Progress(worker) > trigger;
}

std::vector<Helpers::Entry>& Helpers::HeapOf(std::size_t worker) {
  Group& group = GroupOf(worker);
  if (group.heaped) return group.heap;
  group.heaped = true;
  group.heap.clear();
  const auto [first, last] = Members(worker);
  for (std::size_t i = first; i < last; ++i) {
    const WorkerEstimate& estimate = (*estimates_)[i];
    if (estimate.can_help) {
      group.heap.push_back({estimate.end + estimate.start_cost + estimate.Step(), i});
    }
  }
  std::make_heap(group.heap.begin(), group.heap.end());
  return group.heap;
}

std::optional<std::size_t> Helpers::Earliest(std::size_t worker) {
  std::vector<Entry>& heap = HeapOf(worker);
  while (!heap.empty() && !(*estimates_)[heap.front().worker].can_help) {
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
  }
  if (heap.empty() || heap.front().worker == worker) return std::nullopt;
  return heap.front().worker;
}

void Helpers::GaveOne(std::size_t helper, double cost) {
  std::vector<Entry>& heap = HeapOf(helper);
  LOCKSTEP_CHECK(!heap.empty() && heap.front().worker == helper, "helper {} is not the earliest",
                 helper);
  std::pop_heap(heap.begin(), heap.end());
  heap.back().end += (*estimates_)[helper].Steps(1, cost);
  std::push_heap(heap.begin(), heap.end());
}

}  // namespace lockstep::policies
