#include "coordinator/round/round_view.h"

#include <algorithm>

#include "base/check.h"
#include "policies/outlook.h"

namespace lockstep::coordinator {

// Copies, so that a policy sees plain values and nobody asks the table of members in a verdict.
void CopyHistory(const Member& member, policies::WorkerView* view) {
  view->last_heard = member.last_heard;
  view->unit_time_mean = member.unit_times.mean;
  view->unit_time_deviation = member.unit_times.deviation;
  view->unit_time_longest = member.unit_times.Longest();
  view->run_cost = member.RunCostInUnits();
}

void Renew(const WorkerShare& share, std::uint64_t samples, Time now, policies::WorkerView* view) {
  view->units_given = static_cast<std::uint32_t>(share.queue.size());
  // Progress that was reported may speak of units that have been given back since.
  view->units_done = std::clamp(view->units_done, share.sealed_units, view->units_given);
  view->units_taken = std::clamp(view->units_taken, view->units_done, view->units_given);
  view->takes_units = share.HasRoom() && !view->fenced && !share.away;
  view->revoking = share.revoke.has_value();
  view->samples_given = samples;
  view->parts.clear();
  bool all_delivered = share.sealed_units == share.queue.size();
  for (std::size_t i = 0; i < share.parts.size(); ++i) {
    const SealedPart& part = share.parts[i];
    if (part.is_void) continue;
    view->parts.push_back(
        {PartIndex(static_cast<std::uint8_t>(i)), part.samples, part.ready_at, part.delivered_at});
    all_delivered = all_delivered && part.delivered_at.has_value();
  }
  if (!all_delivered) {
    view->finished_at.reset();
  } else if (!view->finished_at) {
    view->finished_at = now;
  }
}

// A third of what is new, and more of it the more units it is: a single slow unit does not make a
// slow worker. The first sample includes the round's beginning, where the last round's sums are
// taken and applied. So it counts only where nothing else is known.
void NotePace(std::uint32_t done, Time now, policies::WorkerView* view) {
  const std::uint32_t units = done - std::min(done, view->units_done);
  LOCKSTEP_CHECK(units > 0 && now >= view->progressed_at, "worker {} makes progress by {} units",
                 view->member.worker, units);
  // Beside the cost of the run that they were.
  const double cost = policies::CostOf(*view, view->units_done, done);
  const double run = cost + policies::RunCostOf(*view);
  const Duration sample =
      std::max(FromSeconds(Seconds(now - view->progressed_at) / run), Duration(1));
  const bool first = view->pace == Duration{};
  view->progressed_at = now;
  if (first) {
    view->pace = view->unit_time_mean > Duration{} ? view->unit_time_mean : sample;
  } else {
    view->pace += view->cost_before.empty()
                      ? (sample - view->pace) * units / (units + 2)
                      : FromSeconds(Seconds(sample - view->pace) * cost / (cost + 2));
  }
}

void NoteLevel(const Member& member, RoundId round, bool relaxed, Time now,
               policies::WorkerView* view) {
  if (!view->level && member.next >= round && view->units_done == 0 && !relaxed) {
    view->progressed_at = now;  // it could not begin before
  }
  view->level = member.next >= round;
}

Hypothetical::Hypothetical(const policies::RoundView& now, std::span<const WorkerShare> shares)
    : workers(now.workers.begin(), now.workers.end()), view(now) {
  view.finished = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    policies::WorkerView& worker = workers[i];
    for (policies::PartView& part : worker.parts) part.delivered_at = part.ready_at;
    const bool sealed = shares[i].sealed_units == shares[i].queue.size();
    if (sealed && !worker.finished_at) worker.finished_at = now.now;
    if (worker.units_given > 0 && worker.finished_at) ++view.finished;
  }
  view.workers = workers;
  view.changes = nullptr;
}

}  // namespace lockstep::coordinator
