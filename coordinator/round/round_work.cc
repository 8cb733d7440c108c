#include "coordinator/round/round_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/sometimes.h"
#include "coordinator/job/context.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {
namespace {

// So many times as many changes as workers are listed; then another list begins.
constexpr std::size_t kMostChanges = 16;

}  // namespace

// The units are those of the plan; who has which is the plan's assignment. Views are made with the
// shares, so that a policy may be asked about a round of which nothing has been heard.
RoundWork::RoundWork(Plan plan, bool exact, const std::vector<float>& costs, const Members& members,
                     Time now)
    : plan_(std::move(plan)),
      exact_(exact),
      started_(now),
      delivery_(members.slots()),
      knows_costs_(!costs.empty()),
      index_(members.slots(), -1) {
  std::size_t units = 0;
  for (const Assignment& assignment : plan_.assignments) {
    units += assignment.units.size();
    for (const Unit& unit : assignment.units) planned_samples_ += unit.range.size();
  }
  planned_units_ = static_cast<std::uint32_t>(units);
  units_.Reserve(units);
  shares_.reserve(plan_.assignments.size());
  views_.reserve(plan_.assignments.size());
  for (const Assignment& assignment : plan_.assignments) {
    WorkerShare& share = shares_[AddWorker(members.at(assignment.member.worker), now)];
    for (const Unit& unit : assignment.units) {
      units_.Add(unit.index, unit.range, costs.empty() ? 1.0 : costs[unit.index.value]);
      units_.Hold(unit.index, assignment.member.worker);
      share.queue.push_back(unit.index);
    }
    if (!share.queue.empty()) {
      share.given.push_back({0, static_cast<std::uint32_t>(share.queue.size())});
    }
    WorkerViewAt(share).runs = assignment.runs;
    RenewView(share, now);
    WorkerViewAt(share).units_planned = static_cast<std::uint32_t>(share.queue.size());
  }
  // A rule that counts on a number of workers counts on those that the plan gave units.
  planned_workers_ = with_units_;
  CountReceiptsAnew(members, now);
  NoteAllChange();
}

// Parts that were sealed in the previous round have to be delivered again: this round has other
// owners, or a new map version without receipts. So they are ready from now on, and their delivery
// counts from now.
void RoundWork::Carry(const RoundWork& before, const std::vector<WorkerId>& workers,
                      const Members& members, Time now) {
  LOCKSTEP_CHECK(plan_.relaxed && before.relaxed(), "I2: work of round {} goes on in round {}",
                 before.round(), round());
  for (const WorkerId worker : workers) {
    const WorkerShare& from = *before.Share(worker);
    const Member& member = members.at(worker);
    LOCKSTEP_CHECK(index_[worker.value] < 0 && member.id == from.member && !from.revoke,
                   "worker {} has work of both rounds", worker);
    const std::size_t at = AddWorker(member, now);
    WorkerShare& share = shares_[at];
    share = from;
    for (const UnitIndex unit : share.queue) {
      units_.Add(unit, before.RangeOf(unit), before.CostOf(unit));
      units_.Hold(unit, worker);
    }
    policies::WorkerView& view = views_[at];
    view = *before.WorkerViewOf(worker);
    view.units_given = 0;  // it is not in the running counts yet
    view.finished_at.reset();
    view.level = member.next >= plan_.round;
    for (SealedPart& part : share.parts) {
      if (part.is_void) continue;
      for (const UnitTiming& timing : part.units) units_.SealHeld(timing.unit.index);
      Merge(part.metrics, &metrics_seen_);
      part.delivered_at.reset();
      part.ready_at = now;  // to be delivered
      ++undelivered_;
    }
    UpdateDelivered(&share, now);
  }
  planned_workers_ = with_units_;
}

// A plan of the round that has been replaced has the same round number, so the attempt tells them
// apart. In a relaxed round work has its own base: the round in which it was given out. Messages
// about any round from the base up to this one are about the same work.
bool RoundWork::Concerns(const MemberId& member, RoundId said, Attempt said_plan) const {
  if (!plan_.relaxed) return said == plan_.round && said_plan == plan_.attempt;
  if (said > plan_.round || member.worker.value >= index_.size()) return false;
  const WorkerShare* share = Share(member.worker);
  if (share == nullptr || share->member != member) return false;
  const RoundId base = WorkerViewOf(member.worker)->base;
  return said > base || (said == base && said_plan == share->plan);
}

