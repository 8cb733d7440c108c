// Work that moves within a round. Each unit is in one pair of hands at a time: it is given again
// only when its holder has given it back, was fenced, or is out.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>

#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

// What a work rule proposes is done as far as it can be.
void Pipeline::CarryOut(const policies::WorkVerdict& verdict) {
  for (const WorkerId worker : verdict.fence) {
    if (worker.value < job_->members.slots()) FenceWorker(worker, verdict.reason);
  }
  // One revoke for each giver, at the place of its first move.
  std::vector<WorkerId> asked;
  for (const policies::MoveUnits& first : verdict.moves) {
    if (first.from.value >= job_->members.slots()) continue;
    if (std::find(asked.begin(), asked.end(), first.from) != asked.end()) continue;
    asked.push_back(first.from);
    const WorkerShare* from = open_->Share(first.from);
    const policies::WorkerView* view = open_->WorkerViewOf(first.from);
    if (from == nullptr || view->fenced || from->revoke) continue;
    const std::uint32_t movable = view->units_given - view->units_taken;
    PendingRevoke revoke{{}, 0, 0, job_->now};
    std::uint32_t units = 0;
    for (const policies::MoveUnits& move : verdict.moves) {
      if (move.from != first.from || move.to == move.from) continue;
      if (move.to.value >= job_->members.slots() || !CanTake(job_->members.at(move.to))) continue;
      const std::uint32_t taken = std::min(move.units, movable - units);
      if (taken == 0) continue;
      revoke.takers.push_back({job_->members.at(move.to).id, taken});
      units += taken;
    }
    if (units == 0) continue;
    revoke.from = view->units_given - units;
    revoke.order = ++job_->orders;
    job_->Send(job_->members.at(first.from), Revoke{open_->round, revoke.from, revoke.order});
    open_->BeginRevoke(first.from, std::move(revoke));
  }
}

// Everybody is asked for all that is not begun, and nobody gets it: the round does without.
void Pipeline::Cut() {
  if (open_->exact) return;
  for (const policies::WorkerView& view : open_->workers()) {
    if (view.fenced || view.revoking || view.units_given == view.units_taken) continue;
    job_->Send(job_->members.at(view.member.worker),
               Revoke{open_->round, view.units_taken, ++job_->orders});
    open_->BeginRevoke(view.member.worker, {{}, view.units_taken, job_->orders, job_->now});
  }
}

// Fewer units than were asked for may come back; the takers named first get theirs first.
void Pipeline::HandOn(WorkerId from, const OpenRound::GivenBack& back) {
  auto next = back.units.begin();
  for (const PendingRevoke::Taker& taker : back.takers) {
    Member* member = job_->members.Find(taker.member);
    if (next == back.units.end()) return;
    if (member == nullptr || !CanTake(*member)) continue;
    std::vector<Orphan> moved;
    for (; next != back.units.end() && moved.size() < taker.units; ++next) {
      moved.push_back({*next, from});
    }
    GiveTo(*member, moved);
  }
  std::vector<Orphan>& rest = back.left_out ? open_->left_out : open_->orphans;
  for (; next != back.units.end(); ++next) rest.push_back({*next, from});
}

// Somebody else is left who may compute the round.
bool Pipeline::OthersRemain(WorkerId worker) const {
  const auto others = job_->members.all();
  return std::any_of(others.begin(), others.end(), [&](const Member& member) {
    const policies::WorkerView* view = open_->WorkerViewOf(member.id.worker);
    return member.id.worker != worker && member.live() && (view == nullptr || !view->fenced);
  });
}

void Pipeline::FenceWorker(WorkerId worker, const std::string& why) {
  const policies::WorkerView* view = open_->WorkerViewOf(worker);
  if (view == nullptr || view->fenced) return;
  if (!OthersRemain(worker)) {
    open_->ExtendRevoke(worker, job_->now);  // whether it is lost is another question
    return;
  }
  job_->Log(LogLevel::kInfo, "round {}: worker {} is fenced: {}", open_->round, worker, why);
  const std::uint32_t order = ++job_->orders;
  job_->Send(job_->members.at(worker), FenceRound{open_->round, order});
  open_->Fence(worker, order);
}

void Pipeline::FenceUnanswered() {
  if (open_->pending_revokes == 0) return;
  const Duration patience = job_->bounds.Answer();
  const auto oldest = open_->OldestRevoke();
  if (!oldest || *oldest + patience > job_->now) return;
  for (const WorkerId worker : open_->RevokesBefore(job_->now - patience + Duration(1))) {
    FenceWorker(worker, "it did not give back units in time");
  }
}

