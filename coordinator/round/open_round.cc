#include "coordinator/round/open_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "coordinator/round/not_finite.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {
namespace {

// For policies, and for what is on its way, before a round goes on without who is away.
constexpr Duration kAwayPatience = std::chrono::milliseconds(250);

// For people.
std::string Names(const std::vector<WorkerId>& workers) {
  std::string names;
  for (const WorkerId worker : workers)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", worker);
  return names;
}

}  // namespace

// Whoever has units is given the time to begin with them from now on.
OpenRound::OpenRound(Job* job, Planner* planner, PlannedRound planned)
    : job_(job),
      planner_(planner),
      work_(std::move(planned.plan), planned.exact, job->members, job->now()),
      stopped_before_(job->stopped()),
      receipts_(job) {
  for (const Assignment& assignment : work_.plan().assignments) {
    job_->members.at(assignment.member.worker).last_progress = job_->now();
  }
}

OpenRound::OpenRound(Job* job, Planner* planner, RoundWork work,
                     std::vector<AttemptRecord> attempts, std::uint32_t owners_version)
    : job_(job),
      planner_(planner),
      work_(std::move(work)),
      stopped_before_(job->stopped()),
      attempts_(std::move(attempts)),
      receipts_(job) {
  LOCKSTEP_CHECK(!attempts_.empty(), "round {} is open again and was never tried", round());
  for (const Member& member : job_->members.all()) NoteApplied(member);
  PlanAnew(owners_version + 1);
}

// The round begins once more, with another plan of it that says nothing of who computes what: all
// its units are to be assigned. What was computed for the plan before is void, whenever it is heard
// of.
void OpenRound::PlanAnew(std::uint32_t owners_version) {
  work_.PlanAnew(planner_->ChooseOwners(round(), owners_version), job_->members.Exchanging(),
                 job_->members, job_->now());
  LOCKSTEP_CHECK(work_.undelivered() == 0,
                 "round {}: {} parts of a plan that is void are waited for", round(),
                 work_.undelivered());
  gone_unfinished_.clear();
  // Whatever a rule waited for is gone with the plan; it is asked about the new one.
  look_again_ = kNever;
  owners_stale_ = false;
  receipts_.Reset();
  job_->Send(work_.plan().members,
             msg::Start{StateSource::kPeers, work_.plan(), job_->closed().totals.samples_counted});
}

// The first attempt's reason is the verdict that closed the round; when the round was open before,
// its attempts have been counted already, and this is the last of them.
std::vector<AttemptRecord> OpenRound::TakeAttempts(const std::string& verdict) {
  if (attempts_.empty()) attempts_.push_back({attempt(), verdict});
  return std::move(attempts_);
}

// --- what workers say

// Liveness asks when a worker has finished a unit last: a report that says nothing new is no
// evidence of progress, so that a worker that hangs and still talks is found out.
Status OpenRound::On(Member& from, const msg::Progress& message) {
  if (!work_.Concerns(from.id, message.round, message.plan)) return {};
  const policies::WorkerView* view = work_.WorkerViewOf(from.id.worker);
  const std::uint32_t done = view == nullptr ? 0 : view->units_done;
  if (Status status = work_.OnProgress(from.id, message, job_->now()); !status) return status;
  if (view != nullptr && view->units_done > done) from.last_progress = job_->now();
  return {};
}

// Here a worker's history grows: how long its units take, how long its messages are on their way.
Status OpenRound::On(Member& from, const msg::Sealed& message) {
  if (!work_.Concerns(from.id, message.round, message.plan)) return {};
  from.clock.Guess(job_->now() + job_->stopped(), message.sealed_ns);
  from.response.Add(job_->now() + job_->stopped() - from.clock.ToOurs(message.sealed_ns));
  msg::Sealed sealed = message;
  BoundTimes(from, &sealed);
  if (Status status = work_.OnSealed(from, sealed, job_->now()); !status) return status;
  if (work_.metric_left_out() && !std::exchange(job_->said_metric_left_out.Write(), true)) {
    job_->Log(LogLevel::kWarning,
              "round {}: {} of worker {} is one metric more than the {} of all workers together: "
              "those that come last are left out",
              round(), *work_.metric_left_out(), from.id.worker, kMaxMetrics);
  }
  if (!std::isfinite(sealed.loss_sum) && work_.Part(from.id.worker, sealed.part) != nullptr) {
    NoteNotFinite(from, sealed);
  }
  from.last_progress = job_->now();
  NoteRuns(sealed, &from.run_cost);
  NoteUnits(sealed, &from);
  work_.SyncHistory(from);
  return {};
}

