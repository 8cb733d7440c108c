#include "coordinator/round/round_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {
// The units are those of the plan; who has which is the plan's assignment. Views are made with the
// shares, so that a policy may be asked about a round of which nothing has been heard.
RoundWork::RoundWork(Plan plan, bool exact, const Members& members, Time now)
    : plan_(std::move(plan)),
      exact_(exact),
      started_(now),
      delivery_(members.slots()),
      index_(members.slots(), -1) {
  std::size_t units = 0;
  for (const Assignment& assignment : plan_.assignments) units += assignment.units.size();
  units_.reserve(units);
  holder_.reserve(units);
  unit_sealed_.reserve(units);
  for (const Assignment& assignment : plan_.assignments) {
    for (const Unit& unit : assignment.units) AddUnit(unit.index, unit.range);
  }
  shares_.reserve(plan_.assignments.size());
  views_.reserve(plan_.assignments.size());
  for (const Assignment& assignment : plan_.assignments) {
    WorkerShare& share = shares_[AddWorker(members.at(assignment.member.worker), now)];
    for (const Unit& unit : assignment.units) {
      share.queue.push_back(unit.index);
      holder_[unit.index.value] = assignment.member.worker.value;
    }
    if (!share.queue.empty()) {
      share.given.push_back({0, static_cast<std::uint32_t>(share.queue.size())});
    }
    RenewView(share, now);
    WorkerViewAt(share).units_planned = static_cast<std::uint32_t>(share.queue.size());
  }
  planned_workers_ = with_units_;
  CountReceiptsAnew(members, now);
}

// Numbers of units are dense but for relaxed rounds: there the numbers of work that is carried on
// stay, and new units fill the gaps.
void RoundWork::AddUnit(UnitIndex unit, SampleRange range) {
  if (unit.value >= units_.size()) {
    units_.resize(unit.value + 1);
    holder_.resize(unit.value + 1, -1);
    unit_sealed_.resize(unit.value + 1, false);
  }
  LOCKSTEP_CHECK(range.size() > 0 && units_[unit.value].size() == 0,
                 "I2: the number of unit {} is taken, or it has no samples", unit);
  units_[unit.value] = range;
  samples_ += range.size();
}

// The parts that were sealed in the round before have to be delivered anew: the owners of this
// round are others, or have a new map version, under which no receipt has come yet. So they are
// ready from now on, and their delivery counts from now.
void RoundWork::Carry(const RoundWork& before, const std::vector<WorkerId>& workers,
                      const Members& members, Time now) {
  for (const WorkerId worker : workers) {
    const WorkerShare& from = *before.Share(worker);
    const Member& member = members.at(worker);
    LOCKSTEP_CHECK(index_[worker.value] < 0 && member.id == from.member && !from.revoke,
                   "worker {} has work of both rounds", worker);
    const std::size_t at = AddWorker(member, now);
    WorkerShare& share = shares_[at];
    share = from;
    for (const UnitIndex unit : share.queue) {
      AddUnit(unit, before.RangeOf(unit));
      holder_[unit.value] = worker.value;
    }
    policies::WorkerView& view = views_[at];
    view = *before.WorkerViewOf(worker);
    view.units_given = 0;  // it is not in the running counts yet
    view.finished_at.reset();
    view.level = member.next >= plan_.round;
    for (SealedPart& part : share.parts) {
      if (part.is_void) continue;
      for (const UnitTiming& timing : part.units) unit_sealed_[timing.unit.index.value] = true;
      part.delivered_at.reset();
      part.ready_at = now;  // to be delivered
      ++undelivered_;
    }
    UpdateDelivered(&share, now);
  }
  planned_workers_ = with_units_;
}

// A plan of the round that has been replaced has the same round number, so the attempt tells them
// apart. In a relaxed round work has a base of its own: the round in which it was given out, and
// what is said of that round or any later one up to this is about the same work.
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
  const auto place = std::lower_bound(
      views_.begin(), views_.end(), member.id,
      [](const policies::WorkerView& view, const MemberId& id) { return view.member < id; });
  const std::ptrdiff_t at = place - views_.begin();
  policies::WorkerView view;
  view.member = member.id;
  view.progressed_at = now;
  view.last_heard = member.last_heard;
  view.unit_time_mean = member.unit_times.mean;
  view.unit_time_deviation = member.unit_times.deviation;
  view.base = plan_.round;
  view.level = member.next >= plan_.round;
  views_.insert(place, std::move(view));
  WorkerShare share;
  share.member = member.id;
  share.plan = plan_.attempt;
  shares_.insert(shares_.begin() + at, std::move(share));
  if (static_cast<std::size_t>(at) + 1 == views_.size()) {
    index_[member.id.worker.value] = at;
  } else {
    Reindex();
  }
  return static_cast<std::size_t>(at);
}

