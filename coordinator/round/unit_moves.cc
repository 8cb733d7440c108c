#include "coordinator/round/unit_moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/sometimes.h"
#include "coordinator/round/part_times.h"

namespace lockstep::coordinator {
namespace {

// The time that policies and messages under way have before a round goes on without members that
// are away.
constexpr Duration kAwayPatience = std::chrono::milliseconds(250);

// More units than so many are spread by a heap, which costs a pass.
constexpr std::size_t kFewUnits = 8;

}  // namespace

// Carries out what is possible of a work rule's proposal. A move from or to a member that is
// absent, fenced or already asked is dropped silently. The rule's view may be older than other
// decisions of this step. It will see, and propose again.
void UnitMoves::CarryOut(const policies::WorkVerdict& verdict) {
  for (const WorkerId worker : verdict.fence) {
    if (worker.value < job_->members.slots()) FenceWorker(worker, verdict.reason);
  }
  // Each giver gets one revoke, at the place of its first move.
  std::vector<WorkerId> asked;
  for (const policies::MoveUnits& first : verdict.moves) {
    if (first.from.value >= job_->members.slots()) continue;
    if (std::find(asked.begin(), asked.end(), first.from) != asked.end()) continue;
    asked.push_back(first.from);
    const WorkerShare* from = work_->Share(first.from);
    const policies::WorkerView* view = work_->WorkerViewOf(first.from);
    if (from == nullptr || view->fenced || from->revoke) continue;
    // Begun units are never asked for: the answer would be fewer.
    const std::uint32_t movable = view->units_given - view->units_taken;
    PendingRevoke revoke{{}, 0, 0, job_->now()};
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
    LOCKSTEP_CHECK(units <= movable, "I2: {} units of worker {} are moved, {} are not begun", units,
                   first.from, movable);
    revoke.from = view->units_given - units;
    revoke.order = job_->NextOrder();
    job_->Send(job_->members.at(first.from),
               msg::Revoke{work_->round(), revoke.from, revoke.order});
    work_->BeginRevoke(first.from, std::move(revoke));
  }
}

// Everybody is asked for all that is not begun, and nobody gets it: the round does without.
void UnitMoves::RevokeNotBegun() {
  // An exact round needs all of them: without, it could not close.
  if (work_->exact()) return;
  for (const policies::WorkerView& view : work_->workers()) {
    if (view.fenced || view.revoking || view.units_given == view.units_taken) continue;
    LOCKSTEP_CHECK(view.units_taken < view.units_given, "I2: worker {} has begun {} units of {}",
                   view.member.worker, view.units_taken, view.units_given);
    const std::uint32_t order = job_->NextOrder();
    job_->Send(job_->members.at(view.member.worker),
               msg::Revoke{work_->round(), view.units_taken, order});
    work_->BeginRevoke(view.member.worker, {{}, view.units_taken, order, job_->now()});
  }
}

// Fewer units than were asked for may come back; the takers named first get theirs first.
void UnitMoves::Reassign(WorkerId from, const RoundWork::GivenBack& back) {
  auto next = back.units.begin();
  for (const PendingRevoke::Taker& taker : back.takers) {
    Member* member = job_->members.Find(taker.member);
    if (next == back.units.end()) return;
    if (member == nullptr || !CanTake(*member)) continue;
    std::vector<UnassignedUnit> moved;
    for (; next != back.units.end() && moved.size() < taker.units; ++next) {
      moved.push_back({*next, from});
    }
    GiveTo(*member, moved);
  }
  // Takers that are gone, or full by now, leave theirs to whoever can take them.
  for (; next != back.units.end(); ++next) {
    if (back.left_out) {
      work_->AddLeftOut({*next, from});
    } else {
      work_->AddUnassigned({*next, from});
    }
  }
}

// Another worker is left that may compute the round.
bool UnitMoves::OthersRemain(WorkerId worker) const {
  const auto others = job_->members.all();
  return std::any_of(others.begin(), others.end(), [&](const Member& member) {
    const policies::WorkerView* view = work_->WorkerViewOf(member.id.worker);
    return member.id.worker != worker && member.live() && !member.away() &&
           (view == nullptr || !view->fenced);
  });
}

// Never the last one that could compute the round: with it fenced nobody would be left to do so.
void UnitMoves::FenceWorker(WorkerId worker, const std::string& why) {
  const policies::WorkerView* view = work_->WorkerViewOf(worker);
  if (view == nullptr || view->fenced) return;
  if (!OthersRemain(worker)) {
    Sometimes<"moves: the last worker is not fenced">();
    work_->ExtendRevoke(worker, job_->now());  // whether it is lost is another question
    return;
  }
  job_->Log(LogLevel::kInfo, "round {}: worker {} is left out and its units go to others: {}",
            work_->round(), worker, why);
  NoteUnfinishedRun(*view, work_->round(), &job_->members);
  const std::uint32_t order = job_->NextOrder();
  job_->Send(job_->members.at(worker), msg::FenceRound{work_->round(), order});
  Sometimes<"moves: a worker is fenced">();
  work_->Fence(worker, order);
  fenced_at_ = job_->now();
  LOCKSTEP_CHECK(work_->Share(worker)->queue.empty(), "I2: worker {} is fenced and has units",
                 worker);
}

// I6: a worker may stop for ever with units that others could do. It gets a bounded time to give
// them back; then its contribution to this round is void, and they are free.
void UnitMoves::FenceUnanswered() {
  if (work_->pending_revokes() == 0) return;
  const Duration patience = job_->bounds.Answer();
  const auto oldest = work_->OldestRevoke();
  if (!oldest || *oldest + patience > job_->now()) return;
  for (const WorkerId worker : work_->RevokesBefore(job_->now() - patience + Duration(1))) {
    Sometimes<"moves: units are not given back in time">();
    FenceWorker(worker, "it did not give back units in time");
  }
}

// Where work moves nobody waits for a member that is away. The policy takes its units where another
// worker has a part left for them and only this one is late. But all others may have begun their
// second parts, and many may be away at once. So the round goes on without these units, once the
// others have finished and that did not help. Other workers compute them, or a later round does.
Time UnitMoves::AwayDeadline() const {
  const bool may = job_->members.CountAway() > 0 && job_->policy().work->PlacesUnits() &&
                   !work_->relaxed() && work_->pending_revokes() == 0;
  if (!may) return kNever;
  Time since{};
  bool any = false;
  bool others = true;
  for (const policies::WorkerView& view : work_->workers()) {
    if (view.fenced || view.units_given == 0) continue;
    if (view.finished_at) {
      since = std::max(since, *view.finished_at);
      continue;
    }
    // Computed units are delivered while it is away, too.
    const Member& member = job_->members.at(view.member.worker);
    if (!member.away() || view.units_done == view.units_given) return kNever;
    since = std::max(since, view.progressed_at);
    any = true;
    others = others && OthersRemain(view.member.worker);
  }
  if (!any || !others) return kNever;
  return since + kAwayPatience;
}

void UnitMoves::FenceAway() {
  if (AwayDeadline() > job_->now()) return;
  std::vector<WorkerId> away;
  for (const policies::WorkerView& view : work_->workers()) {
    if (!view.fenced && view.units_given > 0 && !view.finished_at) {
      away.push_back(view.member.worker);
    }
  }
  for (const WorkerId worker : away) {
    FenceWorker(worker, "it is away (" + job_->members.at(worker).absence->reason + ")");
  }
}

// It must have the parameters of the previous round, or be about to. A draining member is not drawn
// into a round in which it has no work yet.
bool UnitMoves::CanTake(const Member& member) const {
  if (!member.live() || member.next.value + 1 < work_->round().value) return false;
  const WorkerShare* share = work_->Share(member.id.worker);
  if (member.away() || (share == nullptr && member.draining)) return false;
  if (share == nullptr) return work_->HasPartsFor(member.id);
  return share->HasRoom() && !work_->WorkerViewOf(member.id.worker)->fenced;
}

// It takes no part in the round yet, and does so within a bounded time, or is out. With a broken
// edge one that is behind may copy the parameters only once the edge is mended.
bool UnitMoves::IsComing(const Member& member) const {
  if (member.behind()) return job_->members.BrokenEdges(member.id.worker) == 0;
  return member.live() || member.state == MemberState::kForming ||
         member.state == MemberState::kCatchingUp;
}

// It was out of the round with units of it, and has none now. Back or not: nothing says that it
// would finish this time. Others may be as slow, and were the round to wait for each that is back,
// they would take turns for ever (I6).
bool UnitMoves::GoneUnfinished(WorkerId worker) const {
  if (std::ranges::find(gone_unfinished_, worker) == gone_unfinished_.end()) return false;
  const WorkerShare* share = work_->Share(worker);
  return share == nullptr || share->queue.empty();
}

// The worker's account of its queue and ours change by the same order, so positions mean the same.
void UnitMoves::GiveTo(Member& taker, const std::vector<UnassignedUnit>& units) {
  LOCKSTEP_CHECK(taker.live(), "worker {} is given units and is out", taker.id.worker);
  msg::Assign assign{work_->round(), {}, job_->NextOrder()};
  for (const UnassignedUnit& given : units) {
    assign.units.push_back({given.unit, work_->RangeOf(given.unit)});
  }
  work_->Give(taker, units, assign.order, job_->members, job_->now());
  taker.last_progress = job_->now();
  job_->Send(taker, std::move(assign));
}

// Assigns the units that nobody has. Level members come first; then those that will be soon. A
// worker that was out with units of the round gets some only where nobody has any. If the policy
// can do without, the units go back to the sampler. When nobody can take any, the round waits for
// an answer that may change that. After that it unfences members, closes without the units, or
// begins again: the first of these that ends the wait (I6).
bool UnitMoves::Place(const policies::RoundView& view) {
  const bool needed = work_->NothingCounts();  // there is nothing else to close over
  bool without = !needed && view.with_units > 0 && job_->policy().closing->CanDoWithout(view);
  if (!without && SpreadFew()) return true;
  std::vector<Member*> level;
  std::vector<Member*> able;
  std::vector<Member*> fenced;  // for want of others
  bool later = false;           // somebody may take units in a while
  bool ever = false;            // or perhaps never: it loads its data, or does not reach the others
  for (Member& member : job_->members.all()) {
    if (!member.connected()) continue;
    if (view.with_units > 0 && GoneUnfinished(member.id.worker)) continue;
    if (CanTake(member)) {
      (member.next >= work_->round() ? level : able).push_back(&member);
    } else if (member.live() && !member.away() && work_->CanBeginAnew(member.id.worker)) {
      fenced.push_back(&member);
    } else {
      const WorkerShare* share = member.live() ? work_->Share(member.id.worker) : nullptr;
      // An absence may last for a day, and who is to leave gets nothing before it has.
      const bool stays_without =
          view.with_units > 0 && share == nullptr && (member.away() || member.draining);
      if (stays_without) continue;
      const bool outside = share == nullptr && work_->HasPartsFor(member.id);
      ever = ever || outside;
      later = later || (outside && IsComing(member)) ||
              (share != nullptr && share->parts.size() < kMaxParts && !share->refused &&
               (!work_->WorkerViewOf(member.id.worker)->fenced ||
                (!share->fence_answered &&
                 (view.with_units == 0 || job_->now() < FenceAnswersUntil()))));
    }
  }
  if (view.with_units == 0 && fenced.empty()) later = later || ever;
  // Members that lag by a round would hold it up, but are better than none.
  if (level.empty()) level = std::move(able);
  if (level.empty() && later && !without) return true;
  if (level.empty() && !without && view.with_units == 0) {
    if (!fenced.empty()) Sometimes<"moves: fenced workers begin anew">();
    for (const Member* member : fenced) work_->Unfence(member->id.worker, job_->now());
    level = std::move(fenced);
  }
  // Workers that cannot take more units have sealed, or begun to seal, both of their parts. The
  // round goes on without the units, and a later one computes them.
  if (level.empty() && view.with_units > 0 && !needed) {
    Sometimes<"moves: nobody can take more units">();
    without = true;
  }
  if (without) {
    work_->LeaveUnassignedOut();
  } else if (!level.empty()) {
    Spread(level);
  } else {
    return job_->members.CountLive() == 0;
  }
  return true;
}

// Each unit goes to who would be done with it first.
void UnitMoves::Spread(const std::vector<Member*>& takers) {
  LOCKSTEP_CHECK(!takers.empty(), "units are spread among nobody");
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
    // Its remaining work counts too: the quickest worker is not the one with the fewest units left.
    const policies::WorkerView* view = work_->WorkerViewOf(takers[i]->id.worker);
    const std::uint32_t left = view == nullptr ? 0 : view->units_given - view->units_done;
    all.push_back({unit_time * (left + 1), unit_time, i});
  }
  std::priority_queue<Load> loads(std::less<Load>(), std::move(all));
  std::map<std::size_t, std::vector<UnassignedUnit>> given;  // by taker
  for (const UnassignedUnit& unit : work_->TakeUnassigned()) {
    Load load = loads.top();
    loads.pop();
    given[load.taker].push_back(unit);
    load.done_in += load.unit_time;
    loads.push(load);
  }
  for (const auto& [taker, units] : given) GiveTo(*takers[taker], units);
}