// A worker's word counts as far as it can be true: its units were computed one after the other,
// since it was given the first and until now, by our clock. How long its units take says how long
// it is waited for (Liveness, flexrr): with times of its own choice it could stop and never be
// found out (I6). Where they lie is written into the record, whose readers take no time that no job
// has. What is out of place only because we know its clock no better is moved, not cut.
void OpenRound::BoundTimes(const Member& from, msg::Sealed* sealed) const {
  const WorkerShare* share = work_.Share(from.id.worker);
  const policies::WorkerView* view = work_.WorkerViewOf(from.id.worker);
  const Time since = share == nullptr ? work_.started() : share->since;
  // Work that goes on from a round before was given out when this process had stopped for less.
  const bool carried = view != nullptr && view->base < round();
  const Time given = since + (carried ? Duration{} : stopped_before_);
  const Time now = job_->now() + job_->stopped();
  LOCKSTEP_CHECK(given <= now, "round {}: worker {} is given its units in the future", round(),
                 from.id.worker);
  const std::int64_t earliest = from.clock.ToTheirs(given);
  const std::int64_t latest = from.clock.ToTheirs(now);
  std::int64_t left = latest - earliest;
  std::int64_t begin = latest;
  std::int64_t end = earliest;
  for (UnitTiming& unit : sealed->units) {
    const std::int64_t took = std::min(unit.end_ns - unit.start_ns, left);
    unit.end_ns = unit.start_ns + took;
    left -= took;
    begin = std::min(begin, unit.start_ns);
    end = std::max(end, unit.end_ns);
  }
  std::int64_t shift = std::min<std::int64_t>(latest - end, 0);
  if (begin + shift < earliest) shift = earliest - begin;
  for (UnitTiming& unit : sealed->units) {
    unit.start_ns = std::clamp(unit.start_ns + shift, earliest, latest);
    unit.end_ns = std::clamp(unit.end_ns + shift, earliest, latest);
  }
  sealed->sent.since_ns = std::clamp(sealed->sent.since_ns + shift, earliest, latest);
}

// By the worker's own clock at both ends: how long a message was on its way is no unit's time. Nor
// is what its run has cost: the units of short runs would seem slower than those of long ones.
void OpenRound::NoteUnits(const msg::Sealed& sealed, Member* from) {
  Duration took{};
  double units = 0;
  for (const UnitTiming& timing : sealed.units) {
    if (timing.end_ns <= timing.start_ns) continue;
    took += Duration(timing.end_ns) - Duration(timing.start_ns);
    ++units;
  }
  if (units == 0) return;
  const std::optional<double> cost = from->RunCostInUnits();
  units += std::max(cost.value_or(0), 0.0) * static_cast<double>(sealed.runs.size());
  // Times of before hold the cost of their runs: the longer the shorter the run was.
  if (cost && !from->unit_times.beside_cost) {
    from->unit_times = {};
    from->unit_times.beside_cost = true;
  }
  from->unit_times.Add(FromSeconds(Seconds(took) / units));
}

// Out of runs of different lengths it is learnt what a run costs beside its units.
void OpenRound::NoteRuns(const msg::Sealed& sealed, RunCost* cost) {
  std::vector<RunCost::Run> runs;
  auto unit = sealed.units.begin();
  for (const std::uint64_t units : sealed.runs) {
    RunCost::Run run{units, {}};
    for (std::uint64_t i = 0; i < units && unit != sealed.units.end(); ++i, ++unit) {
      run.took += Duration(unit->end_ns) - Duration(unit->start_ns);
    }
    runs.push_back(run);
  }
  cost->Add(runs);
}