// Shares and views stay ascending by worker: the record, the order of summation and the policies
// rely on it. Adding behind all others, the usual case, costs no renumbering.
std::size_t RoundWork::AddWorker(const Member& member, Time now) {
  LOCKSTEP_CHECK(index_[member.id.worker.value] < 0, "round {}: worker {} has a share already",
                 round(), member.id.worker);
  const auto place = std::lower_bound(
      views_.begin(), views_.end(), member.id,
      [](const policies::WorkerView& view, const MemberId& id) { return view.member < id; });
  const std::ptrdiff_t at = place - views_.begin();
  policies::WorkerView view;
  view.member = member.id;
  view.progressed_at = now;
  CopyHistory(member, &view);
  view.base = plan_.round;
  view.level = member.next >= plan_.round;
  view.most_in_run = MostInRun(member.ready.run_bound, planned_units_, planned_samples_);
  view.runs = Within({}, view.most_in_run);
  views_.insert(place, std::move(view));
  WorkerShare share;
  share.member = member.id;
  share.since = now;
  share.plan = plan_.attempt;
  share.away = member.away();
  if (const auto out = out_parts_.find(member.id.worker);
      out != out_parts_.end() && out->second.first == member.id) {
    share.parts.resize(out->second.second);
    for (SealedPart& part : share.parts) part.is_void = true;
  }
  shares_.insert(shares_.begin() + at, std::move(share));
  if (static_cast<std::size_t>(at) + 1 == views_.size()) {
    index_[member.id.worker.value] = at;
  } else {
    Reindex();
  }
  NoteAllChange();
  return static_cast<std::size_t>(at);
}

// No other plan of the round has its attempt, so its lists have numbers of their own.
void RoundWork::NoteAllChange() {
  constexpr std::uint64_t kLists = std::uint64_t{1} << 32;
  changes_.list = kLists * plan_.attempt.value + (changes_.list + 1) % kLists;
  changes_.places.clear();
}

void RoundWork::NoteChange(WorkerId worker) {
  if (changes_.places.size() >= kMostChanges * views_.size()) return NoteAllChange();
  changes_.places.push_back(static_cast<std::uint32_t>(index_[worker.value]));
}

// After one has come before others, or gone.
void RoundWork::Reindex() {
  std::fill(index_.begin(), index_.end(), -1);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    index_[shares_[i].member.worker.value] = static_cast<std::int64_t>(i);
  }
}

// Another incarnation in the slot has nothing to do with this one's share.
WorkerShare* RoundWork::FindAny(const MemberId& member) {
  if (member.worker.value >= index_.size()) return nullptr;
  const std::int64_t at = index_[member.worker.value];
  if (at < 0) return nullptr;
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  return share.member == member ? &share : nullptr;
}

// A fenced member's messages about its work do not count: its units are with others (I2).
WorkerShare* RoundWork::Find(const MemberId& member) {
  WorkerShare* share = FindAny(member);
  return share == nullptr || WorkerViewAt(*share).fenced ? nullptr : share;
}

// All that is in their queues, sealed or not, in the order in which it was given.
std::vector<UnitIndex> RoundWork::UnitsOf(const std::vector<WorkerId>& workers) const {
  std::vector<UnitIndex> units;
  for (const WorkerId worker : workers) {
    const std::vector<UnitIndex>& queue = Share(worker)->queue;
    units.insert(units.end(), queue.begin(), queue.end());
  }
  return units;
}

std::vector<SampleRange> RoundWork::RangesOf(const std::vector<WorkerId>& workers) const {
  std::vector<SampleRange> ranges;
  for (const UnitIndex unit : UnitsOf(workers)) ranges.push_back(RangeOf(unit));
  return ranges;
}

// Of whoever holds the slot in this round.
const WorkerShare* RoundWork::Share(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &shares_[static_cast<std::size_t>(at)];
}

const policies::WorkerView* RoundWork::WorkerViewOf(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &views_[static_cast<std::size_t>(at)];
}

// A void part is none: it has a number and nothing else.
const SealedPart* RoundWork::Part(WorkerId worker, PartIndex part) const {
  const WorkerShare* share = Share(worker);
  if (share == nullptr || part.value >= share->parts.size()) return nullptr;
  const SealedPart& found = share->parts[part.value];
  return found.is_void ? nullptr : &found;
}

