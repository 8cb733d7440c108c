#include "coordinator/core/from_round.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {
namespace {

// Dividing a run's time evenly leaves as much.
constexpr std::int64_t kSameTimeNs = 1;

// Goes on where `last` ends, and took as long as `unit`, its last one.
bool ContinuesEvenly(const UnitTiming& next, const UnitTiming& unit) {
  const std::int64_t longer = (next.end_ns - next.start_ns) - (unit.end_ns - unit.start_ns);
  return next.unit.range.from == unit.unit.range.to && next.start_ns == unit.end_ns &&
         longer >= -kSameTimeNs && longer <= kSameTimeNs;
}

// A round of fine units has hundreds, of which it is mostly known only when their run was computed.
void RecordUnits(const Job& job, WorkerId worker, const SealedPart& part, RoundRecord* record) {
  const auto since_start = [&](std::int64_t worker_ns) {
    return job.SinceStart(part.clock.ToOurs(worker_ns) - job.stopped());
  };
  std::size_t run = 0;
  std::uint64_t left = 0;  // of the run
  const UnitTiming* before = nullptr;
  for (const UnitTiming& timing : part.units) {
    const bool begins = left == 0;
    if (begins) left = run < part.runs.size() ? part.runs[run++] : 1;
    if (!begins && ContinuesEvenly(timing, *before)) {
      UnitRecord& same = record->units.back();
      same.range.to = timing.unit.range.to;
      same.end = since_start(timing.end_ns);
      ++same.units;
    } else {
      record->units.push_back({worker, timing.unit.range, since_start(timing.start_ns),
                               since_start(timing.end_ns), 1,
                               part.runs.empty() ? 1 : part.runs[run - 1]});
    }
    --left;
    before = &timing;
  }
}

// No longer than its runs took, of which it is a part.
Duration Waited(const SealedPart& part) {
  std::int64_t took = 0;
  for (const UnitTiming& timing : part.units) took += timing.end_ns - timing.start_ns;
  const auto most = static_cast<std::uint64_t>(took);
  return Duration(static_cast<std::int64_t>(std::min(part.reading.waited_ns.value_or(0), most)));
}

// How much of its lateness is due to its units, not to its speed. With known costs that is what
// they cost beyond those of the median worker. If times only were found to belong to the data, it
// is what the worker's usual unit times do not explain.
Duration LateByData(const RoundWork& work, const policies::WorkerView& late_one, bool times_of_data,
                    Duration late, const Members& members) {
  const Duration unit = members.MedianUnitTime();
  Duration by_data{};
  if (work.knows_costs()) {
    const auto cost = [](const policies::WorkerView& view) {
      return policies::CostOf(view, 0, view.units_done);
    };
    std::vector<double> costs;
    for (const policies::WorkerView& view : work.workers()) {
      if (view.finished_at) costs.push_back(cost(view));
    }
    const auto middle = costs.begin() + (std::ssize(costs) - 1) / 2;
    std::nth_element(costs.begin(), middle, costs.end());
    by_data = FromSeconds(Seconds(unit) * (cost(late_one) - *middle));
  } else if (times_of_data) {
    by_data = late - (late_one.unit_time_mean - unit) * late_one.units_done;
  }
  return std::clamp(by_data, Duration{}, late);
}

}  // namespace

