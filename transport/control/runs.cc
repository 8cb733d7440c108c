#include "transport/control/runs.h"

#include <tuple>
#include <utility>

namespace lockstep::transport::control {
namespace {

// Converts one item into a run, and a run into the item of one of its members.
MemberRun RunOf(const MemberId& id) { return {id, 1}; }
OwnerRun RunOf(const OwnerShare& share) { return {{share.owner, 1}, share.weight}; }
PartRun RunOf(const CommittedPart& part) {
  return {{part.member, 1}, part.part, part.weight, part.samples};
}
ReceivedRun RunOf(const ReceivedPart& part) { return {{part.member, 1}, part.part}; }
AssignmentRun RunOf(const Assignment& assignment) {
  return {
      {assignment.member, 1}, static_cast<std::uint32_t>(assignment.units.size()), assignment.runs};
}

MemberId ItemOf(const MemberRun&, const MemberId& id) { return id; }
OwnerShare ItemOf(const OwnerRun& run, const MemberId& id) { return {id, run.weight}; }
CommittedPart ItemOf(const PartRun& run, const MemberId& id) {
  return {id, run.part, run.weight, run.samples};
}
ReceivedPart ItemOf(const ReceivedRun& run, const MemberId& id) { return {id, run.part}; }

auto& MembersOf(auto& run) { return run.members; }
MemberRun& MembersOf(MemberRun& run) { return run; }
const MemberRun& MembersOf(const MemberRun& run) { return run; }

bool Follows(const MemberRun& run, const MemberId& id) {
  return id.incarnation == run.first.incarnation &&
         id.worker.value == std::uint64_t{run.first.worker.value} + run.count;
}

template <class Item>
auto Pack(const std::vector<Item>& list) {
  std::vector<decltype(RunOf(list.front()))> runs;
  for (const Item& item : list) {
    auto run = RunOf(item);
    if (!runs.empty() && Follows(MembersOf(runs.back()), MembersOf(run).first)) {
      MemberRun& members = MembersOf(runs.back());
      const MemberRun one = std::exchange(MembersOf(run), members);
      if (run == runs.back()) {  // equal in all other fields
        ++members.count;
        continue;
      }
      MembersOf(run) = one;
    }
    runs.push_back(run);
  }
  return runs;
}

// `make(run, id)` returns the item of one member.
template <class Run, class Make>
auto Unpack(const std::vector<Run>& runs, std::size_t most, Checks& checks, Make&& make) {
  std::vector<decltype(make(runs.front(), MemberId()))> list;
  for (const Run& run : runs) {
    const auto& [first, count] = MembersOf(run);
    checks.Require(list.size() + count <= most, "too many entries");
    if (!checks.wrong().empty()) return decltype(list)();
    for (std::uint32_t i = 0; i < count; ++i) {
      list.push_back(make(run, MemberId{WorkerId(first.worker.value + i), first.incarnation}));
    }
  }
  return list;
}

template <class Run>
auto Unpack(const std::vector<Run>& runs, std::size_t most, Checks& checks) {
  return Unpack(runs, most, checks,
                [](const Run& run, const MemberId& id) { return ItemOf(run, id); });
}

// Requires that `key` grows from each item to the next.
template <class Item, class Key>
void RequireOrder(const std::vector<Item>& list, Checks& checks, std::string_view what, Key&& key) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    checks.Require(key(list[i - 1]) < key(list[i]), what);
  }
}

std::uint64_t CutAt(const SampleRange& range, std::uint64_t i, std::uint64_t count) {
  return i == count ? range.to : range.from + range.size() * i / count;
}

// The number of units from `first` on that follow each other without a gap.
std::size_t Adjacent(const std::vector<Unit>& units, std::size_t first) {
  std::size_t end = first + 1;
  while (end < units.size() && units[end].range.from == units[end - 1].range.to &&
         units[end].index.value == std::uint64_t{units[end - 1].index.value} + 1) {
    ++end;
  }
  return end - first;
}

bool IsCut(const std::vector<Unit>& units, std::size_t first, std::size_t count) {
  const SampleRange whole{units[first].range.from, units[first + count - 1].range.to};
  if (whole.to < whole.from || whole.size() > kMaxCutSamples) return count == 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (units[first + i].range.from != CutAt(whole, i, count)) return false;
  }
  return true;
}