void RoundWork::Reindex() {
  std::fill(index_.begin(), index_.end(), -1);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    index_[shares_[i].member.worker.value] = static_cast<std::int64_t>(i);
  }
}

WorkerShare* RoundWork::FindAny(const MemberId& member) {
  if (member.worker.value >= index_.size()) return nullptr;
  const std::int64_t at = index_[member.worker.value];
  if (at < 0) return nullptr;
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  return share.member == member ? &share : nullptr;
}

// What a fenced member says of its work counts nothing: its units are with others (I2).
WorkerShare* RoundWork::Find(const MemberId& member) {
  WorkerShare* share = FindAny(member);
  return share == nullptr || WorkerViewAt(*share).fenced ? nullptr : share;
}

// What the round leaves to others: the units that are not in its commit, merged to ranges.
std::vector<SampleRange> RoundWork::RangesLess(const IntervalSet& counted) const {
  IntervalSet left;
  for (const SampleRange& unit : units_) {
    if (unit.size() > 0 && !counted.Intersects(unit)) {
      LOCKSTEP_CHECK(left.Add(unit), "a range is in two units");
    }
  }
  return left.Ranges();
}

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

const WorkerShare* RoundWork::Share(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &shares_[static_cast<std::size_t>(at)];
}

const policies::WorkerView* RoundWork::WorkerViewOf(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &views_[static_cast<std::size_t>(at)];
}

const SealedPart* RoundWork::Part(WorkerId worker, PartIndex part) const {
  const WorkerShare* share = Share(worker);
  if (share == nullptr || part.value >= share->parts.size()) return nullptr;
  const SealedPart& found = share->parts[part.value];
  return found.is_void ? nullptr : &found;
}

// A part is taken whole or not at all: what a message that turns out to be wrong has marked is
// unmarked again, since its sender may be evicted and its units given away as unsealed ones. Parts
// come in order; the worker numbers them, so a number that is not the next one is a violation.
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
  SealedPart part;
  for (const UnitTiming& timing : sealed.units) {
    const std::uint32_t unit = timing.unit.index.value;
    if (unit >= units_.size() || timing.unit.range != units_[unit] ||
        holder_[unit] != from.id.worker.value || unit_sealed_[unit]) {
      for (const UnitTiming& undo : part.units) unit_sealed_[undo.unit.index.value] = false;
      return Violation(
          fmt::format("sealed unit {} of round {}, which it does not hold", unit, plan_.round));
    }
    unit_sealed_[unit] = true;
    part.samples += units_[unit].size();
    part.units.push_back(timing);
  }
  if (part.samples != sealed.samples) {
    for (const UnitTiming& undo : part.units) unit_sealed_[undo.unit.index.value] = false;
    return Violation(fmt::format("sealed {} samples in units of {}", sealed.samples, part.samples));
  }
  part.loss_sum = sealed.loss_sum;
  part.clock = from.clock;
  part.ready_at = now;
  share->sealed_units += static_cast<std::uint32_t>(part.units.size());
  policies::WorkerView& view = WorkerViewAt(*share);
  if (share->sealed_units > view.units_done) {
    NotePace(&view, share->sealed_units - view.units_done, now);
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
// would be no better. What is void is the part, which no commit can choose.
void RoundWork::Skip(WorkerId worker, PartIndex index) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  SealedPart& part = share.parts[index.value];
  LOCKSTEP_CHECK(!part.is_void, "a part of worker {} is skipped twice", worker);
  for (const UnitTiming& timing : part.units) skipped_.push_back({worker, timing.unit.range});
  if (!part.delivered_at) --undelivered_;
  part = SealedPart{};
  part.is_void = true;
  RenewView(share, started_);
}

// An exact round (the last of its epoch) closes only when it counts this many, so that the epoch is
// whole but for what was dropped (I2).
std::uint64_t RoundWork::SamplesWanted() const {
  std::uint64_t wanted = samples_;
  for (const UnassignedUnit& orphan : left_out_) wanted -= RangeOf(orphan.unit).size();
  for (const Skipped& part : skipped_) wanted -= part.range.size();
  return wanted;
}

