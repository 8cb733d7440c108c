#include "coordinator/round/open_round.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

Error Violation(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

}  // namespace

OpenRound::OpenRound(const Plan& planned, bool exact_round, Members& members, Time now)
    : round(planned.round),
      epoch(planned.epoch),
      exact(exact_round),
      relaxed(planned.relaxed),
      plan(planned.attempt),
      started(now),
      delivery(members.slots()),
      index_(members.slots(), -1) {
  std::size_t units = 0;
  for (const Assignment& assignment : planned.assignments) units += assignment.units.size();
  units_.reserve(units);
  holder_.reserve(units);
  unit_sealed_.reserve(units);
  for (const Assignment& assignment : planned.assignments) {
    for (const Unit& unit : assignment.units) AddUnit(unit.index, unit.range);
  }
  shares_.reserve(planned.assignments.size());
  views_.reserve(planned.assignments.size());
  for (const Assignment& assignment : planned.assignments) {
    WorkerShare& share = shares_[AddWorker(members.at(assignment.member.worker), now)];
    for (const Unit& unit : assignment.units) {
      share.queue.push_back(unit.index);
      holder_[unit.index.value] = assignment.member.worker.value;
    }
    if (!share.queue.empty()) {
      share.given.push_back({0, static_cast<std::uint32_t>(share.queue.size())});
    }
    Refresh(share, now);
    WorkerViewAt(share).units_planned = static_cast<std::uint32_t>(share.queue.size());
  }
  planned_workers_ = with_units_;
  SetOwners(planned.owners, members, now);
}

void OpenRound::AddUnit(UnitIndex unit, SampleRange range) {
  if (unit.value >= units_.size()) {
    units_.resize(unit.value + 1);
    holder_.resize(unit.value + 1, -1);
    unit_sealed_.resize(unit.value + 1, false);
  }
  units_[unit.value] = range;
  samples += range.size();
}

void OpenRound::Carry(const OpenRound& before, const std::vector<WorkerId>& workers,
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
    view.level = member.next >= round;
    for (SealedPart& part : share.parts) {
      if (part.is_void) continue;
      for (const UnitTiming& timing : part.units) unit_sealed_[timing.unit.index.value] = true;
      part.delivered_at.reset();
      part.ready_at = now;  // to be delivered
      ++undelivered;
    }
    UpdateDelivered(&share, now);
  }
  planned_workers_ = with_units_;
}

bool OpenRound::Concerns(const MemberId& member, RoundId said, Attempt said_plan) const {
  if (!relaxed) return said == round && said_plan == plan;
  if (said > round || member.worker.value >= index_.size()) return false;
  const WorkerShare* share = Share(member.worker);
  if (share == nullptr || share->member != member) return false;
  const RoundId base = WorkerViewOf(member.worker)->base;
  return said > base || (said == base && said_plan == share->plan);
}

std::size_t OpenRound::AddWorker(const Member& member, Time now) {
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
  view.base = round;
  view.level = member.next >= round;
  views_.insert(place, std::move(view));
  WorkerShare share;
  share.member = member.id;
  share.plan = plan;
  shares_.insert(shares_.begin() + at, std::move(share));
  if (static_cast<std::size_t>(at) + 1 == views_.size()) {
    index_[member.id.worker.value] = at;
  } else {
    Reindex();
  }
  return static_cast<std::size_t>(at);
}

void OpenRound::Reindex() {
  std::fill(index_.begin(), index_.end(), -1);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    index_[shares_[i].member.worker.value] = static_cast<std::int64_t>(i);
  }
}

WorkerShare* OpenRound::FindAny(const MemberId& member) {
  if (member.worker.value >= index_.size()) return nullptr;
  const std::int64_t at = index_[member.worker.value];
  if (at < 0) return nullptr;
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  return share.member == member ? &share : nullptr;
}

WorkerShare* OpenRound::Find(const MemberId& member) {
  WorkerShare* share = FindAny(member);
  return share == nullptr || WorkerViewAt(*share).fenced ? nullptr : share;
}

std::vector<SampleRange> OpenRound::RangesLess(const IntervalSet& counted) const {
  IntervalSet left;
  for (const SampleRange& unit : units_) {
    if (unit.size() > 0 && !counted.Intersects(unit)) {
      LOCKSTEP_CHECK(left.Add(unit), "a range is in two units");
    }
  }
  return left.Ranges();
}

std::vector<UnitIndex> OpenRound::UnitsOf(const std::vector<WorkerId>& workers) const {
  std::vector<UnitIndex> units;
  for (const WorkerId worker : workers) {
    const std::vector<UnitIndex>& queue = Share(worker)->queue;
    units.insert(units.end(), queue.begin(), queue.end());
  }
  return units;
}

std::vector<SampleRange> OpenRound::RangesOf(const std::vector<WorkerId>& workers) const {
  std::vector<SampleRange> ranges;
  for (const UnitIndex unit : UnitsOf(workers)) ranges.push_back(RangeOf(unit));
  return ranges;
}