RoundRecord MakeRecord(const Job& job, const ClosedRound& closed) {
  const CommittedRound& round = closed.round;
  const msg::Commit& commit = round.commit();
  const RoundWork& work = round.work();
  const CommittedRound::History& history = round.history();
  RoundRecord record;
  record.round = commit.round;
  record.epoch = commit.epoch;
  record.attempts = history.attempts;
  record.algorithm = round.commit().owners.algorithm;
  record.policy = history.policy;
  record.reason = history.verdict;
  record.samples = commit.samples;
  record.update = commit.update;
  record.learning_rate = commit.learning_rate * commit.fraction;
  record.start = job.SinceStart(work.started());
  record.commit = job.SinceStart(round.committed_at());
  if (round.applied_at()) record.applied = job.SinceStart(*round.applied_at());
  record.moved = work.moved();
  record.digest = closed.digest;

  record.contributors.reserve(commit.parts.size());
  record.units.reserve(commit.parts.size());
  IntervalSet counted;
  std::uint64_t divisor = 0;
  for (const CommittedPart& part : commit.parts) {
    const WorkerId worker = part.member.worker;
    const SealedPart& sealed = *work.Part(worker, part.part);
    IntervalSet ranges;
    for (const UnitTiming& timing : sealed.units) {
      LOCKSTEP_CHECK(ranges.Add(timing.unit.range) && counted.Add(timing.unit.range),
                     "a sample counts twice in round {}", commit.round);
    }
    RecordUnits(job, worker, sealed, &record);
    std::optional<std::uint64_t> staleness;
    if (work.relaxed()) {
      staleness = commit.round.value - work.WorkerViewOf(worker)->base.value;
    }
    record.contributors.push_back({worker, part.part, part.weight, part.samples, ranges.Ranges(),
                                   staleness, sealed.divisor, sealed.sampled_squares});
    divisor += sealed.divisor;
    if (sealed.reading.waited_ns) {
      record.input_wait[worker] += Seconds(Waited(sealed));
    }
    record.sent.bytes += sealed.sent.all;
    record.sent.early_bytes += sealed.sent.early;
    record.sending.erase(worker);
    if (sealed.sent.early > 0) {
      record.sending.insert_or_assign(
          record.sending.end(), worker,
          job.SinceStart(sealed.clock.ToOurs(sealed.sent.since_ns) - job.stopped()));
    }
    // Parts are in the order of their workers.
    record.ready.insert_or_assign(record.ready.end(), worker, job.SinceStart(sealed.ready_at));
    if (sealed.delivered_at) {
      record.delivered.insert_or_assign(record.delivered.end(), worker,
                                        job.SinceStart(*sealed.delivered_at));
    }
  }
  if (divisor != record.samples) record.divisor = divisor;
  record.loss = commit.loss;
  record.metrics = commit.metrics;
  for (const WorkerShare& share : work.shares()) {
    const WorkerId worker = share.member.worker;
    if (share.queue.empty() || record.ready.contains(worker)) continue;
    (std::ranges::binary_search(history.carried, worker) ? record.carried : record.excluded)
        .push_back(worker);
  }
  for (const SampleRange& range : work.RangesOf(history.carried)) {
    LOCKSTEP_CHECK(counted.Add(range), "round {} counts work that goes on", commit.round);
  }
  std::map<WorkerId, IntervalSet> skipped;
  for (const RoundWork::Skipped& part : work.skipped()) {
    LOCKSTEP_CHECK(skipped[part.worker].Add(part.range) && counted.Add(part.range),
                   "round {} counts what it skipped", commit.round);
  }
  (closed.follows ? record.requeued : record.dropped) = work.RangesLess(counted);
  for (const auto& [worker, ranges] : skipped) {
    record.skipped.push_back({worker, ranges.Ranges()});
    const auto& of_worker = record.skipped.back().ranges;
    record.dropped.insert(record.dropped.end(), of_worker.begin(), of_worker.end());
  }
  std::ranges::sort(record.dropped);
  return record;
}

// A unit may change hands several times, and come back: what counts is who has it in the end.
std::uint64_t SamplesMoved(const std::vector<MoveRecord>& moves) {
  struct Way {
    WorkerId planned;
    WorkerId last;
    std::uint64_t samples = 0;
  };
  std::map<std::uint64_t, Way> ways;  // by the unit's first position
  for (const MoveRecord& move : moves) {
    Way& way =
        ways.try_emplace(move.range.from, Way{move.from, move.to, move.range.size()}).first->second;
    way.last = move.to;
  }
  std::uint64_t samples = 0;
  for (const auto& [first, way] : ways) samples += way.last != way.planned ? way.samples : 0;
  return samples;
}

