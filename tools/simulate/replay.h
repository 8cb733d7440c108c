// What if: the measured times of a run, played under other policies.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "coordinator/job/records.h"
#include "tools/simulate/compute_model.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {

// A quantity that was measured now and then: between two measurements it is interpolated, before
// the first and after the last it is that one.
class Measured {
 public:
  void Add(double at, double value) { points_.push_back({at, value}); }
  void Sort();
  bool empty() const { return points_.empty(); }
  double At(double at) const;
  double Median() const;
  double Longest() const;

 private:
  struct Point {
    double at;
    double value;
  };
  std::vector<Point> points_;
};

// How long a worker's units took without their part of their runs' cost, by rounds. At a time it is
// that of any unit of the round that was computed then, each as likely as the others: what differs
// by unit keeps its distribution, what differs by time its place. (Taking the unit that was
// computed at that time would meet the long ones too often, a mean of neighbours none of the
// extremes.)
class UnitTimes {
 public:
  // So many units, each of so many seconds, of the round that started at `round_start`; rounds come
  // in order.
  void Add(double round_start, double seconds, std::uint64_t units = 1);
  bool empty() const { return rounds_.empty(); }
  // Of the first round before the first one starts.
  double Draw(double at, RandomStream& random) const;
  double MedianAt(double at) const;
  double Median() const;
  void ForEach(const std::function<void(double round_start, double seconds, std::uint64_t units)>&
                   visit) const;

 private:
  struct Equal {
    double seconds;
    std::uint64_t units;  // of this and of all before it
  };
  struct Round {
    double start;
    std::vector<Equal> times;
  };
  const Round& RoundAt(double at) const;

  std::vector<Round> rounds_;
};

// Of each worker of a run; seconds since the job's start.
struct WorkerTimes {
  UnitTimes unit;
  Measured delivery;  // from its last unit's end until its part was delivered
  Measured begin;     // from a commit until it began with the next round
  // Rounds in which it had units and was left out: of those it is only known that its units took
  // longer than this (by the round's start).
  std::vector<std::pair<double, double>> unit_at_least;
  std::uint64_t rounds_excluded = 0;
};

struct RunTimes {
  std::vector<WorkerTimes> workers;
  std::uint64_t rounds = 0;
  std::uint64_t samples = 0;        // counted
  std::uint64_t epoch_samples = 0;  // at least
  double unit_samples = 0;          // of a usual unit
  // What a run took beside its units, in times of a usual one; 0 where it is not known, as where
  // all of a worker's runs in a round were of one length.
  double run_cost = 0;
  double seconds = 0;  // from the first round's start to the last commit
  // Under which its rounds were closed, each once and in the order in which they came: more than
  // one where it was changed while the job ran, or the job was resumed under another.
  std::vector<std::string> policies;
};

// kInvalid or kNotFound, one line.
Result<RunTimes> MeasureRun(const std::vector<coordinator::RoundRecord>& records);
Result<std::vector<coordinator::RoundRecord>> ReadRounds(const std::string& run_dir);
// `name` stands for the file in messages.
Result<std::vector<coordinator::RoundRecord>> ReadRounds(std::istream& lines,
                                                         const std::string& name);
// Whether a job of this config can have been that run. kInvalid, one line.
Status CheckReplay(const JobConfig& job, const RunTimes& run);

class ReplayCompute final : public ComputeModel {
 public:
  // `per_sample`: a shorter unit takes less time; else all take the same.
  ReplayCompute(const RunTimes* run, Time start, bool per_sample)
      : run_(run), start_(start), per_sample_(per_sample) {}
  Duration UnitTime(WorkerId worker, Time now, RoundId round, const Unit& unit, std::uint32_t run,
                    RandomStream& random) override;

 private:
  const RunTimes* run_;
  const Time start_;
  const bool per_sample_;
};

struct Prediction {
  std::string policy;
  double seconds = 0;  // from the first round's start to the last commit
  std::uint64_t rounds = 0;
  std::uint64_t samples = 0;
  bool operator==(const Prediction&) const = default;
};

// The run's job under one policy.
Result<Prediction> Predict(const SimulateOptions& options, const RunTimes& run,
                           const std::string& policy);

// Reads options.replay, plays it under the policies that are asked for, and gives the table.
Result<std::string> Replay(const SimulateOptions& options);

}  // namespace lockstep::simulate