const WorkerShare* OpenRound::Share(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &shares_[static_cast<std::size_t>(at)];
}

const policies::WorkerView* OpenRound::WorkerViewOf(WorkerId worker) const {
  const std::int64_t at = index_[worker.value];
  return at < 0 ? nullptr : &views_[static_cast<std::size_t>(at)];
}

const SealedPart* OpenRound::Part(WorkerId worker, PartIndex part) const {
  const WorkerShare* share = Share(worker);
  if (share == nullptr || part.value >= share->parts.size()) return nullptr;
  const SealedPart& found = share->parts[part.value];
  return found.is_void ? nullptr : &found;
}

Status OpenRound::OnSealed(const Member& from, const Sealed& sealed, Time now) {
  WorkerShare* share = Find(from.id);
  if (share == nullptr) {  // fenced, or out of the round: it will learn
    NoteLatePart(from.id);
    return {};
  }
  if (sealed.part.value != share->parts.size() || sealed.part.value >= kMaxParts) {
    return Violation(fmt::format("sealed part {} of round {} after {} parts", sealed.part, round,
                                 share->parts.size()));
  }
  if (sealed.units.empty()) return Violation("sealed a part without units");
  SealedPart part;
  for (const UnitTiming& timing : sealed.units) {
    const std::uint32_t unit = timing.unit.index.value;
    if (unit >= units_.size() || timing.unit.range != units_[unit] ||
        holder_[unit] != from.id.worker.value || unit_sealed_[unit]) {
      for (const UnitTiming& undo : part.units) unit_sealed_[undo.unit.index.value] = false;
      return Violation(
          fmt::format("sealed unit {} of round {}, which it does not hold", unit, round));
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
  ++undelivered;
  last_sealed = now;
  UpdateDelivered(share, now);
  return {};
}

void OpenRound::Skip(WorkerId worker, PartIndex index) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  SealedPart& part = share.parts[index.value];
  for (const UnitTiming& timing : part.units) skipped.push_back({worker, timing.unit.range});
  if (!part.delivered_at) --undelivered;
  part = SealedPart{};
  part.is_void = true;
  Refresh(share, started);
}

std::uint64_t OpenRound::SamplesWanted() const {
  std::uint64_t wanted = samples;
  for (const Orphan& orphan : left_out) wanted -= RangeOf(orphan.unit).size();
  for (const Skipped& part : skipped) wanted -= part.range.size();
  return wanted;
}

Status OpenRound::OnProgress(const MemberId& from, const Progress& progress, Time now) {
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

Status OpenRound::OnReceipts(const MemberId& from, const Receipts& receipts, Time now) {
  if (receipts.map_version > owners.version) return Violation("receipts for a map to come");
  if (receipts.map_version < owners.version || !delivery.IsOwner(from.worker)) return {};
  for (const ReceivedPart& received : receipts.parts) {
    if (received.part.value >= kMaxParts || received.member.worker.value >= index_.size()) {
      return Violation("a receipt for a part that cannot be");
    }
    WorkerShare* share = Find(received.member);
    if (share == nullptr) continue;
    if (received.part.value == 0 && !share->parts.empty() && !share->parts[0].is_void &&
        delivery.Lacks(from.worker, received.member.worker, received.part)) {
      receipts_late_[from.worker.value].push_back(now - share->parts[0].ready_at);
    }
    if (delivery.AddReceipt(from.worker, received.member.worker, received.part)) {
      UpdateDelivered(share, now);
    }
  }
  return {};
}

void OpenRound::NoteLatePart(const MemberId& from) {
  // Also of a fenced one: should it begin anew, that number is used up.
  WorkerShare* share = FindAny(from);
  if (share == nullptr || share->parts.size() >= kMaxParts) return;
  share->parts.push_back({});
  share->parts.back().is_void = true;
}

std::optional<Time> OpenRound::OldestRevoke() const {
  return asked_.empty() ? std::nullopt : std::optional(asked_.front().first);
}

void OpenRound::DropAnsweredRevokes() {
  while (!asked_.empty()) {
    const auto [asked, worker] = asked_.front();
    const WorkerShare* share = Share(worker);
    if (share != nullptr && share->revoke && share->revoke->asked == asked) return;
    asked_.pop_front();
  }
}

std::vector<WorkerId> OpenRound::RevokesBefore(Time t) const {
  std::vector<WorkerId> workers;
  for (const WorkerShare& share : shares_) {
    if (share.revoke && share.revoke->asked < t) workers.push_back(share.member.worker);
  }
  return workers;
}

void OpenRound::BeginRevoke(WorkerId worker, PendingRevoke revoke) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  asked_.emplace_back(revoke.asked, worker);
  share.revoke = std::move(revoke);
  ++pending_revokes;
  Refresh(share, started);
}

void OpenRound::ExtendRevoke(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  if (!share.revoke) return;
  share.revoke->asked = now;
  asked_.emplace_back(now, worker);
  DropAnsweredRevokes();
}

Result<OpenRound::GivenBack> OpenRound::OnRevoked(const MemberId& from, const Revoked& revoked) {
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
    --pending_revokes;
    DropAnsweredRevokes();
  } else {
    share->refused = true;
  }
  Refresh(*share, started);
  return back;
}