// Were it forgotten, a worker that is always fenced or left out would keep the times of its better
// days, and get a share by them, for ever.
void OpenRound::NoteUnfinished(const policies::WorkerView& view) {
  Member& member = job_->members.at(view.member.worker);
  // Not level: it is still in a run of an earlier round.
  if (member.id != view.member || !view.level || policies::Computed(view)) return;
  if (member.away()) return;  // its absence is no unit's time
  member.unfinished_run = UnfinishedRun{round(), view.progressed_at, policies::InHand(view)};
}

// The worker has said so by its loss.
void OpenRound::NoteNotFinite(const Member& from, const msg::Sealed& message) {
  const std::string what = NotFiniteText(*job_, work_, from.id.worker, message.units);
  if (!MayLeaveOut(job_, what)) return;
  work_.Skip(from.id.worker, message.part);
  if (work_.SamplesWanted() == 0) {
    job_->Fail(what + ", and so is every other contribution to the round");
  }
}

// Receipts are of a round, not of a plan: their map version tells which owner map they are for.
Status OpenRound::On(const Member& from, const msg::Receipts& message) {
  if (message.round != round()) return {};
  return work_.OnReceipts(from.id, message, job_->now());
}

// To a fence the answer says that the worker holds nothing any more: only then may it be given
// units of this round again. To a revoke it names what comes back.
Status OpenRound::On(const Member& from, const msg::Revoked& message) {
  if (message.round != round()) return {};
  if (message.fenced) {
    work_.NoteFenceAnswer(from.id, message.order);
    return {};
  }
  auto back = work_.OnRevoked(from.id, message);
  if (!back) return back.error();
  HandOn(from.id.worker, *back);
  return {};
}

// Its units are others' from now on, sealed or not: what it has computed cannot be fetched from it
// any more. An owner that is out is replaced when the round is looked at next.
void OpenRound::OnOut(const MemberId& member) {
  const WorkerId worker = member.worker;
  const policies::WorkerView* view = work_.WorkerViewOf(worker);
  if (view != nullptr && !view->finished_at) {
    Member& slot = job_->members.at(worker);
    slot.blocked_by_loss += job_->now() - std::max(work_.started(), slot.last_progress);
    if (view->units_given > 0 &&
        std::ranges::find(gone_unfinished_, worker) == gone_unfinished_.end()) {
      gone_unfinished_.push_back(worker);
    }
  }
  work_.Remove(worker);
  const bool holds = std::ranges::any_of(work_.owners().holders, [&](const ShardHolders& shard) {
    return std::ranges::find(shard.members, member) != shard.members.end();
  });
  owners_stale_ = owners_stale_ || holds || work_.delivery().IsOwner(worker);
}

// --- work that moves: each unit is with one worker at a time, and is given again only when its
// holder has given it back, was fenced, or is out

// What a work rule proposes is done as far as it can be: a move from or to somebody who is not
// there, who is fenced or who is asked already is dropped without a word, since the rule judges a
// view that may be older than what was decided in the same step. It will see, and propose again.
void OpenRound::CarryOut(const policies::WorkVerdict& verdict) {
  for (const WorkerId worker : verdict.fence) {
    if (worker.value < job_->members.slots()) FenceWorker(worker, verdict.reason);
  }
  // One revoke for each giver, at the place of its first move.
  std::vector<WorkerId> asked;
  for (const policies::MoveUnits& first : verdict.moves) {
    if (first.from.value >= job_->members.slots()) continue;
    if (std::find(asked.begin(), asked.end(), first.from) != asked.end()) continue;
    asked.push_back(first.from);
    const WorkerShare* from = work_.Share(first.from);
    const policies::WorkerView* view = work_.WorkerViewOf(first.from);
    if (from == nullptr || view->fenced || from->revoke) continue;
    // What is begun is never asked for: the answer would be less, and the takers named in vain.
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
    job_->Send(job_->members.at(first.from), msg::Revoke{round(), revoke.from, revoke.order});
    work_.BeginRevoke(first.from, std::move(revoke));
  }
}

