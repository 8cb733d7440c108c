#include "coordinator/job/members.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::coordinator {

void ClockOffset::Add(Time sent, Time received, std::int64_t worker_ns) {
  const Duration way = received - sent;
  // Clocks drift: an old short way is worth less each time.
  if (shortest != Duration::max()) shortest += shortest / 16;
  if (way > shortest) return;
  shortest = way;
  worker_minus_ours = Duration(worker_ns) - (sent.time_since_epoch() + way / 2);
}

// Doubled up to a bound, so that a machine that has been mended owns again one day.
std::uint32_t OwnerTrial::Length() const {
  constexpr std::uint32_t kMostDoublings = 6;
  return failures_ == 0 ? 0 : 1u << std::min(failures_ - 1, kMostDoublings);
}

void OwnerTrial::Fail(RoundId round) {
  ++failures_;
  left_ = Length();
  counted_ = round;
  published_ = 0;
}

// A round counts once, in however many attempts.
void OwnerTrial::OnContributed(RoundId round) {
  if (left_ == 0 || round <= counted_) return;
  counted_ = round;
  --left_;
}

void OwnerTrial::OnPublished() {
  if (on() || failures_ == 0) return;
  if (++published_ >= Length()) *this = {};
}

Members::Members(std::uint32_t slots)
    : members_(slots),
      last_incarnation_(slots),
      mapped_(slots, slots),
      mutual_(slots, slots),
      broken_(slots, slots),
      mending_(slots, slots),
      paths_(slots) {
  counts_[static_cast<std::size_t>(MemberState::kLost)] = slots;
  for (std::uint32_t i = 0; i < slots; ++i) members_[i].id.worker = WorkerId(i);
}

Member* Members::TakeSlot(std::optional<WorkerId> wanted, ConnectionId connection, Time now) {
  const auto is_free = [](const Member& m) { return m.state == MemberState::kLost; };
  Member* slot = nullptr;
  if (wanted && wanted->value < slots() && is_free(at(*wanted))) slot = &at(*wanted);
  while (fresh_from_ < slots() && last_incarnation_[fresh_from_].value > 0) ++fresh_from_;
  if (slot == nullptr && fresh_from_ < slots()) slot = &members_[fresh_from_];
  for (Member& member : members_) {
    if (slot != nullptr) break;
    if (is_free(member)) slot = &member;
  }
  if (slot == nullptr) return nullptr;

  const WorkerId worker = slot->id.worker;
  Incarnation& incarnation = last_incarnation_[worker.value];
  incarnation = incarnation.Next();
  Member fresh;
  fresh.id = {worker, incarnation};
  fresh.connection = connection;
  fresh.last_heard = fresh.last_progress = fresh.since = now;
  // The summary speaks of slots.
  fresh.runs = fresh.runs_before = slot->runs;
  fresh.runs.ahead.reset();
  fresh.rounds_contributed = slot->rounds_contributed;
  fresh.rounds_excluded = slot->rounds_excluded;
  fresh.blocked_by_compute = slot->blocked_by_compute;
  fresh.blocked_by_data = slot->blocked_by_data;
  fresh.blocked_by_link = slot->blocked_by_link;
  fresh.blocked_by_loss = slot->blocked_by_loss;
  fresh.would_have_blocked = slot->would_have_blocked;
  *slot = std::move(fresh);
  SetState(*slot, MemberState::kJoining, now);
  by_connection_[connection] = worker;
  if (incarnation.value > 1) ForgetPeers(worker);
  return slot;
}

void Members::Free(Member& member, Time now) {
  by_connection_.erase(member.connection);
  SetState(member, MemberState::kLost, now);
  SetAbsence(member, std::nullopt);
  member.leaving = false;
  MendEdges(member.id.worker);
}