// Each counts once, over no more samples than there are.
Status RoundWork::CheckMetrics(const msg::Sealed& sealed) const {
  for (auto metric = sealed.metrics.begin(); metric != sealed.metrics.end(); ++metric) {
    const auto same = [&](const Metric& other) { return SameMetric(other, *metric); };
    if (std::any_of(sealed.metrics.begin(), metric, same)) {
      return Violation(fmt::format("logged {} twice for a part", metric->name));
    }
    if (metric->samples > sealed.samples) {
      return Violation(fmt::format("logged {} over {} samples of {}", metric->name, metric->samples,
                                   sealed.samples));
    }
  }
  return {};
}

// The metrics of a commit are bounded for any mix of names. No worker knows the names of the
// others, so one too many is left out and is not a fault.
std::vector<Metric> RoundWork::KeepMetrics(const std::vector<Metric>& metrics) {
  std::vector<Metric> kept;
  for (const Metric& metric : metrics) {
    const bool known = std::ranges::any_of(
        metrics_seen_, [&](const Metric& other) { return SameMetric(other, metric); });
    if (known || metrics_seen_.size() < kMaxMetrics) {
      kept.push_back(metric);
      Merge({metric}, &metrics_seen_);
    } else if (!metric_left_out_) {
      metric_left_out_ = metric.name;
    }
  }
  return kept;
}

// A part is accepted whole or not at all: the marks of a message that turns out wrong are removed.
// Its sender may be evicted, and its units given away as unsealed ones. Parts come in order; the
// worker numbers them, so a number that is not the next one is a violation.
Status RoundWork::OnSealed(const Member& from, const msg::Sealed& sealed, Time now) {
  WorkerShare* share = Find(from.id);
  if (share == nullptr) {  // fenced, or out of the round: it will learn
    NoteLatePart(from.id);
    return {};
  }
  if (sealed.part.value != share->parts.size() || sealed.part.value >= kMaxParts) {
    return Violation(fmt::format("sealed part {} of round {} after {} parts", sealed.part,
                                 plan_.round, share->parts.size()));
  }
  if (sealed.units.empty()) return Violation("sealed a part without units");
  const bool no_runs = std::ranges::any_of(
      sealed.runs, [&](std::uint64_t units) { return units == 0 || units > sealed.units.size(); });
  if (no_runs ||
      (!sealed.runs.empty() && std::accumulate(sealed.runs.begin(), sealed.runs.end(),
                                               std::uint64_t{0}) != sealed.units.size())) {
    return Violation("sealed runs that are not those of its units");
  }
  if (Status status = CheckMetrics(sealed); !status) return status;
  SealedPart part;
  for (const UnitTiming& timing : sealed.units) {
    if (!units_.Seal(timing.unit, from.id.worker)) {
      for (const UnitTiming& undo : part.units) units_.Unseal(undo.unit.index);
      return Violation(fmt::format("sealed unit {} of round {}, which it does not hold",
                                   timing.unit.index.value, plan_.round));
    }
    part.samples += timing.unit.range.size();
    part.units.push_back(timing);
  }
  if (part.samples != sealed.samples) {
    for (const UnitTiming& undo : part.units) units_.Unseal(undo.unit.index);
    return Violation(fmt::format("sealed {} samples in units of {}", sealed.samples, part.samples));
  }
  part.runs = sealed.runs;
  part.divisor = sealed.divisor.value_or(sealed.samples);
  part.loss_sum = sealed.loss_sum;
  part.sampled_squares = sealed.sampled_squares;
  part.metrics = KeepMetrics(sealed.metrics);
  part.sent = sealed.sent;
  part.reading = sealed.reading;
  part.clock = from.clock;
  part.ready_at = now;
  // A sealed part is the surest sign of progress; reports of it may be behind, or never come.
  share->sealed_units += static_cast<std::uint32_t>(part.units.size());
  policies::WorkerView& view = WorkerViewAt(*share);
  if (share->sealed_units > view.units_done) {
    NotePace(share->sealed_units, now, &view);
  }
  if (!sealed.runs.empty()) {
    Duration took{};
    double cost = 0;
    for (const UnitTiming& timing : part.units) {
      took += Duration(timing.end_ns) - Duration(timing.start_ns);
      cost += CostOf(timing.unit.index);
    }
    view.computed +=
        knows_costs_ ? FromSeconds(Seconds(took) * static_cast<double>(part.units.size()) / cost)
                     : took;
    view.units_timed += static_cast<std::uint32_t>(part.units.size());
    view.runs_timed += static_cast<std::uint32_t>(sealed.runs.size());
  }
  share->parts.push_back(std::move(part));
  ++undelivered_;
  last_sealed_ = now;
  LOCKSTEP_CHECK(share->sealed_units <= share->queue.size(),
                 "I2: worker {} has sealed {} units of {}", from.id.worker, share->sealed_units,
                 share->queue.size());
  UpdateDelivered(share, now);
  return {};
}