// Everybody is asked for all that is not begun, and nobody gets it: the round does without.
void OpenRound::RevokeNotBegun() {
  // An exact round needs all of them: without, it could not close.
  if (work_.exact()) return;
  for (const policies::WorkerView& view : work_.workers()) {
    if (view.fenced || view.revoking || view.units_given == view.units_taken) continue;
    LOCKSTEP_CHECK(view.units_taken < view.units_given, "I2: worker {} has begun {} units of {}",
                   view.member.worker, view.units_taken, view.units_given);
    const std::uint32_t order = job_->NextOrder();
    job_->Send(job_->members.at(view.member.worker), msg::Revoke{round(), view.units_taken, order});
    work_.BeginRevoke(view.member.worker, {{}, view.units_taken, order, job_->now()});
  }
}

// Fewer units than were asked for may come back; the takers named first get theirs first.
void OpenRound::HandOn(WorkerId from, const RoundWork::GivenBack& back) {
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
      work_.AddLeftOut({*next, from});
    } else {
      work_.AddUnassigned({*next, from});
    }
  }
}

// Somebody else is left who may compute the round.
bool OpenRound::OthersRemain(WorkerId worker) const {
  const auto others = job_->members.all();
  return std::any_of(others.begin(), others.end(), [&](const Member& member) {
    const policies::WorkerView* view = work_.WorkerViewOf(member.id.worker);
    return member.id.worker != worker && member.live() && !member.away() &&
           (view == nullptr || !view->fenced);
  });
}

// Never the last one that could compute the round: with it fenced nobody would be left to do so.
void OpenRound::FenceWorker(WorkerId worker, const std::string& why) {
  const policies::WorkerView* view = work_.WorkerViewOf(worker);
  if (view == nullptr || view->fenced) return;
  if (!OthersRemain(worker)) {
    work_.ExtendRevoke(worker, job_->now());  // whether it is lost is another question
    return;
  }
  job_->Log(LogLevel::kInfo, "round {}: worker {} is left out and its units go to others: {}",
            round(), worker, why);
  NoteUnfinished(*view);
  const std::uint32_t order = job_->NextOrder();
  job_->Send(job_->members.at(worker), msg::FenceRound{round(), order});
  work_.Fence(worker, order);
  fenced_at_ = job_->now;
  LOCKSTEP_CHECK(work_.Share(worker)->queue.empty(), "I2: worker {} is fenced and has units",
                 worker);
}

// I6: a worker may stop for ever with units that others could do. It gets a bounded time to give
// them back; then its contribution to this round is void, and they are free.
void OpenRound::FenceUnanswered() {
  if (work_.pending_revokes() == 0) return;
  const Duration patience = job_->bounds.Answer();
  const auto oldest = work_.OldestRevoke();
  if (!oldest || *oldest + patience > job_->now()) return;
  for (const WorkerId worker : work_.RevokesBefore(job_->now() - patience + Duration(1))) {
    FenceWorker(worker, "it did not give back units in time");
  }
}

// Where work moves nobody waits for who is away. The policy takes its units from it where somebody
// has a part left for them and it is the only one that is late; but all may have begun their second
// parts, and many may be away at once. So once those that are there have finished, and nothing has
// come of it, the round goes on without what it was given: others compute it, or a later round has
// it.
Time OpenRound::LetsGoOfAwayFrom() const {
  const bool may = job_->members.CountAway() > 0 && job_->policy().work->PlacesUnits() &&
                   !work_.relaxed() && work_.pending_revokes() == 0;
  if (!may) return kNever;
  Time since{};
  bool any = false;
  bool others = true;
  for (const policies::WorkerView& view : work_.workers()) {
    if (view.fenced || view.units_given == 0) continue;
    if (view.finished_at) {
      since = std::max(since, *view.finished_at);
      continue;
    }
    // What is computed is delivered while it is away, too.
    const Member& member = job_->members.at(view.member.worker);
    if (!member.away() || view.units_done == view.units_given) return kNever;
    since = std::max(since, view.progressed_at);
    any = true;
    others = others && OthersRemain(view.member.worker);
  }
  if (!any || !others) return kNever;
  return since + kAwayPatience;
}