void Members::SetState(Member& member, MemberState state, Time now) {
  LOCKSTEP_CHECK(MayBecome(member.state, state), "worker {} is {} ({}) and becomes {} ({})",
                 member.id.worker, Name(member.state), static_cast<int>(member.state), Name(state),
                 static_cast<int>(state));
  --counts_[static_cast<std::size_t>(member.state)];
  ++counts_[static_cast<std::size_t>(state)];
  behind_ += (IsBehind(state) ? 1u : 0u) - (member.behind() ? 1u : 0u);
  // Any other state means that it copies instead of applying.
  if (state != MemberState::kLive) member.unfinished_run.reset();
  if (!member.behind() || !IsBehind(state)) member.since = now;
  member.state = state;
}

void Members::SetAbsence(Member& member, std::optional<Absence> absence) {
  LOCKSTEP_CHECK(away_ >= (member.away() ? 1u : 0u), "fewer than none are away");
  away_ += (absence ? 1u : 0u) - (member.away() ? 1u : 0u);
  member.absence = std::move(absence);
}

Member* Members::Find(const MemberId& id) {
  if (id.worker.value >= slots()) return nullptr;
  Member& member = at(id.worker);
  return member.id == id && member.connected() ? &member : nullptr;
}

Member* Members::Find(ConnectionId connection) {
  const auto found = by_connection_.find(connection);
  return found == by_connection_.end() ? nullptr : &at(found->second);
}

std::vector<MemberId> Members::Exchanging() const {
  std::vector<MemberId> ids;
  ids.reserve(members_.size());
  for (const Member& member : members_) {
    if (member.exchanging()) ids.push_back(member.id);
  }
  return ids;
}

std::vector<ConnectionId> Members::Connections(std::span<const MemberId> of) const {
  std::vector<ConnectionId> connections;
  connections.reserve(of.size());
  for (const MemberId& id : of) {
    const Member& member = at(id.worker);
    if (member.id == id && member.connected()) connections.push_back(member.connection);
  }
  return connections;
}

// A median's standard deviation is 1.25 of a mean's.
void Members::NoteUsualRunCost() {
  std::vector<double> costs;
  std::vector<double> slopes;
  std::vector<double> errors;
  for (const Member& member : members_) {
    const std::optional<RunCost::Estimate> own = member.run_cost.estimate();
    if (!member.connected() || !own) continue;
    costs.push_back(own->units);
    slopes.push_back(own->slope);
    errors.push_back(own->error);
  }
  if (costs.empty()) return;
  const auto median = [](std::vector<double>* values) {
    const auto middle = values->begin() + std::ssize(*values) / 2;
    std::ranges::nth_element(*values, middle);
    if (values->size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values->begin(), middle)) / 2;
  };
  RunCost::Estimate usual;
  usual.units = median(&costs);
  usual.slope = median(&slopes);
  usual.error =
      median(&errors) * std::min(1.25 / std::sqrt(static_cast<double>(costs.size())), 1.0);
  for (Member& member : members_) member.usual_run_cost = usual.Likely();
}

// Where only one of many workers took a run's cost out of its unit times it would seem the quickest
// by far.
std::optional<double> Member::RunCostInUnits() const {
  const std::optional<RunCost::Estimate> own = run_cost.estimate();
  return own && own->DiffersFrom(usual_run_cost.value_or(0)) ? own->units : usual_run_cost;
}

void Members::SetPath(WorkerId from, const PeerPath& path) {
  const WorkerId to = path.peer.worker;
  const bool mapped = path.reached && path.mapped;
  if (mapped || mapped_.Test(from.value, to.value)) {
    mapped_.Set(from.value, to.value, mapped);
    const bool both = mapped && mapped_.Test(to.value, from.value);
    mutual_.Set(from.value, to.value, both);
    mutual_.Set(to.value, from.value, both);
  }
  if (path.reached) paths_.Set(from, to, path.path, path.gb_per_second);
}