// The units stay in the worker's queue, as sealed ones: nobody computes them again, for the numbers
// would be no better. Only the part is void, and no commit can choose it.
void RoundWork::Skip(WorkerId worker, PartIndex index) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  SealedPart& part = share.parts[index.value];
  LOCKSTEP_CHECK(!part.is_void, "a part of worker {} is skipped twice", worker);
  for (const UnitTiming& timing : part.units) {
    skipped_.push_back({worker, timing.unit.range});
    skipped_samples_ += timing.unit.range.size();
  }
  if (!part.delivered_at) --undelivered_;
  part = SealedPart{};
  part.is_void = true;
  RenewView(share, started_);
}

// An exact round (the last of its epoch) closes only when it counts this many, so that the epoch is
// whole but for what was dropped (I2).
std::uint64_t RoundWork::SamplesWanted() const {
  return units_.samples() - units_.samples_left_out() - skipped_samples_;
}

// Progress is a hint for policies: it is clamped to what is known to be true, since a report may
// cross a revoke or an Assign on its way. Only sealed parts count.
Status RoundWork::OnProgress(const MemberId& from, const msg::Progress& progress, Time now) {
  const WorkerShare* share = Find(from);
  if (share == nullptr) return {};
  if (progress.units_done > progress.units_taken) return Violation("more units done than taken");
  const auto given = static_cast<std::uint32_t>(share->queue.size());
  policies::WorkerView& view = views_[static_cast<std::size_t>(index_[from.worker.value])];
  const std::uint32_t done =
      std::clamp(progress.units_done, view.units_done, std::max(given, view.units_done));
  if (done > view.units_done) NotePace(done, now, &view);
  view.units_done = done;
  view.units_taken =
      std::clamp(progress.units_taken, view.units_taken, std::max(given, view.units_taken));
  LOCKSTEP_CHECK(view.units_done <= view.units_taken, "worker {} has done {} units and begun {}",
                 from.worker, view.units_done, view.units_taken);
  NoteChange(from.worker);
  return {};
}

// Receipts for an older map are stale: the owner has other slices now, or none. A receipt of a part
// that is not known any more (its worker was fenced or is out) says nothing either.
Status RoundWork::OnReceipts(const MemberId& from, const msg::Receipts& receipts, Time now) {
  if (receipts.map_version > plan_.owners.version) return Violation("receipts for a map to come");
  if (receipts.map_version < plan_.owners.version || !delivery_.IsOwner(from.worker)) return {};
  for (const ReceivedPart& received : receipts.parts) {
    if (received.part.value >= kMaxParts || received.member.worker.value >= index_.size()) {
      return Violation("a receipt for a part that cannot be");
    }
    WorkerShare* share = Find(received.member);
    if (share == nullptr) continue;
    if (received.part.value == 0 && !share->parts.empty() && !share->parts[0].is_void &&
        delivery_.Lacks(from.worker, received.member.worker, received.part)) {
      receipts_late_[from.worker.value].push_back(now - share->parts[0].ready_at);
    }
    if (delivery_.AddReceipt(from.worker, received.member.worker, received.part)) {
      UpdateDelivered(share, now);
    }
  }
  return {};
}

void RoundWork::NoteMapped(const MemberId& a, const MemberId& b, Time now) {
  for (const auto& [owner, contributor] : {std::pair(a, b), std::pair(b, a)}) {
    if (!delivery_.NoteMapped(owner.worker, contributor.worker)) continue;
    Sometimes<"delivery: a link is mapped in the midst of a round">();
    if (WorkerShare* share = FindAny(contributor)) UpdateDelivered(share, now);
  }
}

// A part that was sealed before its worker heard of the fence, or that it is behind. If it begins
// again, that number is used up.
void RoundWork::NoteLatePart(const MemberId& from) {
  WorkerShare* share = FindAny(from);
  if (share == nullptr) {
    auto& [member, parts] = out_parts_[from.worker];
    if (member != from) parts = 0;
    member = from;
    parts = std::min<std::size_t>(parts + 1, kMaxParts);
    return;
  }
  if (share->parts.size() >= kMaxParts) return;
  share->parts.push_back({});
  share->parts.back().is_void = true;
}