// The number of units from `first` on that make a run, of the `adjacent` ones there. It is all of
// them where one range was cut into them, else those of one size.
std::size_t RunFrom(const std::vector<Unit>& units, std::size_t first, std::size_t adjacent) {
  if (adjacent == 1 || IsCut(units, first, adjacent)) return adjacent;
  std::size_t count = 1;
  while (count < adjacent && units[first + count].range.size() == units[first].range.size()) {
    ++count;
  }
  return IsCut(units, first, count) ? count : 1;
}

}  // namespace

std::vector<MemberRun> ToRuns(const std::vector<MemberId>& list) { return Pack(list); }
std::vector<OwnerRun> ToRuns(const std::vector<OwnerShare>& list) { return Pack(list); }
std::vector<PartRun> ToRuns(const std::vector<CommittedPart>& list) { return Pack(list); }
std::vector<ReceivedRun> ToRuns(const std::vector<ReceivedPart>& list) { return Pack(list); }

std::vector<UnitRun> ToRuns(const std::vector<Unit>& list) {
  std::vector<UnitRun> runs;
  std::size_t adjacent = 0;  // units from `first` on
  for (std::size_t first = 0; first < list.size();) {
    if (adjacent == 0) adjacent = Adjacent(list, first);
    const std::size_t count = RunFrom(list, first, adjacent);
    runs.push_back({list[first].index,
                    static_cast<std::uint32_t>(count),
                    {list[first].range.from, list[first + count - 1].range.to}});
    first += count;
    adjacent -= count;
  }
  return runs;
}

AssignmentRuns ToRuns(const std::vector<Assignment>& list) {
  std::vector<Unit> units;
  for (const Assignment& assignment : list) {
    units.insert(units.end(), assignment.units.begin(), assignment.units.end());
  }
  return {Pack(list), ToRuns(units)};
}

std::vector<MemberId> FromRuns(const std::vector<MemberRun>& runs, Checks& checks) {
  auto members = Unpack(runs, kMaxMembers, checks);
  RequireOrder(members, checks, "members out of order", [](auto& id) { return id.worker; });
  return members;
}

std::vector<OwnerShare> FromRuns(const std::vector<OwnerRun>& runs, Checks& checks) {
  auto owners = Unpack(runs, kMaxMembers, checks);
  checks.Require(!owners.empty(), "no owner");
  RequireOrder(owners, checks, "owners out of order",
               [](auto& share) { return share.owner.worker; });
  return owners;
}

std::vector<CommittedPart> FromRuns(const std::vector<PartRun>& runs, Checks& checks) {
  auto parts = Unpack(runs, kMaxMembers * kMaxParts, checks);
  checks.Require(!parts.empty(), "a commit of nothing");
  RequireOrder(parts, checks, "parts out of order",
               [](auto& part) { return std::tuple(part.member.worker, part.part); });
  return parts;
}

std::vector<ReceivedPart> FromRuns(const std::vector<ReceivedRun>& runs, Checks& checks) {
  return Unpack(runs, kMaxMembers * kMaxParts, checks);
}

std::vector<Unit> FromRuns(const std::vector<UnitRun>& runs, Checks& checks) {
  std::vector<Unit> units;
  for (const UnitRun& run : runs) {
    checks.Require(units.size() + run.count <= kMaxUnits, "too many units");
    if (!checks.wrong().empty()) return {};
    for (std::uint32_t i = 0; i < run.count; ++i) {
      units.push_back({UnitIndex(run.first.value + i),
                       {CutAt(run.range, i, run.count), CutAt(run.range, i + 1, run.count)}});
    }
  }
  return units;
}

std::vector<Assignment> FromRuns(const AssignmentRuns& runs, Checks& checks) {
  const std::vector<Unit> units = FromRuns(runs.units, checks);
  auto next = units.begin();
  auto assignments =
      Unpack(runs.members, kMaxMembers, checks, [&](const AssignmentRun& run, const MemberId& id) {
        const bool there = run.units <= static_cast<std::size_t>(units.end() - next);
        checks.Require(there, "assignments without their units");
        const auto begin = next;
        if (there) next += static_cast<std::ptrdiff_t>(run.units);
        return Assignment{id, {begin, next}, run.runs};
      });
  checks.Require(next == units.end(), "units that nobody has");
  RequireOrder(assignments, checks, "assignments out of order",
               [](auto& assignment) { return assignment.member.worker; });
  return assignments;
}

}  // namespace lockstep::transport::control