// Progress is a hint for policies: it is clamped to what is known to be true, since a report may
// cross a revoke or an Assign on its way. What counts are sealed parts.
Status RoundWork::OnProgress(const MemberId& from, const msg::Progress& progress, Time now) {
  const WorkerShare* share = Find(from);
  if (share == nullptr) return {};
  if (progress.units_done > progress.units_taken) return Violation("more units done than taken");
  const auto given = static_cast<std::uint32_t>(share->queue.size());
  policies::WorkerView& view = views_[static_cast<std::size_t>(index_[from.worker.value])];
  const std::uint32_t done =
      std::clamp(progress.units_done, view.units_done, std::max(given, view.units_done));
  if (done > view.units_done) NotePace(&view, done - view.units_done, now);
  view.units_done = done;
  view.units_taken =
      std::clamp(progress.units_taken, view.units_taken, std::max(given, view.units_taken));
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

// A part that was sealed before its worker heard of the fence.
void RoundWork::NoteLatePart(const MemberId& from) {
  // Also of a fenced one: should it begin anew, that number is used up.
  WorkerShare* share = FindAny(from);
  if (share == nullptr || share->parts.size() >= kMaxParts) return;
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
  asked_.emplace_back(revoke.asked, worker);
  share.revoke = std::move(revoke);
  ++pending_revokes_;
  RenewView(share, started_);
}

void RoundWork::ExtendRevoke(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  if (!share.revoke) return;
  share.revoke->asked = now;
  asked_.emplace_back(now, worker);
  DropAnsweredRevokes();
}

// Two messages are one: the answer to a revoke (from position k on, all that was not begun) and the
// refusal of an Assign that came after both parts had been sealed or begun to be. The order tells
// which. In both cases the units are with nobody when this returns, and never were with two.
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
    }
  } else {
    std::size_t begin = 0;
    auto given = share->given.begin();
    for (; given != share->given.end() && given->order != revoked.order; ++given) {
      begin += given->units;
    }
    if (given == share->given.end() || given->order == 0) return GivenBack{};
    if (begin != first) {
      return Violation(fmt::format("refused units at position {} that are at {}", first, begin));
    }
    last = first + given->units;
  }
  for (std::size_t i = first; i < last; ++i) {
    if (unit_sealed_[share->queue[i].value]) return Violation("gave back a unit it has sealed");
  }
  for (std::size_t i = first; i < last; ++i) holder_[share->queue[i].value] = -1;
  back.units = share->Cut(first, last);
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

// Orders whose units are all gone are forgotten, so that a later refusal of them is stale.
std::vector<UnitIndex> WorkerShare::Cut(std::size_t first, std::size_t last) {
  LOCKSTEP_CHECK(first <= last && last <= queue.size(), "units {} to {} of {}", first, last,
                 queue.size());
  const auto from = queue.begin() + static_cast<std::ptrdiff_t>(first);
  const auto to = queue.begin() + static_cast<std::ptrdiff_t>(last);
  std::vector<UnitIndex> units(from, to);
  queue.erase(from, to);
  std::size_t begin = 0;
  for (GivenUnits& part : given) {
    const std::size_t end = begin + part.units;
    const std::size_t cut_from = std::clamp(first, begin, end);
    const std::size_t cut_to = std::clamp(last, begin, end);
    part.units -= static_cast<std::uint32_t>(cut_to - cut_from);
    begin = end;
  }
  std::erase_if(given, [](const GivenUnits& part) { return part.units == 0; });
  return units;
}

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

// The one place where a unit gets a holder after the plan, and so the one that keeps I2.
void RoundWork::Give(const Member& to, const std::vector<UnassignedUnit>& units,
                     std::uint32_t order, const Members& members, Time now) {
  if (index_[to.id.worker.value] < 0) {
    AddWorker(to, now);
    delivery_.AddContributor(to.id.worker, members);
  }
  const auto at = static_cast<std::size_t>(index_[to.id.worker.value]);
  WorkerShare& share = shares_[at];
  LOCKSTEP_CHECK(share.member == to.id && share.HasRoom() && !views_[at].fenced,
                 "worker {} cannot take units", to.id.worker);
  LOCKSTEP_CHECK(!units.empty() && (share.given.empty() || share.given.back().order < order),
                 "worker {}: order {} gives nothing or is older than the last one", to.id.worker,
                 order);
  for (const UnassignedUnit& given : units) {
    const UnitIndex unit = given.unit;
    LOCKSTEP_CHECK(holder_[unit.value] == -1 && !unit_sealed_[unit.value],
                   "I2: unit {} is given away while worker {} has it", unit, holder_[unit.value]);
    holder_[unit.value] = to.id.worker.value;
    share.queue.push_back(unit);
    if (given.from != to.id.worker) moved_.push_back({given.from, to.id.worker, RangeOf(unit)});
  }
  share.given.push_back({order, static_cast<std::uint32_t>(units.size())});
  RenewView(share, now);
}