std::vector<UnitIndex> WorkerShare::Cut(std::size_t first, std::size_t last) {
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

void OpenRound::SetOwners(OwnerMap map, const Members& members, Time now) {
  owners = std::move(map);
  delivery.SetOwners(owners, members);
  receipts_late_.assign(index_.size(), {});
  for (WorkerShare& share : shares_) UpdateDelivered(&share, now);
}

void OpenRound::Give(const Member& to, const std::vector<UnitIndex>& units, std::uint32_t order,
                     const Members& members, Time now) {
  if (index_[to.id.worker.value] < 0) {
    AddWorker(to, now);
    delivery.AddContributor(to.id.worker, members);
  }
  const auto at = static_cast<std::size_t>(index_[to.id.worker.value]);
  WorkerShare& share = shares_[at];
  LOCKSTEP_CHECK(share.member == to.id && share.HasRoom() && !views_[at].fenced,
                 "worker {} cannot take units", to.id.worker);
  for (const UnitIndex unit : units) {
    LOCKSTEP_CHECK(holder_[unit.value] == -1 && !unit_sealed_[unit.value], "unit {} is held", unit);
    holder_[unit.value] = to.id.worker.value;
    share.queue.push_back(unit);
  }
  share.given.push_back({order, static_cast<std::uint32_t>(units.size())});
  Refresh(share, now);
}

void OpenRound::MakeOrphans(WorkerShare* share) {
  std::erase_if(skipped, [&](const Skipped& part) { return part.worker == share->member.worker; });
  for (const UnitIndex unit : share->queue) {
    holder_[unit.value] = -1;
    unit_sealed_[unit.value] = false;
    orphans.push_back({unit, share->member.worker});
  }
  for (SealedPart& part : share->parts) {
    if (!part.is_void && !part.delivered_at) --undelivered;
    part = SealedPart{};
    part.is_void = true;
  }
  share->queue.clear();
  share->given.clear();
  share->sealed_units = 0;
  share->refused = false;
  if (share->revoke) --pending_revokes;
  share->revoke.reset();
  DropAnsweredRevokes();
  Refresh(*share, started);
}

void OpenRound::Remove(WorkerId worker) {
  const std::int64_t at = index_[worker.value];
  if (at < 0) return;
  MakeOrphans(&shares_[static_cast<std::size_t>(at)]);
  shares_.erase(shares_.begin() + at);
  views_.erase(views_.begin() + at);
  Reindex();
}

void OpenRound::Fence(WorkerId worker, std::uint32_t order) {
  const std::int64_t at = index_[worker.value];
  if (at < 0) return;
  MakeOrphans(&shares_[static_cast<std::size_t>(at)]);
  WorkerShare& share = shares_[static_cast<std::size_t>(at)];
  share.fence_order = order;
  share.fence_answered = false;
  WorkerViewAt(share).fenced = true;
  Refresh(share, started);
}

void OpenRound::NoteFenceAnswer(const MemberId& from, std::uint32_t order) {
  WorkerShare* share = FindAny(from);
  if (share == nullptr || !WorkerViewAt(*share).fenced || share->fence_order != order) return;
  share->fence_answered = true;
}

bool OpenRound::CanBeginAnew(WorkerId worker) const {
  const WorkerShare* share = Share(worker);
  return share != nullptr && share->fence_answered && share->HasRoom();
}

void OpenRound::Unfence(WorkerId worker, Time now) {
  WorkerShare& share = shares_[static_cast<std::size_t>(index_[worker.value])];
  share.fence_answered = false;
  policies::WorkerView& view = WorkerViewAt(share);
  view.fenced = false;
  view.units_done = view.units_taken = 0;
  view.progressed_at = now;
  Refresh(share, now);
}

void OpenRound::TakeBackLeftOut() {
  if (with_units_ > 0 || pending_revokes > 0) return;
  orphans.insert(orphans.end(), left_out.begin(), left_out.end());
  left_out.clear();
}

void OpenRound::PlanAnew(Attempt new_plan, Time now) {
  plan = new_plan;
  for (WorkerShare& share : shares_) {
    MakeOrphans(&share);
    share.parts.clear();
    share.plan = plan;
    policies::WorkerView& view = WorkerViewAt(share);
    view.base = round;
    Unfence(share.member.worker, now);
  }
  orphans.insert(orphans.end(), left_out.begin(), left_out.end());
  left_out.clear();
  const auto units = static_cast<std::size_t>(
      std::ranges::count_if(units_, [](const SampleRange& range) { return range.size() > 0; }));
  LOCKSTEP_CHECK(orphans.size() == units, "a unit of round {} is lost", round);
  last_sealed.reset();
  started = now;
}

}  // namespace lockstep::coordinator