void OpenRound::LetGoOfAway() {
  if (LetsGoOfAwayFrom() > job_->now()) return;
  std::vector<WorkerId> away;
  for (const policies::WorkerView& view : work_.workers()) {
    if (!view.fenced && view.units_given > 0 && !view.finished_at) {
      away.push_back(view.member.worker);
    }
  }
  for (const WorkerId worker : away) {
    FenceWorker(worker, "it is away (" + job_->members.at(worker).absence->reason + ")");
  }
}

// It has to have the parameters of the round before, or be about to; nobody that is to leave is
// drawn into a round in which it has nothing to do yet.
bool OpenRound::CanTake(const Member& member) const {
  if (!member.live() || member.next.value + 1 < round().value) return false;
  const WorkerShare* share = work_.Share(member.id.worker);
  if (member.away() || (share == nullptr && member.draining)) return false;
  return share == nullptr || (share->HasRoom() && !work_.WorkerViewOf(member.id.worker)->fenced);
}

// It was out of the round with units of it, and has none now. Back or not: nothing says that it
// would finish this time. Others may be as slow, and were the round to wait for each that is back,
// they would take turns for ever (I6).
bool OpenRound::GoneUnfinished(WorkerId worker) const {
  if (std::ranges::find(gone_unfinished_, worker) == gone_unfinished_.end()) return false;
  const WorkerShare* share = work_.Share(worker);
  return share == nullptr || share->queue.empty();
}

// The worker's account of its queue and ours change by the same order, so positions mean the same.
void OpenRound::GiveTo(Member& taker, const std::vector<UnassignedUnit>& units) {
  LOCKSTEP_CHECK(taker.live(), "worker {} is given units and is out", taker.id.worker);
  msg::Assign assign{round(), {}, job_->NextOrder()};
  for (const UnassignedUnit& given : units) {
    assign.units.push_back({given.unit, work_.RangeOf(given.unit)});
  }
  work_.Give(taker, units, assign.order, job_->members, job_->now());
  taker.last_progress = job_->now();
  job_->Send(taker, std::move(assign));
}

// Who gets what nobody has. Those that are level come first; then those that will be soon. Whoever
// was out with units of the round gets some only where nobody has any. If the policy can do
// without, the units go back to the sampler. When nobody can take any, the round waits for an
// answer that may change that; after that it takes back who was fenced, closes without, or begins
// anew: whichever is the first that keeps the round from waiting for ever (I6).
void OpenRound::PlaceUnassigned() {
  work_.TakeBackLeftOut();
  if (work_.unassigned().empty()) return;
  const policies::RoundView view = View();
  bool without = view.with_units > 0 && job_->policy().closing->CanDoWithout(view);
  std::vector<Member*> level;
  std::vector<Member*> able;
  std::vector<Member*> fenced;  // for want of others
  bool later = false;           // somebody may take units in a while
  for (Member& member : job_->members.all()) {
    if (!member.connected()) continue;
    if (view.with_units > 0 && GoneUnfinished(member.id.worker)) continue;
    if (CanTake(member)) {
      (member.next >= round() ? level : able).push_back(&member);
    } else if (member.live() && !member.away() && work_.CanBeginAnew(member.id.worker)) {
      fenced.push_back(&member);
    } else {
      const WorkerShare* share = member.live() ? work_.Share(member.id.worker) : nullptr;
      // An absence may last for a day, and who is to leave gets nothing before it has.
      const bool stays_without =
          view.with_units > 0 && share == nullptr && (member.away() || member.draining);
      if (stays_without) continue;
      later = later || share == nullptr ||
              (share->parts.size() < kMaxParts && !share->refused &&
               (!work_.WorkerViewOf(member.id.worker)->fenced ||
                (!share->fence_answered && job_->now < FenceAnswersUntil())));
    }
  }
  // Those that lag by a round would hold it up; better than nobody.
  if (level.empty()) level = std::move(able);
  if (level.empty() && later && !without) return;
  if (level.empty() && !without && view.with_units == 0) {
    for (const Member* member : fenced) work_.Unfence(member->id.worker, job_->now());
    level = std::move(fenced);
  }
  // Whom nothing can be given any more has sealed, or begun to seal, both of its parts: the round
  // does without, and another one follows with what is left.
  if (level.empty() && view.with_units > 0) without = true;
  if (without) {
    work_.LeaveUnassignedOut();
  } else if (!level.empty()) {
    SpreadUnassigned(level);
  } else if (job_->members.CountLive() > 0) {
    job_->Log(LogLevel::kInfo, "round {}: nobody has a part left, it is computed again", round());
    PlanAnew(work_.owners().version + 1);
    PlaceUnassigned();
  }
}