// Of a live member with a share the view says whether it can take units and is level (CanTake).
void UnitMoves::RenewTakers() {
  const std::vector<policies::WorkerView>& workers = work_->workers();
  const policies::ViewChanges& changes = work_->changes();
  const auto renew = [&](std::size_t place) {
    const policies::WorkerView& worker = workers[place];
    Duration& done_in = takers_.done_in[place];
    takers_.unknown -= done_in == Duration{} ? 1 : 0;
    done_in = kNone;
    if (!worker.takes_units || !worker.level) return;
    const Duration unit_time = job_->members.at(worker.member.worker).unit_times.mean;
    done_in = unit_time * (worker.units_given - worker.units_done + 1);
    takers_.unknown += done_in == Duration{} ? 1 : 0;
  };
  if (takers_.list != changes.list || takers_.done_in.size() != workers.size()) {
    takers_ = {changes.list, changes.places.size(), {}, 0};
    takers_.done_in.assign(workers.size(), kNone);
    for (std::size_t place = 0; place < workers.size(); ++place) renew(place);
  }
  for (; takers_.read < changes.places.size(); ++takers_.read) {
    renew(changes.places[takers_.read]);
  }
}

bool UnitMoves::SpreadFew() {
  const std::vector<policies::WorkerView>& workers = work_->workers();
  if (work_->unassigned().size() > kFewUnits || !gone_unfinished_.empty() ||
      !job_->leaving().empty() || !job_->behind().empty() ||
      job_->members.CountLive() != workers.size()) {
    return false;
  }
  RenewTakers();
  if (takers_.unknown > 0) return false;
  std::vector<Duration>& done_in = takers_.done_in;
  if (std::ranges::all_of(done_in, [](Duration time) { return time == kNone; })) return false;
  std::map<std::size_t, std::vector<UnassignedUnit>> given;  // by place
  for (const UnassignedUnit& unit : work_->TakeUnassigned()) {
    const auto first = std::ranges::min_element(done_in);
    const auto place = static_cast<std::size_t>(first - done_in.begin());
    given[place].push_back(unit);
    // It holds until the units are given below, which renews the view.
    *first += job_->members.at(workers[place].member.worker).unit_times.mean;
  }
  for (const auto& [place, units] : given) {
    GiveTo(job_->members.at(workers[place].member.worker), units);
  }
  return true;
}