std::vector<PathRecord> Members::Paths() const {
  if (slots() > kSummaryUpTo) return MeasuredPaths();
  std::vector<PathRecord> records;
  for (std::uint32_t from = 0; from < slots(); ++from) {
    for (std::uint32_t to = 0; to < slots(); ++to) {
      const auto path = paths_.Find(WorkerId(from), WorkerId(to));
      if (path)
        records.push_back({WorkerId(from), WorkerId(to), *path->words, path->gb_per_second});
    }
  }
  return records;
}

std::vector<PathRecord> Members::MeasuredPaths() const {
  std::vector<PathRecord> records;
  for (const Member& member : members_) {
    const WorkerId from = member.id.worker;
    if (!member.connected() || !paths_.Has(from)) continue;
    std::optional<PathRecord> slowest;
    for (std::uint32_t to = 0; to < slots(); ++to) {
      const auto path = paths_.Find(from, WorkerId(to));
      if (!path || path->gb_per_second <= 0 || !at(WorkerId(to)).connected()) continue;
      const PathRecord record{from, WorkerId(to), *path->words, path->gb_per_second};
      if (slots() <= kAllPathsUpTo) {
        records.push_back(record);
      } else if (!slowest || record.gb_per_second < slowest->gb_per_second) {
        slowest = record;
      }
    }
    if (slowest) records.push_back(*std::move(slowest));
  }
  return records;
}

double Members::SlowestPath() const { return paths_.Slowest() * 1e9; }

std::vector<WorkerId> Members::Slow() const {
  std::vector<Duration> times;
  for (const Member& m : members_) {
    if (m.state == MemberState::kLive && m.unit_times.mean > Duration{}) {
      times.push_back(m.unit_times.mean);
    }
  }
  if (times.size() < 2) return {};
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::ranges::nth_element(times, middle);
  std::vector<WorkerId> slow;
  for (const Member& m : members_) {
    if (m.state == MemberState::kLive && m.unit_times.mean >= *middle * kMuchSlower) {
      slow.push_back(m.id.worker);
    }
  }
  return slow;
}

bool Members::AddBrokenEdge(WorkerId a, WorkerId b) {
  any_broken_ = true;
  broken_.Set(a.value, b.value);
  return !broken_.Set(b.value, a.value);
}

std::uint32_t Members::BrokenEdges(WorkerId worker) const {
  if (!any_broken_) return 0;
  std::uint32_t edges = 0;
  for (const Member& other : members_) {
    edges += other.exchanging() && Broken(worker, other.id.worker) ? 1 : 0;
  }
  return edges;
}

// A worker's word counts as far as it can be true.
RunTotals RunTotals::With(const msg::RunTotals& process, Duration most) const {
  RunTotals all = *this;
  all.samples += process.samples;
  const Duration process_took = std::min(Duration(process.took_ns), most);
  all.took += process_took;
  if (process.reading.waited_ns) {
    const auto process_waited = Duration(static_cast<std::int64_t>(*process.reading.waited_ns));
    all.waited = waited.value_or(Duration{}) + std::min(process_waited, process_took);
  }
  all.ahead = process.reading.ahead;
  return all;
}

bool Members::IsSlowAtReading(const Member& member) const {
  if (member.runs.samples == 0 || !member.runs.waited) return false;
  const auto longer = [&](auto seconds) {
    std::vector<double> others;
    for (const Member& other : members_) {
      if (&other != &member && other.runs.samples > 0) others.push_back(seconds(other.runs));
    }
    if (others.empty()) return 0.0;
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
    std::nth_element(others.begin(), middle, others.end());
    return seconds(member.runs) - *middle;
  };
  const double took = longer(
      [](const RunTotals& runs) { return Seconds(runs.took) / static_cast<double>(runs.samples); });
  const double waited = longer([](const RunTotals& runs) {
    return Seconds(runs.waited.value_or(Duration{})) / static_cast<double>(runs.samples);
  });
  return took > 0 && waited > took / 2;
}