std::optional<Time> RoundWork::OldestRevoke() const {
  return asked_.empty() ? std::nullopt : std::optional(asked_.front().first);
}

// Keeps the oldest question that waits at the front, so that the deadline is known without a pass
// over the shares. An entry is stale when its revoke was answered, or asked again later.
void RoundWork::DropAnsweredRevokes() {
  while (!asked_.empty()) {
    const auto [asked, worker] = asked_.front();
    const WorkerShare* share = Share(worker);
    if (share != nullptr && share->revoke && share->revoke->asked == asked) return;
    asked_.pop_front();
  }
}

// A pass over the shares, but only when the oldest one is due.
std::vector<WorkerId> RoundWork::RevokesBefore(Time t) const {
  std::vector<WorkerId> workers;
  for (const WorkerShare& share : shares_) {
    if (share.revoke && share.revoke->asked < t) workers.push_back(share.member.worker);
  }
  return workers;
}

// Times of questions ascend, since the clock does, so the deque stays sorted by itself.
void RoundWork::BeginRevoke(WorkerId worker, PendingRevoke revoke) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  LOCKSTEP_CHECK(!share.revoke && revoke.from <= share.queue.size(),
                 "worker {} is asked twice for units, or for some that it does not have", worker);
  LOCKSTEP_CHECK(asked_.empty() || asked_.back().first <= revoke.asked,
                 "round {}: the times of revokes do not ascend", round());
  asked_.emplace_back(revoke.asked, worker);
  share.revoke = std::move(revoke);
  ++pending_revokes_;
  RenewView(share, started_);
}

// The earlier question stays in the deque until it is the oldest, and is dropped then.
void RoundWork::ExtendRevoke(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  if (!share.revoke) return;
  LOCKSTEP_CHECK(share.revoke->asked <= now, "round {}: worker {} was asked in the future", round(),
                 worker);
  share.revoke->asked = now;
  asked_.emplace_back(now, worker);
  DropAnsweredRevokes();
}

// The message has two meanings. It answers a revoke with all units from position k on that were not
// begun. Or it refuses an Assign that came too late for the last part. The order tells which. In
// both cases the units are with nobody when this returns, and never were with two.
Result<RoundWork::GivenBack> RoundWork::OnRevoked(const MemberId& from,
                                                  const msg::Revoked& revoked) {
  WorkerShare* share = Find(from);
  if (share == nullptr) return GivenBack{};
  GivenBack back;
  std::size_t first = revoked.from;
  std::size_t last = share->queue.size();
  const bool answer = share->revoke && share->revoke->order == revoked.order;
  if (answer) {
    // Nothing is given to whom a revoke is under way, so it speaks of the whole queue.
    if (first > last) return Violation("gave back units it was not given");
    back.takers = share->revoke->takers;
    back.left_out = back.takers.empty();
    // Less than was asked for: all before it is begun.
    policies::WorkerView& view = WorkerViewAt(*share);
    if (revoked.from > share->revoke->from) {
      view.units_taken = std::max(view.units_taken, revoked.from);
      NoteChange(from.worker);
    }
  } else {
    const auto refused = share->PositionsOf(revoked.order);
    if (!refused) return GivenBack{};
    if (refused->first != first) {
      return Violation(
          fmt::format("refused units at position {} that are at {}", first, refused->first));
    }
    last = refused->second;
  }
  for (std::size_t i = first; i < last; ++i) {
    if (units_.sealed(share->queue[i])) return Violation("gave back a unit it has sealed");
  }
  back.units = share->Cut(first, last);
  for (const UnitIndex unit : back.units) units_.Release(unit);
  if (answer) {
    share->revoke.reset();
    LOCKSTEP_CHECK(pending_revokes_ > 0, "round {}: an answer to no revoke", round());
    --pending_revokes_;
    DropAnsweredRevokes();
  } else {
    share->refused = true;
  }
  RenewView(*share, started_);
  return back;
}

// Each map of a round has a version above the one before: receipts and sums say which one they are
// for, and that is all that tells two maps apart.
void RoundWork::SetOwners(OwnerMap map, const Members& members, Time now) {
  LOCKSTEP_CHECK(map.version > plan_.owners.version, "round {}: owner map {} after {}", plan_.round,
                 map.version, plan_.owners.version);
  plan_.owners = std::move(map);
  CountReceiptsAnew(members, now);
}

