// A round as the coordinator would show it to a policy, for tests: workers with units of a time of
// their own, on a clock that the test moves. Moves and cuts are carried out as the round machine
// does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/policy.h"

namespace lockstep::policies {

class RoundModel {
 public:
  RoundModel(std::uint32_t workers, std::uint32_t units_each, Duration unit_time) {
    Time at{std::chrono::seconds(1)};
    view_.started = view_.now = at;
    for (std::uint32_t i = 0; i < workers; ++i) {
      WorkerView worker;
      worker.member = {WorkerId(i), Incarnation(1)};
      worker.units_given = worker.units_planned = units_each;
      worker.takes_units = true;
      worker.runs = {.units = 1};
      worker.progressed_at = at;
      workers_.push_back(worker);
      times_.push_back(unit_time);
    }
    view_.configured_workers = view_.planned_workers = workers;
    Count();
  }

  static constexpr std::uint32_t kUnitSamples = 8;

  void SetUnitTime(std::uint32_t worker, Duration time) { times_[worker] = time; }
  void KnowUnitTimes() {
    for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i].unit_time_mean = times_[i];
  }
  WorkerView& worker(std::uint32_t i) { return workers_[i]; }
  RoundView& view() {
    Count();
    view_.samples_planned = 0;
    for (WorkerView& worker : workers_) {
      worker.samples_given = kUnitSamples * worker.units_given;
      view_.samples_planned += kUnitSamples * worker.units_planned;
    }
    view_.samples_wanted = view_.samples_planned;
    view_.workers = workers_;
    return view_;
  }
  Time now() const { return view_.now; }
  Duration age() const { return view_.now - view_.started; }
  bool Done() {
    Count();
    return view_.finished == view_.with_units;
  }

  // Everybody computes up to this time.
  void AdvanceTo(Time t) {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      WorkerView& worker = workers_[i];
      while (worker.units_done < worker.units_given && worker.progressed_at + times_[i] <= t) {
        worker.progressed_at += times_[i];
        ++worker.units_done;
        worker.pace =
            worker.pace == Duration{} ? times_[i] : worker.pace + (times_[i] - worker.pace) / 3;
        if (worker.units_done == worker.units_given) Seal(&worker, worker.progressed_at);
      }
      worker.units_taken = std::min(worker.units_given, worker.units_done + 1);
    }
    view_.now = t;
  }

  void CarryOut(const WorkVerdict& verdict) {
    for (const MoveUnits& move : verdict.moves) {
      WorkerView& from = workers_[move.from.value];
      WorkerView& to = workers_[move.to.value];
      const std::uint32_t units = std::min(move.units, from.units_given - from.units_taken);
      from.units_given -= units;
      if (from.units_given == from.units_done) Seal(&from, view_.now);
      if (to.units_done == to.units_given) to.progressed_at = view_.now;
      to.units_given += units;
      to.finished_at.reset();
      moved += units;
    }
    for (const WorkerId id : verdict.fence) {
      workers_[id.value].fenced = true;
      fenced.push_back(id.value);
    }
  }

  void Next() {
    ++view_.round.value;
    view_.started = view_.now;
    for (WorkerView& worker : workers_) {
      worker.units_given = worker.units_planned;
      worker.units_done = worker.units_taken = 0;
      worker.parts.clear();
      worker.finished_at.reset();
      worker.progressed_at = view_.now;
      worker.unit_time_mean = worker.pace > Duration{} ? worker.pace : worker.unit_time_mean;
      worker.pace = {};
      worker.fenced = false;
    }
  }

  std::uint32_t moved = 0;
  std::vector<std::uint32_t> fenced;

 private:
  static void Seal(WorkerView* worker, Time at) {
    std::uint64_t samples = kUnitSamples * worker->units_done;
    for (const PartView& part : worker->parts) samples -= part.samples;
    worker->parts.push_back(
        {PartIndex(static_cast<std::uint8_t>(worker->parts.size())), samples, at, at});
    worker->finished_at = at;
  }
  void Count() {
    view_.with_units = view_.finished = 0;
    for (const WorkerView& worker : workers_) {
      if (worker.fenced || worker.units_given == 0) continue;
      ++view_.with_units;
      view_.finished += worker.finished_at ? 1 : 0;
    }
  }

  std::vector<WorkerView> workers_;
  std::vector<Duration> times_;
  RoundView view_;
};

// Runs one round under the rule until all are done or `most` is over; looks every `step`.
inline void RunRound(WorkRule* rule, RoundModel* round, Duration step, Duration most) {
  while (!round->Done() && round->age() < most) {
    round->AdvanceTo(round->now() + step);
    round->CarryOut(rule->Judge(round->view()));
  }
}

}  // namespace lockstep::policies