std::vector<UnassignedUnit> RoundWork::TakeUnassigned() { return std::exchange(unassigned_, {}); }

void RoundWork::LeaveUnassignedOut() {
  left_out_.insert(left_out_.end(), unassigned_.begin(), unassigned_.end());
  unassigned_.clear();
}

// The numbers of its parts stay used up: what it has sent under them may still be under way to
// owners, and must not be taken for what it computes later.
void RoundWork::Unassign(WorkerShare* share) {
  std::erase_if(skipped_, [&](const Skipped& part) { return part.worker == share->member.worker; });
  for (const UnitIndex unit : share->queue) {
    holder_[unit.value] = -1;
    unit_sealed_[unit.value] = false;
    unassigned_.push_back({unit, share->member.worker});
  }
  for (SealedPart& part : share->parts) {
    if (!part.is_void && !part.delivered_at) --undelivered_;
    part = SealedPart{};
    part.is_void = true;
  }
  share->queue.clear();
  share->given.clear();
  share->sealed_units = 0;
  share->refused = false;
  if (share->revoke) --pending_revokes_;
  share->revoke.reset();
  DropAnsweredRevokes();
  RenewView(*share, started_);
}

// Its share goes with it: what an incarnation that is out has said is of no use to the next one.
void RoundWork::Remove(WorkerId worker) {
  const std::int64_t at = index_[worker.value];
  if (at < 0) return;
  Unassign(&shares_[static_cast<std::size_t>(at)]);
  shares_.erase(shares_.begin() + at);
  views_.erase(views_.begin() + at);
  Reindex();
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

void RoundWork::NoteFenceAnswer(const MemberId& from, std::uint32_t order) {
  WorkerShare* share = FindAny(from);
  if (share == nullptr || !WorkerViewAt(*share).fenced || share->fence_order != order) return;
  share->fence_answered = true;
}

bool RoundWork::CanBeginAnew(WorkerId worker) const {
  const WorkerShare* share = Share(worker);
  return share != nullptr && share->fence_answered && share->HasRoom();
}

// It begins with nothing done; the part numbers that its void contribution took stay taken.
void RoundWork::Unfence(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
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
  if (with_units_ > 0 || pending_revokes_ > 0) return;
  unassigned_.insert(unassigned_.end(), left_out_.begin(), left_out_.end());
  left_out_.clear();
}

// The round's units stay the same ones, their samples are out already. The attempt of the plan is
// the version of its owner map: both grow with each plan of the round.
void RoundWork::PlanAnew(OwnerMap owners, std::vector<MemberId> members, const Members& table,
                         Time now) {
  plan_.members = std::move(members);
  plan_.assignments.clear();
  plan_.carries = false;
  plan_.attempt = Attempt(owners.version);
  for (WorkerShare& share : shares_) {
    Unassign(&share);
    share.parts.clear();
    share.plan = plan_.attempt;
    policies::WorkerView& view = WorkerViewAt(share);
    view.base = plan_.round;
    Unfence(share.member.worker, now);
  }
  unassigned_.insert(unassigned_.end(), left_out_.begin(), left_out_.end());
  left_out_.clear();
  const auto units = static_cast<std::size_t>(
      std::ranges::count_if(units_, [](const SampleRange& range) { return range.size() > 0; }));
  LOCKSTEP_CHECK(unassigned_.size() == units, "I2: a unit of round {} is lost", plan_.round);
  last_sealed_.reset();
  moved_.clear();
  started_ = now;
  SetOwners(std::move(owners), table, now);
}

// --- the round as policies see it, renewed with each change so that judging costs no pass over the
// workers

// Copies, so that a policy sees plain values and nobody asks the table of members in a verdict.
void RoundWork::SyncHistory(const Member& member) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  policies::WorkerView& view = views_[static_cast<std::size_t>(at)];
  view.last_heard = member.last_heard;
  view.unit_time_mean = member.unit_times.mean;
  view.unit_time_deviation = member.unit_times.deviation;
}