// A new map begins without receipts: owners send theirs again under its version. Parts that all
// owners have by mapping are delivered at once.
void RoundWork::CountReceiptsAnew(const Members& members, Time now) {
  delivery_.SetOwners(plan_.owners, members);
  receipts_late_.assign(index_.size(), {});
  for (WorkerShare& share : shares_) UpdateDelivered(&share, now);
}

// A taker that was not in the round is from now on.
void RoundWork::Give(const Member& to, const std::vector<UnassignedUnit>& units,
                     std::uint32_t order, const Members& members, Time now) {
  if (index_[to.id.worker.value] < 0) {
    AddWorker(to, now);
    delivery_.AddContributor(to.id.worker, members);
  }
  const auto at = static_cast<std::size_t>(index_[to.id.worker.value]);
  WorkerShare& share = shares_[at];
  LOCKSTEP_CHECK(share.member == to.id && !views_[at].fenced,
                 "I2: worker {} is fenced or another incarnation, and is given units",
                 to.id.worker);
  std::vector<UnitIndex> numbers;
  numbers.reserve(units.size());
  // In the record a unit has moved when another worker computes it, however it came back.
  for (const UnassignedUnit& given : units) {
    units_.Hold(given.unit, to.id.worker);
    numbers.push_back(given.unit);
    if (given.from != to.id.worker) {
      moved_.push_back({given.from, to.id.worker, RangeOf(given.unit)});
    }
  }
  share.Append(order, numbers);
  RenewView(share, now);
}

// Its contribution is void: what it skipped is computed again as well, by others.
void RoundWork::Unassign(WorkerShare* share) {
  std::erase_if(skipped_, [&](const Skipped& part) {
    const bool its = part.worker == share->member.worker;
    if (its) skipped_samples_ -= part.range.size();
    return its;
  });
  for (const UnitIndex unit : share->queue) {
    units_.Release(unit);
    units_.Unassign({unit, share->member.worker});
  }
  if (share->revoke) --pending_revokes_;
  const std::uint32_t waited = share->Void();
  LOCKSTEP_CHECK(waited <= undelivered_, "round {}: {} parts are void and {} were waited for",
                 round(), waited, undelivered_);
  undelivered_ -= waited;
  DropAnsweredRevokes();
  RenewView(*share, started_);
}

// Its share goes with it: what an incarnation that is out has said is of no use to the next one.
void RoundWork::Remove(WorkerId worker) {
  const std::int64_t at = index_[worker.value];
  if (at < 0) return;
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  Unassign(&share);
  out_parts_[worker] = {share.member, share.parts.size()};
  shares_.erase(shares_.begin() + at);
  views_.erase(views_.begin() + at);
  Reindex();
  NoteAllChange();
}

// Its share stays, empty, so that its late parts and its answer are known for what they are.
void RoundWork::Fence(WorkerId worker, std::uint32_t order) {
  const std::int64_t at = index_[worker.value];
  if (at < 0) return;
  Unassign(&shares_[static_cast<std::size_t>(at)]);
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  LOCKSTEP_CHECK(order > share.fence_order, "worker {}: fence {} after {}", worker, order,
                 share.fence_order);
  share.fence_order = order;
  share.fence_answered = false;
  WorkerViewAt(share).fenced = true;
  RenewView(share, started_);
}

// Only the answer to the latest fence says that no earlier message is under way. After an answer to
// an earlier fence, parts of units that were given in between may follow.
void RoundWork::NoteFenceAnswer(const MemberId& from, std::uint32_t order) {
  WorkerShare* share = FindAny(from);
  if (share == nullptr || !WorkerViewAt(*share).fenced || share->fence_order != order) return;
  share->fence_answered = true;
}

bool RoundWork::HasPartsFor(const MemberId& member) const {
  const auto out = out_parts_.find(member.worker);
  return out == out_parts_.end() || out->second.first != member || out->second.second < kMaxParts;
}

// Both of its parts may be used up by what was void: then it waits for the next round.
bool RoundWork::CanBeginAnew(WorkerId worker) const {
  const WorkerShare* share = Share(worker);
  return share != nullptr && share->fence_answered && share->HasRoom();
}