// An exact round cannot do without who is stuck, so its rule is to know of all who could take over.
// It may have fewer units than there are members.
std::uint32_t UnitMoves::Idle(std::uint32_t with_units) const {
  std::uint32_t idle = 0;
  for (const Member& member : job_->members.all()) {
    const bool free = member.next >= work_->round() && work_->Share(member.id.worker) == nullptr;
    const bool gone = with_units > 1 && GoneUnfinished(member.id.worker);
    idle += free && !gone && CanTake(member) ? 1 : 0;
  }
  return idle;
}

void UnitMoves::NoteGone(WorkerId worker) {
  if (std::ranges::find(gone_unfinished_, worker) == gone_unfinished_.end()) {
    gone_unfinished_.push_back(worker);
  }
}

void UnitMoves::CheckInvariants() const {
  const policies::ViewChanges& changes = work_->changes();
  if (takers_.list != changes.list) return;
  std::vector<bool> changed(takers_.done_in.size());
  for (std::size_t i = takers_.read; i < changes.places.size(); ++i) {
    changed[changes.places[i]] = true;
  }
  for (std::size_t place = 0; place < changed.size(); ++place) {
    if (changed[place]) continue;
    const policies::WorkerView& worker = work_->workers()[place];
    const Member& member = job_->members.at(worker.member.worker);
    const bool takes = CanTake(member) && member.next >= work_->round();
    const Duration done_in =
        takes ? member.unit_times.mean * (worker.units_given - worker.units_done + 1) : kNone;
    LOCKSTEP_CHECK(takers_.done_in[place] == done_in,
                   "worker {} is kept as done in {} ns with one unit more, not {}",
                   worker.member.worker, takers_.done_in[place].count(), done_in.count());
  }
}

// I6: what others owe has a time here.
Time UnitMoves::NextDeadline() const {
  const auto oldest = work_->OldestRevoke();
  const bool answers_count = !work_->unassigned().empty() && job_->now() < FenceAnswersUntil();
  return std::min({AwayDeadline(), oldest ? *oldest + job_->bounds.Answer() : kNever,
                   answers_count ? FenceAnswersUntil() : kNever});
}

}  // namespace lockstep::coordinator