// Each unit goes to who would be done with it first.
void OpenRound::SpreadUnassigned(const std::vector<Member*>& takers) {
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
    // What it still has to do counts, too: the quickest one is not the one with the least left.
    const policies::WorkerView* view = work_.WorkerViewOf(takers[i]->id.worker);
    const std::uint32_t left = view == nullptr ? 0 : view->units_given - view->units_done;
    all.push_back({unit_time * (left + 1), unit_time, i});
  }
  std::priority_queue<Load> loads(std::less<Load>(), std::move(all));
  std::map<std::size_t, std::vector<UnassignedUnit>> given;  // by taker
  for (const UnassignedUnit& unit : work_.TakeUnassigned()) {
    Load load = loads.top();
    loads.pop();
    given[load.taker].push_back(unit);
    load.done_in += load.unit_time;
    loads.push(load);
  }
  for (const auto& [taker, units] : given) GiveTo(*takers[taker], units);
}

// --- closing

// An exact round cannot do without who is stuck, so its rule is to know of all who could take over.
// It may have fewer units than there are members.
policies::RoundView OpenRound::View() const {
  policies::RoundView view = work_.View(job_->now(), job_->start.workers);
  if (!view.exact) return view;
  for (const Member& member : job_->members.all()) {
    const bool idle = member.next >= round() && work_.Share(member.id.worker) == nullptr;
    const bool gone = view.with_units > 1 && GoneUnfinished(member.id.worker);
    view.idle += idle && !gone && CanTake(member) ? 1 : 0;
  }
  return view;
}

// In this order: what changes the round by itself comes before the policy sees it, so that its
// verdict is about the round as it will stay.
std::optional<policies::ClosingVerdict> OpenRound::Advance(Time may_close_from) {
  if (owners_stale_) ReplaceOwners({}, "an owner is out");
  FenceUnanswered();
  LetGoOfAway();
  PlaceUnassigned();
  return AskPolicy(may_close_from);
}