// A worker begins with a round when it has applied the one before; its pace counts from there.
void RoundWork::NoteApplied(const Member& member, Time now) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  policies::WorkerView& view = views_[static_cast<std::size_t>(at)];
  if (view.member != member.id) return;
  if (!view.level && member.next >= plan_.round && view.units_done == 0 && !plan_.relaxed) {
    view.progressed_at = now;  // it could not begin before
  }
  view.level = member.next >= plan_.round;
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

// The running counts are taken back for the share as it was and added for what it is now, so each
// change of a share costs O(its units) and judging a round costs no pass over its workers.
// `finished_at` stays at the first time at which all was sealed and delivered.
void RoundWork::RenewView(const WorkerShare& share, Time now) {
  policies::WorkerView& view = views_[static_cast<std::size_t>(index_[share.member.worker.value])];
  if (view.units_given > 0) {
    LOCKSTEP_CHECK(with_units_ > 0, "round {}: nobody has units, but worker {}", round(),
                   share.member.worker);
    --with_units_;
    finished_ -= view.finished_at ? 1 : 0;
  }
  view.units_given = static_cast<std::uint32_t>(share.queue.size());
  view.units_done = std::clamp(view.units_done, share.sealed_units, view.units_given);
  view.units_taken = std::clamp(view.units_taken, view.units_done, view.units_given);
  view.takes_units = share.HasRoom() && !view.fenced;
  view.revoking = share.revoke.has_value();
  view.samples_given = 0;
  for (const UnitIndex unit : share.queue) view.samples_given += units_[unit.value].size();
  view.parts.clear();
  bool all_delivered = share.sealed_units == share.queue.size();
  for (std::size_t i = 0; i < share.parts.size(); ++i) {
    const SealedPart& part = share.parts[i];
    if (part.is_void) continue;
    view.parts.push_back(
        {PartIndex(static_cast<std::uint8_t>(i)), part.samples, part.ready_at, part.delivered_at});
    all_delivered = all_delivered && part.delivered_at.has_value();
  }
  if (!all_delivered) {
    view.finished_at.reset();
  } else if (!view.finished_at) {
    view.finished_at = now;
  }
  if (view.units_given > 0) {
    ++with_units_;
    finished_ += view.finished_at ? 1 : 0;
  }
}

// A third of what is new: a single slow unit does not make a slow worker. What comes first holds
// the round's beginning too (the last round's sums are taken and applied), so it counts only where
// nothing else is known.
void RoundWork::NotePace(policies::WorkerView* view, std::uint32_t units, Time now) {
  const Duration sample = std::max((now - view->progressed_at) / units, Duration(1));
  const bool first = view->pace == Duration{};
  view->progressed_at = now;
  if (first) {
    view->pace = view->unit_time_mean > Duration{} ? view->unit_time_mean : sample;
  } else {
    view->pace += (sample - view->pace) / 3;
  }
}

// An owner's response is the lower quartile over its contributors: a receipt takes two, and a few
// slow contributors say nothing about the owner. A contributor that is still not delivered counts
// with the time that has passed, so that who never answers does not look quick.
std::vector<LinkResponse> RoundWork::Responses(Time now) const {
  const PartIndex first(0);
  std::vector<LinkResponse> responses;
  std::vector<std::size_t> at(index_.size(), index_.size());  // in `responses`, by slot
  std::vector<WorkerId> missing;
  std::size_t sealed = 0;
  for (const WorkerShare& share : shares_) {
    const SealedPart* part = Part(share.member.worker, first);
    if (part == nullptr) continue;
    ++sealed;
    if (!part->delivered_at) missing.push_back(share.member.worker);
    at[share.member.worker.value] = responses.size();
    responses.push_back({.member = share.member,
                         .receipts = std::nullopt,
                         .delivery = part->delivered_at.value_or(now) - part->ready_at,
                         .delivered = part->delivered_at.has_value()});
  }
  for (const OwnerShare& share : plan_.owners.owners) {
    const WorkerId owner = share.owner.worker;
    std::vector<Duration> late = receipts_late_[owner.value];
    for (const WorkerId contributor : missing) {
      if (delivery_.Lacks(owner, contributor, first)) {
        late.push_back(now - Part(contributor, first)->ready_at);
      }
    }
    // The others are mapped with it: received when ready, which is sooner than all of `late`.
    const std::size_t all = std::max(late.size(), sealed - (Part(owner, first) != nullptr ? 1 : 0));
    if (all == 0) continue;
    const std::size_t at_once = all - late.size();
    Duration response_time{};
    if (const std::size_t quartile = (all - 1) / 4; quartile >= at_once) {
      const auto place = late.begin() + static_cast<std::ptrdiff_t>(quartile - at_once);
      std::nth_element(late.begin(), place, late.end());
      response_time = *place;
    }
    std::size_t& response = at[owner.value];
    if (response == at.size()) {
      response = responses.size();
      responses.push_back({.member = share.owner, .receipts = {}, .delivery = {}});
    }
    responses[response].receipts = response_time;
  }
  return responses;
}