// It begins with nothing done; the part numbers that its void contribution took stay taken.
void RoundWork::Unfence(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  LOCKSTEP_CHECK(share.queue.empty() && !share.revoke, "I2: worker {} begins anew with {} units",
                 worker, share.queue.size());
  share.fence_answered = false;
  policies::WorkerView& view = WorkerViewAt(share);
  view.fenced = false;
  view.units_done = view.units_taken = 0;
  view.progressed_at = now;
  RenewView(share, now);
}

// Without this a round of which everything was left out could never close: there would be no part
// to commit, and nobody would have anything to do.
void RoundWork::TakeBackLeftOut() {
  if (NothingCounts()) units_.TakeBackLeftOut();
}

bool RoundWork::NothingCounts() const {
  if (pending_revokes_ > 0 || finished_ < with_units_) return false;
  if (with_units_ == 0) return true;
  return skipped_samples_ > 0 && std::ranges::none_of(shares_, [](const WorkerShare& share) {
           return std::ranges::any_of(share.parts, std::not_fn(&SealedPart::is_void));
         });
}

// The round's units stay the same ones, their samples are out already. The attempt of the plan is
// the version of its owner map: both grow with each plan of the round.
void RoundWork::PlanAnew(OwnerMap owners, std::vector<MemberId> members, const Members& table,
                         Time now) {
  plan_.members = std::move(members);
  plan_.assignments.clear();
  plan_.audits.clear();
  plan_.carries = false;
  plan_.attempt = Attempt(owners.version);
  out_parts_.clear();
  for (WorkerShare& share : shares_) {
    Unassign(&share);
    share.parts.clear();
    share.since = now;
    share.plan = plan_.attempt;
    policies::WorkerView& view = WorkerViewAt(share);
    view.base = plan_.round;
    Unfence(share.member.worker, now);
  }
  units_.TakeBackLeftOut();
  LOCKSTEP_CHECK(units_.unassigned().size() == units_.count(), "I2: a unit of round {} is lost",
                 plan_.round);
  // The record tells of the work that counts; what was done under the old plan does not.
  last_sealed_.reset();
  moved_.clear();
  started_ = now;
  SetOwners(std::move(owners), table, now);
  NoteAllChange();
}

// --- the round as policies see it

void RoundWork::SyncHistory(const Member& member) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  CopyHistory(member, &views_[static_cast<std::size_t>(at)]);
  NoteChange(member.id.worker);
}

void RoundWork::NoteAbsence(const Member& member, Time now) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  if (share.member != member.id) return;
  share.away = member.away();
  // Nothing was expected of it meanwhile; nor is it of others that are away still before somebody
  // has waited for them.
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i].away || shares_[i].member == member.id) views_[i].progressed_at = now;
  }
  NoteAllChange();
  RenewView(share, now);
}

void RoundWork::NoteApplied(const Member& member, Time now) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  policies::WorkerView& view = views_[static_cast<std::size_t>(at)];
  if (view.member != member.id) return;
  NoteLevel(member, plan_.round, plan_.relaxed, now, &view);
  NoteChange(member.id.worker);
}

// A new owner map can also take a delivery back: an owner that came new lacks the part.
void RoundWork::UpdateDelivered(WorkerShare* share, Time now) {
  const WorkerId worker = share->member.worker;
  for (std::size_t i = 0; i < share->parts.size(); ++i) {
    SealedPart& part = share->parts[i];
    if (part.is_void) continue;
    const bool delivered = delivery_.Delivered(worker, PartIndex(static_cast<std::uint8_t>(i)));
    if (delivered && !part.delivered_at) {
      part.delivered_at = now;
      LOCKSTEP_CHECK(undelivered_ > 0, "round {}: a part is delivered twice", round());
      --undelivered_;
    } else if (!delivered && part.delivered_at) {
      part.delivered_at.reset();
      ++undelivered_;
    }
  }
  RenewView(*share, now);
}

// The running counts lose the share as it was and gain it as it is now. So each change of a share
// costs O(its units), and judging a round costs no pass over its workers.
void RoundWork::RenewView(const WorkerShare& share, Time now) {
  policies::WorkerView& view = views_[static_cast<std::size_t>(index_[share.member.worker.value])];
  if (view.units_given > 0) {
    LOCKSTEP_CHECK(with_units_ > 0, "round {}: nobody has units, but worker {}", round(),
                   share.member.worker);
    --with_units_;
    finished_ -= view.finished_at ? 1 : 0;
  }
  std::uint64_t samples = 0;
  for (const UnitIndex unit : share.queue) samples += RangeOf(unit).size();
  if (knows_costs_) {
    view.cost_before.assign(1, 0);
    for (const UnitIndex unit : share.queue) {
      view.cost_before.push_back(view.cost_before.back() + CostOf(unit));
    }
  }
  Renew(share, samples, now, &view);
  if (view.units_given > 0) {
    ++with_units_;
    finished_ += view.finished_at ? 1 : 0;
  }
  NoteChange(share.member.worker);
}