// The work rule may move and fence before the closing rule looks. A policy that wants to look again
// at once would keep the coordinator busy, so a millisecond is the least.
std::optional<policies::ClosingVerdict> OpenRound::AskPolicy(Time may_close_from) {
  const policies::RoundView view = View();
  const policies::WorkVerdict work = job_->policy().work->Judge(view);
  CarryOut(work);
  policies::ClosingVerdict closing =
      job_->policy().closing->Judge(work.moves.empty() && work.fence.empty() ? view : View());
  look_again_ = std::min(work.look_again, closing.look_again);
  if (look_again_ <= job_->now()) look_again_ = job_->now() + std::chrono::milliseconds(1);
  if (closing.cut) RevokeNotBegun();
  if (closing.close && may_close_from > job_->now()) {
    look_again_ = std::min(look_again_, may_close_from);
    return std::nullopt;
  }
  if (!closing.close || !CanCommit(&closing)) {
    CheckReceipts();
    return std::nullopt;
  }
  LOCKSTEP_CHECK(job_->members.CountPresent() >= job_->min_workers(),
                 "I5: {} members commit round {}", job_->members.CountPresent(), round());
  for (const policies::WorkerView& worker : view.workers) NoteUnfinished(worker);
  // Rules learn from rounds that were committed, never from what was only seen.
  job_->policy().work->OnCommitted(View());
  if (job_->policy().runs) job_->policy().runs->OnCommitted(View());
  job_->policy().closing->OnCommitted(View());
  if (work_.owners().direct()) planner_->NoteResponses(work_);
  return closing;
}

// Whether the verdict can be carried out; sorts its parts into the order of summation (I3).
bool OpenRound::CanCommit(policies::ClosingVerdict* verdict) {
  std::vector<policies::PartChoice>& parts = verdict->parts;
  if (!work_.unassigned().empty() || parts.empty()) return false;
  std::uint64_t samples = 0;
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::tie(a.worker, a.part) < std::tie(b.worker, b.part);
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SealedPart* part = parts[i].worker.value < job_->members.slots()
                                 ? work_.Part(parts[i].worker, parts[i].part)
                                 : nullptr;
    // A rule may err; what cannot be summed as it says is not summed in another way.
    const bool twice =
        i > 0 && parts[i].worker == parts[i - 1].worker && parts[i].part == parts[i - 1].part;
    if (part == nullptr || !part->delivered_at || twice) return false;
    if (!std::isfinite(parts[i].weight) || parts[i].weight <= 0) {
      if (!said_weight_refused_) {
        job_->Log(LogLevel::kWarning,
                  "round {}: policy {} gives worker {} the weight {}, which is no positive number: "
                  "the round is not closed like that",
                  round(), job_->policy().name, parts[i].worker, parts[i].weight);
      }
      said_weight_refused_ = true;
      return false;
    }
    // Whoever contributes holds the round before whole, and this commit closes it. In a relaxed
    // round that does not follow from having computed something.
    if (work_.relaxed() && job_->members.at(parts[i].worker).next < round()) return false;
    samples += part->samples;
  }
  LOCKSTEP_CHECK(samples <= work_.SamplesWanted() || work_.relaxed(),
                 "I2: round {} would count {} samples of {}", round(), samples,
                 work_.SamplesWanted());
  if (work_.exact() && samples < work_.SamplesWanted()) return false;
  return job_->HasQuorum();
}

// I6: what others owe has a time here; what nobody owes is looked at with the next event.
Time OpenRound::NextDeadline() const {
  Time next = std::min({look_again_, receipts_.Next(work_), LetsGoOfAwayFrom()});
  if (const auto oldest = work_.OldestRevoke()) {
    next = std::min(next, *oldest + job_->bounds.Answer());
  }
  if (!work_.unassigned().empty() && job_->now < FenceAnswersUntil()) {
    next = std::min(next, FenceAnswersUntil());
  }
  return next;
}

// In the policy's own words where it is the policy that waits.
std::string OpenRound::Waiting() const {
  if (!work_.unassigned().empty()) {
    return fmt::format("{} units of round {} wait for somebody who can take them",
                       work_.unassigned().size(), round());
  }
  policies::RoundView view = View();
  view.explain = true;
  return job_->policy().closing->Judge(view).reason + job_->AwayText();
}

// --- owners that do not send receipts lose their slices, and edges that are broken are avoided

// A silent owner's slices go to others, which fetch what they lack.
void OpenRound::CheckReceipts() {
  const ReceiptWatch::Decision decision = receipts_.Look(work_);
  for (const WorkerId worker : decision.ping) job_->Ping(worker);
  if (decision.blamed.empty()) return;
  ReplaceOwners(decision.blamed, fmt::format("no receipts from worker {}", Names(decision.blamed)));
}