Duration Members::MedianUnitTime() const {
  std::vector<Duration> means;
  for (const Member& member : members_) {
    if (member.connected() && member.unit_times.mean > Duration{}) {
      means.push_back(member.unit_times.mean);
    }
  }
  if (means.empty()) return {};
  const auto middle = means.begin() + static_cast<std::ptrdiff_t>(means.size() / 2);
  std::nth_element(means.begin(), middle, means.end());
  return *middle;
}

bool Members::AnyMending(WorkerId worker) const {
  for (std::size_t i = 0; i < mending_.words(); ++i) {
    if (mending_.Word(worker.value, i) != 0) return true;
  }
  return false;
}

void Members::SetMending(WorkerId a, WorkerId b, bool mending) {
  mending_.Set(a.value, b.value, mending);
  mending_.Set(b.value, a.value, mending);
}

void Members::MendEdge(WorkerId a, WorkerId b) {
  SetMending(a, b, false);
  broken_.Set(a.value, b.value, false);
  broken_.Set(b.value, a.value, false);
  LookForBroken();
}

void Members::MendEdges(WorkerId worker) {
  if (!any_broken_) return;
  for (std::uint32_t other = 0; other < slots(); ++other) {
    SetMending(worker, WorkerId(other), false);
    broken_.Set(worker.value, other, false);
    broken_.Set(other, worker.value, false);
  }
  LookForBroken();
}

void Members::LookForBroken() {
  any_broken_ = false;
  for (std::uint32_t row = 0; row < slots() && !any_broken_; ++row) {
    for (std::size_t i = 0; i < broken_.words(); ++i) {
      any_broken_ = any_broken_ || broken_.Word(row, i) != 0;
    }
  }
}

void Members::ForgetPeers(WorkerId worker) {
  paths_.Forget(worker);
  for (std::uint32_t other = 0; other < slots(); ++other) {
    for (BitMatrix* matrix : {&mapped_, &mutual_}) {
      matrix->Set(worker.value, other, false);
      matrix->Set(other, worker.value, false);
    }
  }
}

void Members::CheckInvariants(Time now) const {
  std::array<std::uint32_t, kMemberStates> counts{};
  std::uint32_t away = 0;
  std::uint32_t connected = 0;
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    const Member& member = members_[slot];
    LOCKSTEP_CHECK(member.id.worker == WorkerId(slot), "slot {} is of worker {}", slot,
                   member.id.worker);
    LOCKSTEP_CHECK(member.last_heard <= now && member.since <= now,
                   "worker {} was heard in time to come", slot);
    ++counts[static_cast<std::size_t>(member.state)];
    away += member.away() ? 1 : 0;
    const bool lost = member.state == MemberState::kLost;
    connected += lost ? 0 : 1;
    LOCKSTEP_CHECK(!lost || (!member.leaving && !member.away()), "worker {} is lost and leaves",
                   slot);
    LOCKSTEP_CHECK(!member.unfinished_run || member.state == MemberState::kLive,
                   "worker {} is in a run of a round and not live", slot);
    LOCKSTEP_CHECK(member.state != MemberState::kBehindApplied || member.applied_behind,
                   "worker {} has applied a round that is not known", slot);
    const bool asked =
        member.state == MemberState::kBehindAsked || member.state == MemberState::kBehindDenied;
    LOCKSTEP_CHECK(!asked || member.fence_order > 0, "worker {} was asked by no order", slot);
    LOCKSTEP_CHECK(!member.asked_to_leave || member.draining, "worker {} leaves unasked", slot);
  }
  for (std::size_t state = 0; state < counts.size(); ++state) {
    LOCKSTEP_CHECK(counts_[state] == counts[state], "{} members are in state {}, not {}",
                   counts[state], state, counts_[state]);
  }
  LOCKSTEP_CHECK(away == away_, "{} members are away, not {}", away, away_);
  LOCKSTEP_CHECK(connected == by_connection_.size(), "{} members have {} connections", connected,
                 by_connection_.size());
}

}  // namespace lockstep::coordinator
