#include "coordinator/membership/members.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

void UnitTimes::Add(Duration unit) {
  if (mean == Duration{}) {
    mean = unit;
    return;
  }
  // Weights 1/8 and 1/4, as TCP's round-trip estimator has them (RFC 6298).
  const Duration error = unit - mean;
  mean += error / 8;
  deviation += (std::chrono::abs(error) - deviation) / 4;
}

// The unit times in runs of r units are b + a / r: a line over 1 / r, fitted by least squares. All
// runs weigh the same, since what disturbs a unit's time does so in proportion to it.
void RunCost::Add(std::span<const Run> runs) {
  constexpr double kWeight = 1.0 / 8;
  constexpr double kLeastUnit = 0.05;  // of a run's unit times: the cost is all but never all
  double count = 0;
  double x_mean = 0;
  double y_mean = 0;
  double least = 0;
  for (const Run& run : runs) {
    if (run.units == 0) continue;
    const auto units = static_cast<double>(run.units);
    const double unit = Seconds(run.took) / units;
    ++count;
    x_mean += (1 / units - x_mean) / count;
    y_mean += (unit - y_mean) / count;
    least = count == 1 ? unit : std::min(least, unit);
  }
  double xx = 0;
  double xy = 0;
  for (const Run& run : runs) {
    if (run.units == 0) continue;
    const auto units = static_cast<double>(run.units);
    xx += (1 / units - x_mean) * (1 / units - x_mean);
    xy += (1 / units - x_mean) * (Seconds(run.took) / units - y_mean);
  }
  if (xx == 0 || least <= 0) return;
  const double cost = std::max(xy / xx, 0.0);
  const double unit = std::max(y_mean - cost * x_mean, kLeastUnit * least);
  const double in_units = cost / unit;
  in_units_ = in_units_ ? *in_units_ + (in_units - *in_units_) * kWeight : in_units;
}

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
  for (Member& member : members_) {
    if (slot != nullptr) break;
    if (is_free(member) && last_incarnation_[member.id.worker.value].value == 0) slot = &member;
  }
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
  fresh.rounds_contributed = slot->rounds_contributed;
  fresh.rounds_excluded = slot->rounds_excluded;
  fresh.blocked_by_compute = slot->blocked_by_compute;
  fresh.blocked_by_link = slot->blocked_by_link;
  fresh.blocked_by_loss = slot->blocked_by_loss;
  fresh.would_have_blocked = slot->would_have_blocked;
  *slot = std::move(fresh);
  SetState(*slot, MemberState::kJoining, now);
  by_connection_[connection] = worker;
  ForgetPeers(worker);
  return slot;
}

void Members::Free(Member& member, Time now) {
  by_connection_.erase(member.connection);
  SetState(member, MemberState::kLost, now);
  member.leaving = false;
  MendEdges(member.id.worker);
}

void Members::SetState(Member& member, MemberState state, Time now) {
  --counts_[static_cast<std::size_t>(member.state)];
  ++counts_[static_cast<std::size_t>(state)];
  member.state = state;
  member.since = now;
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

void Members::SetPath(WorkerId from, const PeerPath& path) {
  const WorkerId to = path.peer.worker;
  mapped_.Set(from.value, to.value, path.reached && path.mapped);
  const bool both = mapped_.Test(from.value, to.value) && mapped_.Test(to.value, from.value);
  mutual_.Set(from.value, to.value, both);
  mutual_.Set(to.value, from.value, both);
  if (path.reached) paths_[from.value][to.value] = {path.path, path.gb_per_second};
}

std::vector<PathRecord> Members::Paths() const {
  std::vector<PathRecord> records;
  for (std::uint32_t from = 0; from < slots(); ++from) {
    for (std::uint32_t to = 0; to < slots(); ++to) {
      const auto path = paths_[from].find(to);
      if (path == paths_[from].end()) continue;
      records.push_back(
          {WorkerId(from), WorkerId(to), path->second.words, path->second.gb_per_second});
    }
  }
  return records;
}

double Members::SlowestPath() const {
  double slowest = 0;
  for (const PathRecord& path : Paths()) {
    if (path.gb_per_second <= 0) continue;
    if (slowest == 0 || path.gb_per_second * 1e9 < slowest) slowest = path.gb_per_second * 1e9;
  }
  return slowest;
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
  paths_[worker.value].clear();
  for (std::uint32_t other = 0; other < slots(); ++other) {
    for (BitMatrix* matrix : {&mapped_, &mutual_}) {
      matrix->Set(worker.value, other, false);
      matrix->Set(other, worker.value, false);
    }
    paths_[other].erase(worker.value);
  }
}

}  // namespace lockstep::coordinator