// The owners that are left keep what can be kept: who has receipts already need not fetch anew.
// Only when none of them is usable others are taken.
void OpenRound::ReplaceOwners(const std::vector<WorkerId>& silent, const std::string& why,
                              const std::vector<WorkerId>& avoided) {
  for (const WorkerId worker : silent) job_->members.at(worker).owner_trial.Fail(round());
  const auto usable = [&](const MemberId& id) {
    return std::ranges::find(silent, id.worker) == silent.end() &&
           std::ranges::find(avoided, id.worker) == avoided.end();
  };
  std::vector<MemberId> candidates;
  for (const OwnerShare& share : work_.owners().owners) {
    const Member* member = job_->members.Find(share.owner);
    if (member != nullptr && member->live() && usable(share.owner) &&
        job_->members.BrokenEdges(share.owner.worker) == 0) {
      candidates.push_back(share.owner);
    }
  }
  if (candidates.empty()) {
    for (const MemberId& id : planner_->EligibleFor(round(), false)) {
      if (usable(id)) candidates.push_back(id);
    }
  }
  owners_stale_ = candidates.empty();  // until somebody comes
  if (owners_stale_) return;
  // All receipts are void with it, and are sent again under the new version: an owner that stays
  // has its pieces and only says so.
  OwnerMap map = planner_->ChooseOwners(round(), work_.owners().version + 1, candidates);
  // Where somebody is gone sums are passed on by those who are left; where somebody does not reach
  // another one, or is silent, that one may be on the way.
  if (silent.empty() && avoided.empty()) map.algorithm = work_.owners().algorithm;
  LOCKSTEP_CHECK(
      !map.holders.empty() || std::ranges::all_of(map.owners, usable, &OwnerShare::owner),
      "round {}: a silent owner owns again", round());
  job_->Log(LogLevel::kInfo, "round {}: new owners, {}", round(), why);
  work_.SetOwners(map, job_->members, job_->now());
  receipts_.Reset();
  job_->Send(job_->members.Exchanging(), msg::NewOwners{round(), std::move(map)});
}

// Before the commit an owner costs nothing but a map, so any broken edge to one is reason enough,
// where somebody has none; and any at all, where sums are to be passed on. Nobody with one owns
// again: the same map would be made at each event, for as long as the edge is broken (I6).
void OpenRound::AvoidBrokenEdges(std::span<const std::uint32_t> broken, const std::string& why) {
  const auto reaches_all = [&](WorkerId worker) { return broken[worker.value] == 0; };
  const bool whole =
      work_.owners().direct()
          ? std::ranges::all_of(work_.owners().owners, reaches_all,
                                [](const OwnerShare& share) { return share.owner.worker; })
          : std::ranges::all_of(broken, [](std::uint32_t count) { return count == 0; });
  if (whole) return;
  std::vector<WorkerId> avoided;
  for (std::uint32_t slot = 0; slot < broken.size(); ++slot) {
    if (broken[slot] > 0) avoided.emplace_back(slot);
  }
  ReplaceOwners({}, why, avoided);
}

// Who is out takes its share along; only owners may stay for a while, until somebody can take their
// place.
void OpenRound::CheckInvariants() const {
  work_.CheckInvariants();
  receipts_.CheckInvariants();
  LOCKSTEP_CHECK(!work_.owners().owners.empty(), "round {}: nobody owns anything", round());
  for (const WorkerShare& share : work_.shares()) {
    const Member* member = job_->members.Find(share.member);
    LOCKSTEP_CHECK(member != nullptr && member->live(),
                   "round {}: worker {} has a share and is out", round(), share.member.worker);
  }
  for (const OwnerShare& share : work_.owners().owners) {
    const Member* member = job_->members.Find(share.owner);
    LOCKSTEP_CHECK(owners_stale_ || (member != nullptr && member->live()),
                   "round {}: worker {} owns and is out", round(), share.owner.worker);
  }
}

}  // namespace lockstep::coordinator
