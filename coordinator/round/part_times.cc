#include "coordinator/round/part_times.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {
namespace {

// Both ends are by the worker's own clock: a message's delay is no unit's time. Nor is what its run
// has cost: the units of short runs would seem slower than those of long ones.
void NoteUnits(const msg::Sealed& sealed, const RoundWork& work, Member* from) {
  Duration took{};
  Duration longest{};
  double units = 0;
  for (const UnitTiming& timing : sealed.units) {
    if (timing.end_ns <= timing.start_ns) continue;
    const Duration unit = Duration(timing.end_ns) - Duration(timing.start_ns);
    const double cost = work.CostOf(timing.unit.index);
    took += unit;
    longest = std::max(longest, FromSeconds(Seconds(unit) / cost));
    units += cost;
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
  from->unit_times.AddLongest(longest);
}

// Runs of different lengths show what a run costs beside its units.
void NoteRuns(const msg::Sealed& sealed, RunCost* cost) {
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

}  // namespace

void BoundTimes(const ClockOffset& clock, Time given, Time now, msg::Sealed* sealed) {
  LOCKSTEP_CHECK(given <= now, "round {}: units are given in the future", sealed->round);
  const std::int64_t earliest = clock.ToTheirs(given);
  const std::int64_t latest = clock.ToTheirs(now);
  std::int64_t left = latest - earliest;
  // The estimate may put all of the times outside of a short round.
  std::int64_t begin = sealed->units.empty() ? latest : sealed->units.front().start_ns;
  std::int64_t end = begin;
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

void NoteTimes(const msg::Sealed& sealed, const RoundWork& work, Member* from) {
  if (!work.knows_costs()) NoteRuns(sealed, &from->run_cost);
  NoteUnits(sealed, work, from);
}

// Were it forgotten, a worker that is always fenced or left out would keep the times of its better
// days, and get a share by them, for ever.
void NoteUnfinishedRun(const policies::WorkerView& view, RoundId round, Members* members) {
  Member& member = members->at(view.member.worker);
  // Not level: it is still in a run of an earlier round.
  if (member.id != view.member || !view.level || policies::Computed(view)) return;
  if (member.away()) return;  // its absence is no unit's time
  if (view.units_done > 0 && view.pace > member.unit_times.mean) member.unit_times.Add(view.pace);
  member.unfinished_run = UnfinishedRun{
      round, view.progressed_at,
      policies::CostOf(view, view.units_done, view.units_done + policies::InHand(view))};
}

void NoteEndOfRun(RoundId applied, Time now, Duration application, Member* from) {
  if (!from->unfinished_run || applied < from->unfinished_run->round) return;
  const UnfinishedRun run = *from->unfinished_run;
  from->unfinished_run.reset();
  const double units = run.cost + std::max(from->RunCostInUnits().value_or(0), 0.0);
  const Duration unit = FromSeconds(Seconds(now - run.since - application) / units);
  if (unit <= from->unit_times.mean) return;  // late, and no slower than it is known to be
  from->unit_times.Add(unit);
}

}  // namespace lockstep::coordinator