void AddTotals(const RoundRecord& record, std::uint32_t epochs, Totals* totals) {
  totals->rounds += 1;
  totals->samples_counted += record.samples;
  totals->samples_requeued += SizeOf(record.requeued);
  for (const SkippedRecord& skipped : record.skipped) {
    totals->samples_dropped += SizeOf(skipped.ranges);
  }
  totals->samples_moved += SamplesMoved(record.moved);
  totals->epochs = epochs;
}

void NoteRound(const ClosedRound& closed, const RoundRecord& record, bool times_of_data,
               ClosedAccount* account, Members* members) {
  const CommittedRound& round = closed.round;
  AddTotals(record, closed.epochs, &account->totals);
  account->totals.samples_dropped += closed.never_counted;
  account->sent.bytes += record.sent.bytes;
  account->sent.early_bytes += record.sent.early_bytes;
  account->train_loss = record.loss;
  account->metrics = record.metrics;

  const RoundWork& work = round.work();
  const CommittedRound::History& history = round.history();
  std::vector<Time> finished;
  // Estimates the round's time with equal shares and a wait for all.
  std::uint32_t planned = 0;
  std::uint32_t units = 0;
  for (const policies::WorkerView& view : work.workers()) {
    planned += view.units_planned > 0 ? 1 : 0;
    units += view.units_planned;
  }
  // Some equal shares have a unit more, where the units do not divide evenly: the worker that was
  // planned one has it.
  const std::uint32_t least = planned > 0 ? units / planned : 0;
  const std::uint32_t most = planned > 0 ? (units + planned - 1) / planned : 0;
  // A round of equal shares that left nobody out and moved nothing has waited for all: what it took
  // less than the usual unit times say is noise, not saved.
  const bool waited_for_all =
      record.moved.empty() && record.excluded.empty() && record.requeued.empty() &&
      std::ranges::all_of(work.workers(), [&](const policies::WorkerView& view) {
        return view.units_planned == 0 ||
               (view.units_planned >= least && view.units_planned <= most);
      });
  Time last_possible = history.first_committed_at;
  for (const WorkerShare& share : work.shares()) {
    Member& member = members->at(share.member.worker);
    if (member.id != share.member) continue;
    const policies::WorkerView& view = *work.WorkerViewOf(share.member.worker);
    if (std::ranges::binary_search(history.carried, share.member.worker)) continue;
    if (view.units_planned > 0 && !waited_for_all) {
      const std::uint32_t equal = std::clamp(view.units_planned, least, most);
      const Time possible = work.started() + view.unit_time_mean * equal;
      member.would_have_blocked += std::max(possible - history.first_committed_at, Duration{});
      last_possible = std::max(last_possible, possible);
    }
    if (share.queue.empty()) continue;
    if (member.contributed == round.round()) {
      ++member.rounds_contributed;
    } else {
      ++member.rounds_excluded;
    }
    if (view.finished_at) finished.push_back(*view.finished_at);
  }
  // A relaxed round waits for nobody, and is no part of a job that would have waited for all.
  if (work.relaxed()) return;
  account->saved_seconds += Seconds(last_possible - history.first_committed_at);
  if (finished.size() < 2) return;

  const auto middle = finished.begin() + static_cast<std::ptrdiff_t>((finished.size() - 1) / 2);
  std::nth_element(finished.begin(), middle, finished.end());
  const Time median = *middle;
  const policies::WorkerView* last = nullptr;
  for (const policies::WorkerView& view : work.workers()) {
    if (view.units_given == 0 || !view.finished_at) continue;
    if (last == nullptr || *view.finished_at > *last->finished_at) last = &view;
  }
  if (last == nullptr || last->parts.empty() || *last->finished_at <= median) return;
  Member& slowest = members->at(last->member.worker);
  if (slowest.id != last->member) return;
  const Time ready = std::min(last->parts.back().ready_at, *last->finished_at);
  const Duration late = std::max(ready - median, Duration{});
  const Duration by_data = LateByData(work, *last, times_of_data, late, *members);
  slowest.blocked_by_data += by_data;
  slowest.blocked_by_compute += late - by_data;
  slowest.blocked_by_link += *last->finished_at - std::max(ready, median);
}

}  // namespace lockstep::coordinator
