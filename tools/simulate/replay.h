// Plays the measured times of a run under other policies.
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
#include "tools/simulate/range_times.h"

namespace lockstep::simulate {

// A quantity that was measured now and then. Between two measurements it is interpolated; before
// the first and after the last it is constant.
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

// How long a worker's units took, without their part of their runs' cost, by rounds. At any time it
// is the time of a unit of the round that was computed then, each unit as likely as the others. So
// differences between units keep their distribution, and differences over time their place. (The
// unit that was computed at exactly that time would be a long one too often, and a mean of
// neighbours would lose the extremes.)
class UnitTimes {
 public:
  // Adds so many units, each of so many seconds, of the round that started at `round_start`; rounds
  // come in order.
  void Add(double round_start, double seconds, std::uint64_t units = 1);
  bool empty() const { return rounds_.empty(); }
  // Before the first round's start, it draws from the first round.
  double Draw(double at, RandomStream& random) const;
  double MedianAt(double at) const;
  double Median() const;
  void ForEach(const std::function<void(double round_start, double seconds, std::uint64_t units)>&
                   visit) const;

 private:
  struct Equal {
    double seconds;
    std::uint64_t units;  // of this round and all before it
  };
  struct Round {
    double start;
    std::vector<Equal> times;
  };
  const Round& RoundAt(double at) const;

  std::vector<Round> rounds_;
};

// The times of each worker of a run, in seconds since the first round's start.
struct WorkerTimes {
  UnitTimes unit;
  Measured delivery;  // from its last unit's end until its part was delivered
  Measured begin;     // from a commit until it began with the next round
  // Rounds in which it had units and was left out, by the round's start: it is only known that its
  // units took longer than this.
  std::vector<std::pair<double, double>> unit_at_least;
  std::uint64_t rounds_excluded = 0;
};

struct RunTimes {
  std::vector<WorkerTimes> workers;
  RangeTimes ranges;
  // How long each worker takes beside the others, if units' times belong to their samples; else
  // nothing.
  std::vector<double> factors;
  std::uint64_t rounds = 0;
  std::uint64_t samples = 0;        // counted
  std::uint64_t epoch_samples = 0;  // at least
  double unit_samples = 0;          // of a usual unit
  // The time of a run beside its units, in times of a usual one. It is 0 where it is unknown, for
  // instance where all of a worker's runs in a round had one length.
  double run_cost = 0;
  double seconds = 0;  // from the first round's start to the last commit
  // The policies under which its rounds were closed, each once and in order. There is more than one
  // when it was changed during the job, or the job was resumed under another.
  std::vector<std::string> policies;
};

// Returns kInvalid or kNotFound with one line.
Result<RunTimes> MeasureRun(const std::vector<coordinator::RoundRecord>& records);
Result<std::vector<coordinator::RoundRecord>> ReadRounds(const std::string& run_dir);
// `name` stands for the file in messages.
Result<std::vector<coordinator::RoundRecord>> ReadRounds(std::istream& lines,
                                                         const std::string& name);
// Checks that a job of this config can have been that run. Returns kInvalid with one line.
Status CheckReplay(const JobConfig& job, const RunTimes& run);

// A unit takes the time of its samples in the run, if the same worker computed them at about the
// same time. Where times belong to samples, any worker did, and speeds are taken into account. All
// other times are drawn from the worker's.
class ReplayCompute final : public ComputeModel {
 public:
  // `per_sample`: a shorter unit takes less time; otherwise all take the same.
  ReplayCompute(const RunTimes* run, Time start, bool per_sample)
      : run_(run), start_(start), per_sample_(per_sample) {}
  Duration UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch, const Unit& unit,
                    std::uint32_t run, RandomStream& random) override;

 private:
  std::optional<double> Recorded(WorkerId worker, double at, Epoch epoch,
                                 const SampleRange& range) const;

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

// Predicts the run's job under one policy.
Result<Prediction> Predict(const SimulateOptions& options, const RunTimes& run,
                           const std::string& policy);

// Reads options.replay, plays it under the requested policies, and returns the table.
Result<std::string> Replay(const SimulateOptions& options);

}  // namespace lockstep::simulate