bool Pipeline::CanTake(const Member& member) const {
  if (!member.live() || member.next.value + 1 < open_->round.value) return false;
  const WorkerShare* share = open_->Share(member.id.worker);
  if (share == nullptr && member.draining) return false;
  return share == nullptr || (share->HasRoom() && !open_->WorkerViewOf(member.id.worker)->fenced);
}

void Pipeline::GiveTo(Member& taker, const std::vector<Orphan>& units) {
  Assign assign{open_->round, {}, ++job_->orders};
  std::vector<UnitIndex> indices;
  for (const Orphan& orphan : units) {
    const SampleRange range = open_->RangeOf(orphan.unit);
    indices.push_back(orphan.unit);
    assign.units.push_back({orphan.unit, range});
    if (orphan.from != taker.id.worker) moved_.push_back({orphan.from, taker.id.worker, range});
  }
  open_->Give(taker, indices, job_->orders, job_->members, job_->now);
  taker.last_progress = job_->now;
  job_->Send(taker, std::move(assign));
}

void Pipeline::PlaceOrphans() {
  open_->TakeBackLeftOut();
  if (open_->orphans.empty()) return;
  const policies::RoundView view = open_->View(job_->now, job_->start.workers);
  bool without = view.with_units > 0 && job_->policy.closing->CanDoWithout(view);
  std::vector<Member*> level;
  std::vector<Member*> able;
  std::vector<Member*> fenced;  // for want of others
  bool later = false;           // somebody may take units in a while
  for (Member& member : job_->members.all()) {
    if (!member.connected()) continue;
    if (CanTake(member)) {
      (member.next >= open_->round ? level : able).push_back(&member);
    } else if (member.live() && open_->CanBeginAnew(member.id.worker)) {
      fenced.push_back(&member);
    } else {
      const WorkerShare* share = member.live() ? open_->Share(member.id.worker) : nullptr;
      later = later || share == nullptr ||
              (share->parts.size() < kMaxParts && !share->refused &&
               (!open_->WorkerViewOf(member.id.worker)->fenced || !share->fence_answered));
    }
  }
  if (level.empty()) level = std::move(able);
  if (level.empty() && later && !without) return;
  if (level.empty() && !without && view.with_units == 0) {
    for (const Member* member : fenced) open_->Unfence(member->id.worker, job_->now);
    level = std::move(fenced);
  }
  // Whom nothing can be given any more has sealed, or begun to seal, both of its parts: the round
  // does without, and another one follows with what is left.
  if (level.empty() && view.with_units > 0) without = true;
  if (without) {
    open_->left_out.insert(open_->left_out.end(), open_->orphans.begin(), open_->orphans.end());
    open_->orphans.clear();
  } else if (!level.empty()) {
    SpreadOrphans(level);
  } else if (job_->members.CountLive() > 0) {
    job_->Log(LogLevel::kInfo, "round {}: nobody has a part left, it is computed again",
              open_->round);
    PlanAnew();
    PlaceOrphans();
  }
}

// Each unit goes to who would be done with it first.
void Pipeline::SpreadOrphans(const std::vector<Member*>& takers) {
  struct Load {
    Duration done_in;
    Duration unit_time;
    std::size_t taker;
    bool operator<(const Load& other) const {
      return std::tie(done_in, taker) > std::tie(other.done_in, other.taker);
    }
  };
  std::optional<Duration> usual;  // costs a pass
  std::vector<Load> all;
  all.reserve(takers.size());
  for (std::size_t i = 0; i < takers.size(); ++i) {
    Duration unit_time = takers[i]->unit_times.mean;
    if (unit_time == Duration{}) {
      if (!usual) usual = std::max(job_->members.MedianUnitTime(), Duration(1));
      unit_time = *usual;
    }
    const policies::WorkerView* view = open_->WorkerViewOf(takers[i]->id.worker);
    const std::uint32_t left = view == nullptr ? 0 : view->units_given - view->units_done;
    all.push_back({unit_time * (left + 1), unit_time, i});
  }
  std::priority_queue<Load> loads(std::less<Load>(), std::move(all));
  std::map<std::size_t, std::vector<Orphan>> given;  // by taker
  for (const Orphan& orphan : open_->orphans) {
    Load load = loads.top();
    loads.pop();
    given[load.taker].push_back(orphan);
    load.done_in += load.unit_time;
    loads.push(load);
  }
  open_->orphans.clear();
  for (const auto& [taker, units] : given) GiveTo(*takers[taker], units);
}

}  // namespace lockstep::coordinator