// Costs O(1): the views are kept up to date by each change.
policies::RoundView RoundWork::View(Time now, std::uint32_t configured_workers) const {
  LOCKSTEP_CHECK(finished_ <= with_units_ && with_units_ <= views_.size(),
                 "round {}: {} of {} with units have finished, of {}", round(), finished_,
                 with_units_, views_.size());
  policies::RoundView view;
  view.round = plan_.round;
  view.epoch = plan_.epoch;
  view.now = now;
  view.started = started_;
  view.exact = exact_;
  view.configured_workers = configured_workers;
  view.planned_workers = planned_workers_;
  view.with_units = with_units_;
  view.finished = finished_;
  view.pending_revokes = pending_revokes_;
  view.samples_planned = units_.samples();
  view.samples_wanted = SamplesWanted();
  view.workers = views_;
  view.changes = &changes_;
  return view;
}

// Recounts from the shares alone: so a test sees the step in which an account goes wrong, not the
// round in which a sum does.
void RoundWork::CheckInvariants() const {
  UnitTable::Recount units(units_);
  std::uint32_t with_units = 0;
  std::uint32_t finished = 0;
  std::uint32_t undelivered = 0;
  std::uint32_t revokes = 0;
  LOCKSTEP_CHECK(shares_.size() == views_.size(), "round {}: a share without a view", round());
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const WorkerShare& share = shares_[i];
    const policies::WorkerView& view = views_[i];
    const WorkerId worker = share.member.worker;
    LOCKSTEP_CHECK(view.member == share.member && index_[worker.value] == std::int64_t(i) &&
                       (i == 0 || views_[i - 1].member.worker < worker),
                   "round {}: the shares are not ascending by worker", round());
    std::uint32_t sealed = 0;
    for (const UnitIndex unit : share.queue) {
      units.InQueueOf(worker, unit);
      sealed += units_.sealed(unit) ? 1 : 0;
    }
    LOCKSTEP_CHECK(sealed == share.sealed_units, "round {}: worker {} has sealed {} units, not {}",
                   round(), worker, sealed, share.sealed_units);
    share.CheckInvariants();
    undelivered += share.undelivered();
    LOCKSTEP_CHECK(view.units_done <= view.units_taken && view.units_taken <= view.units_given &&
                       view.units_given == share.queue.size(),
                   "round {}: worker {} has done {} units, taken {}, was given {} of {}", round(),
                   worker, view.units_done, view.units_taken, view.units_given, share.queue.size());
    LOCKSTEP_CHECK(!view.fenced || (share.queue.empty() && !share.revoke),
                   "round {}: worker {} is fenced and has work", round(), worker);
    with_units += view.units_given > 0 ? 1 : 0;
    finished += view.units_given > 0 && view.finished_at ? 1 : 0;
    revokes += share.revoke ? 1 : 0;
  }
  LOCKSTEP_CHECK(with_units == with_units_ && finished == finished_ &&
                     undelivered == undelivered_ && revokes == pending_revokes_,
                 "round {}: {} with units, {} finished, {} undelivered, {} revokes are counted as"
                 " {}, {}, {}, {}",
                 round(), with_units, finished, undelivered, revokes, with_units_, finished_,
                 undelivered_, pending_revokes_);
  std::uint64_t skipped = 0;
  for (const Skipped& part : skipped_) skipped += part.range.size();
  LOCKSTEP_CHECK(skipped == skipped_samples_, "round {}: {} samples are skipped, not {}", round(),
                 skipped, skipped_samples_);
  LOCKSTEP_CHECK(asked_.empty() == (revokes == 0), "round {}: a revoke without a deadline",
                 round());
  units.AtEnd();
  for (const OwnerShare& owner : plan_.owners.owners) {
    LOCKSTEP_CHECK(delivery_.IsOwner(owner.owner.worker),
                   "round {}: receipts of owner {} are not"
                   " counted",
                   round(), owner.owner.worker);
  }
}

}  // namespace lockstep::coordinator
