// Lists of members and units as runs.
#include <cmath>
#include <limits>
#include <tuple>

#include "transport/control/wire.h"

namespace lockstep::transport::control {
namespace {

// A range that is cut must be one that a product with a number of units does not overflow.
constexpr std::uint64_t kMaxCutSamples = std::uint64_t{1} << 40;
static_assert(kMaxUnits <= std::uint64_t{1} << 20);

bool Follows(const wire::MemberRun& run, const MemberId& id) {
  return id.incarnation.value == run.incarnation() &&
         id.worker.value == std::uint64_t{run.worker()} + run.count();
}

void Begin(const MemberId& id, wire::MemberRun* run) {
  run->set_worker(id.worker.value);
  run->set_incarnation(id.incarnation.value);
  run->set_count(1);
}

void Extend(wire::MemberRun* run) { run->set_count(run->count() + 1); }

wire::MemberRun& MembersOf(wire::MemberRun& run) { return run; }
wire::MemberRun& MembersOf(wire::OwnerRun& run) { return *run.mutable_owners(); }
template <class Run>
wire::MemberRun& MembersOf(Run& run) {
  return *run.mutable_members();
}
const wire::MemberRun& MembersOf(const wire::MemberRun& run) { return run; }
const wire::MemberRun& MembersOf(const wire::OwnerRun& run) { return run.owners(); }
template <class Run>
const wire::MemberRun& MembersOf(const Run& run) {
  return run.members();
}

// `member(item)` has its number, `same(run, item)` all else in common with the run's, and
// `put(item, run)` makes it so.
template <class In, class Run, class Member, class Same, class PutRest>
void PutRuns(const std::vector<In>& in, Runs<Run>* out, Member&& member, Same&& same,
             PutRest&& put) {
  Run* last = nullptr;
  for (const In& item : in) {
    const MemberId& id = member(item);
    if (last != nullptr && Follows(MembersOf(*last), id) && same(*last, item)) {
      Extend(&MembersOf(*last));
      continue;
    }
    last = out->Add();
    Begin(id, &MembersOf(*last));
    put(item, last);
  }
}

// `make(run, id)` is the item of one member.
template <class Out, class Run, class Make>
std::vector<Out> GetRuns(const Runs<Run>& in, std::size_t most, Checks& checks, Make&& make) {
  std::vector<Out> out;
  std::size_t all = 0;
  for (const Run& run : in) {
    const wire::MemberRun& members = MembersOf(run);
    all += members.count();
    checks.Require(all <= most, "too many entries");
    checks.Require(members.count() > 0, "a run of nobody");
    checks.Require(
        members.count() <= std::numeric_limits<std::uint32_t>::max() - members.worker() ||
            members.count() == 1,
        "numbers beyond all workers");
    if (!checks.wrong().empty()) return {};
    for (std::uint32_t i = 0; i < members.count(); ++i) {
      out.push_back(
          make(run, MemberId{WorkerId(members.worker() + i), Incarnation(members.incarnation())}));
    }
    if (!checks.wrong().empty()) return {};
  }
  return out;
}

std::uint64_t CutAt(const SampleRange& range, std::uint64_t i, std::uint64_t count) {
  return i == count ? range.to : range.from + range.size() * i / count;
}

// Of the units from `first` on: how many follow each other without a gap.
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

// How many units from `first` on make a run, of the `adjacent` that follow each other there: all of
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

void PutMembers(const std::vector<MemberId>& in, Runs<wire::MemberRun>* out) {
  PutRuns(
      in, out, [](const MemberId& id) -> const MemberId& { return id; },
      [](const wire::MemberRun&, const MemberId&) { return true; },
      [](const MemberId&, wire::MemberRun*) {});
}

void PutOwners(const std::vector<OwnerShare>& in, Runs<wire::OwnerRun>* out) {
  PutRuns(
      in, out, [](const OwnerShare& share) -> const MemberId& { return share.owner; },
      [](const wire::OwnerRun& run, const OwnerShare& share) {
        return run.weight() == share.weight;
      },
      [](const OwnerShare& share, wire::OwnerRun* run) { run->set_weight(share.weight); });
}

void PutParts(const std::vector<CommittedPart>& in, Runs<wire::PartRun>* out) {
  PutRuns(
      in, out, [](const CommittedPart& part) -> const MemberId& { return part.member; },
      [](const wire::PartRun& run, const CommittedPart& part) {
        return run.part() == part.part.value && run.weight() == part.weight &&
               run.samples() == part.samples;
      },
      [](const CommittedPart& part, wire::PartRun* run) {
        run->set_part(part.part.value);
        run->set_weight(part.weight);
        run->set_samples(part.samples);
      });
}

void PutReceived(const std::vector<ReceivedPart>& in, Runs<wire::ReceivedRun>* out) {
  PutRuns(
      in, out, [](const ReceivedPart& part) -> const MemberId& { return part.member; },
      [](const wire::ReceivedRun& run, const ReceivedPart& part) {
        return run.part() == part.part.value;
      },
      [](const ReceivedPart& part, wire::ReceivedRun* run) { run->set_part(part.part.value); });
}

void PutUnits(const std::vector<Unit>& in, Runs<wire::UnitRun>* out) {
  std::size_t adjacent = 0;  // from `first` on
  for (std::size_t first = 0; first < in.size();) {
    if (adjacent == 0) adjacent = Adjacent(in, first);
    const std::size_t count = RunFrom(in, first, adjacent);
    wire::UnitRun* run = out->Add();
    run->set_index(in[first].index.value);
    run->set_count(static_cast<std::uint32_t>(count));
    run->set_from(in[first].range.from);
    run->set_to(in[first + count - 1].range.to);
    first += count;
    adjacent -= count;
  }
}

void PutAssignments(const std::vector<Assignment>& in, wire::Plan* out) {
  std::vector<Unit> units;
  for (const Assignment& assignment : in) {
    units.insert(units.end(), assignment.units.begin(), assignment.units.end());
  }
  PutUnits(units, out->mutable_units());
  PutRuns(
      in, out->mutable_assignments(),
      [](const Assignment& assignment) -> const MemberId& { return assignment.member; },
      [](const wire::AssignmentRun& run, const Assignment& assignment) {
        return run.units() == assignment.units.size();
      },
      [](const Assignment& assignment, wire::AssignmentRun* run) {
        run->set_units(static_cast<std::uint32_t>(assignment.units.size()));
      });
}

std::vector<MemberId> GetMembers(const Runs<wire::MemberRun>& in, Checks& checks) {
  auto out = GetRuns<MemberId>(in, kMaxMembers, checks,
                               [](const wire::MemberRun&, const MemberId& id) { return id; });
  for (std::size_t i = 1; i < out.size(); ++i) {
    checks.Require(out[i - 1].worker < out[i].worker, "members out of order");
  }
  return out;
}

std::vector<OwnerShare> GetOwners(const Runs<wire::OwnerRun>& in, Checks& checks) {
  auto out = GetRuns<OwnerShare>(in, kMaxMembers, checks,
                                 [&](const wire::OwnerRun& run, const MemberId& id) {
                                   checks.Require(run.weight() > 0, "an owner without weight");
                                   return OwnerShare{id, run.weight()};
                                 });
  checks.Require(!out.empty(), "no owner");
  for (std::size_t i = 1; i < out.size(); ++i) {
    checks.Require(out[i - 1].owner.worker < out[i].owner.worker, "owners out of order");
  }
  return out;
}

std::vector<CommittedPart> GetParts(const Runs<wire::PartRun>& in, Checks& checks) {
  auto out = GetRuns<CommittedPart>(
      in, kMaxMembers * kMaxParts, checks, [&](const wire::PartRun& run, const MemberId& id) {
        checks.Require(std::isfinite(run.weight()), "a weight that is no number");
        return CommittedPart{id, GetPart(run.part(), checks), run.weight(), run.samples()};
      });
  for (std::size_t i = 1; i < out.size(); ++i) {
    checks.Require(std::tie(out[i - 1].member.worker, out[i - 1].part) <
                       std::tie(out[i].member.worker, out[i].part),
                   "parts out of order");
  }
  return out;
}

std::vector<ReceivedPart> GetReceived(const Runs<wire::ReceivedRun>& in, Checks& checks) {
  return GetRuns<ReceivedPart>(in, kMaxMembers * kMaxParts, checks,
                               [&](const wire::ReceivedRun& run, const MemberId& id) {
                                 return ReceivedPart{id, GetPart(run.part(), checks)};
                               });
}

std::vector<Unit> GetUnits(const Runs<wire::UnitRun>& in, Checks& checks) {
  std::vector<Unit> out;
  std::size_t all = 0;
  for (const wire::UnitRun& run : in) {
    const SampleRange whole{run.from(), run.to()};
    all += run.count();
    checks.Require(all <= kMaxUnits, "too many units");
    checks.Require(run.count() > 0, "a run of no units");
    checks.Require(run.from() <= run.to(), "a range that ends before it begins");
    checks.Require(run.count() == 1 || whole.size() <= kMaxCutSamples, "a range that is too long");
    checks.Require(
        run.count() <= std::numeric_limits<std::uint32_t>::max() - run.index() || run.count() == 1,
        "indices beyond all units");
    if (!checks.wrong().empty()) return {};
    for (std::uint32_t i = 0; i < run.count(); ++i) {
      out.push_back({UnitIndex(run.index() + i),
                     {CutAt(whole, i, run.count()), CutAt(whole, i + 1, run.count())}});
    }
  }
  return out;
}

std::vector<Assignment> GetAssignments(const wire::Plan& in, Checks& checks) {
  const std::vector<Unit> units = GetUnits(in.units(), checks);
  std::size_t taken = 0;
  auto out = GetRuns<Assignment>(
      in.assignments(), kMaxMembers, checks,
      [&](const wire::AssignmentRun& run, const MemberId& id) {
        checks.Require(run.units() <= units.size() - taken, "assignments without their units");
        if (!checks.wrong().empty()) return Assignment{id, {}};
        const auto begin = units.begin() + static_cast<std::ptrdiff_t>(taken);
        taken += run.units();
        return Assignment{id, {begin, begin + static_cast<std::ptrdiff_t>(run.units())}};
      });
  checks.Require(taken == units.size(), "units that nobody has");
  for (std::size_t i = 1; i < out.size(); ++i) {
    checks.Require(out[i - 1].member.worker < out[i].member.worker, "assignments out of order");
  }
  return out;
}

}  // namespace lockstep::transport::control