// Costs O(1): the views are kept up to date by each change.
policies::RoundView RoundWork::View(Time now, std::uint32_t configured_workers) const {
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
  view.samples_planned = samples_;
  view.workers = views_;
  return view;
}

// To tell whether receipts are all that a round waits for: would the policy close it then?
void RoundWork::ViewIfDelivered(Time now, std::uint32_t configured_workers,
                                Hypothetical* out) const {
  out->workers = views_;
  out->view = View(now, configured_workers);
  out->view.finished = 0;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    policies::WorkerView& worker = out->workers[i];
    for (policies::PartView& part : worker.parts) part.delivered_at = part.ready_at;
    const bool sealed = shares_[i].sealed_units == shares_[i].queue.size();
    if (sealed && !worker.finished_at) worker.finished_at = now;
    if (worker.units_given > 0 && worker.finished_at) ++out->view.finished;
  }
  out->view.workers = out->workers;
}

// By recount, from the shares alone: with it a test sees the step in which an account goes wrong,
// not the round in which a sum is.
void RoundWork::CheckInvariants() const {
  std::vector<std::uint32_t> places(units_.size());
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
      ++places[unit.value];
      sealed += unit_sealed_[unit.value] ? 1 : 0;
      LOCKSTEP_CHECK(holder_[unit.value] == worker.value,
                     "I2: unit {} is in the queue of worker {}"
                     " and held by {}",
                     unit, worker, holder_[unit.value]);
    }
    LOCKSTEP_CHECK(sealed == share.sealed_units, "round {}: worker {} has sealed {} units, not {}",
                   round(), worker, sealed, share.sealed_units);
    std::size_t given = 0;
    for (std::size_t g = 0; g < share.given.size(); ++g) {
      given += share.given[g].units;
      LOCKSTEP_CHECK(g == 0 || share.given[g - 1].order < share.given[g].order,
                     "round {}: the orders of worker {} do not ascend", round(), worker);
    }
    LOCKSTEP_CHECK(given == share.queue.size(), "round {}: worker {} was given {} units and has {}",
                   round(), worker, given, share.queue.size());
    LOCKSTEP_CHECK(share.parts.size() <= kMaxParts, "I7: worker {} has {} parts", worker,
                   share.parts.size());
    for (const SealedPart& part : share.parts) {
      LOCKSTEP_CHECK(part.is_void == part.units.empty(),
                     "round {}: a part of worker {} is void and"
                     " has units, or neither",
                     round(), worker);
      undelivered += !part.is_void && !part.delivered_at ? 1 : 0;
    }
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
  LOCKSTEP_CHECK(asked_.empty() == (revokes == 0), "round {}: a revoke without a deadline",
                 round());
  for (const std::vector<UnassignedUnit>* units : {&unassigned_, &left_out_}) {
    for (const UnassignedUnit& unassigned : *units) {
      ++places[unassigned.unit.value];
      LOCKSTEP_CHECK(holder_[unassigned.unit.value] == -1,
                     "I2: unit {} is unassigned and held by "
                     "worker {}",
                     unassigned.unit, holder_[unassigned.unit.value]);
    }
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    LOCKSTEP_CHECK(places[unit] == (units_[unit].size() > 0 ? 1u : 0u),
                   "I2: unit {} of round {} is in {} places", unit, round(), places[unit]);
  }
  for (const OwnerShare& owner : plan_.owners.owners) {
    LOCKSTEP_CHECK(delivery_.IsOwner(owner.owner.worker),
                   "round {}: receipts of owner {} are not"
                   " counted",
                   round(), owner.owner.worker);
  }
}

}  // namespace lockstep::coordinator
