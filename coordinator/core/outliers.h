// Finds outliers among a job's finite numbers: a worker whose gradients are far larger or smaller
// than its peers', and a loss that has exploded. The warnings are for people: no contribution is
// left out because of them.
//
// Pure: closed rounds in, warnings out. The state is a few numbers for each worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

// Compares the norms of what the workers contributed to a round. The deviation of a norm is the
// logarithm of its ratio to the median worker's. A gradient over n samples has a norm between
// sqrt(n) (noise alone) and n (all alike) times a sample's, so what different n explain is nothing
// that is off. Per worker the mean of that over its last rounds counts, in which no single round
// weighs much: one hard batch says nothing.
//
// A worker is far off when its mean passes three limits: a factor of two, the noise of so many
// rounds, and five times the spread among the others. The spread is the median absolute deviation;
// it is large where each worker has data of its own. Or at once, when a single contribution is
// 1,000 times as large as the median and as any median was before. Of two workers the one with the
// larger norm is named, since nothing tells which one is right.
class GradientWatch {
 public:
  struct Norm {
    WorkerId worker;
    double squares = 0;  // of the gradient sum, added up
    double count = 0;    // samples, or what they count for
  };
  struct Change {
    WorkerId worker;
    bool far = false;     // it is from now on; else it is no longer
    double times = 1;     // its norm over the median worker's
    bool of_two = false;  // there is one other worker, and no median
  };

  explicit GradientWatch(std::uint32_t workers) : workers_(workers) {}

  // Each worker has at most one norm.
  std::vector<Change> OnRound(std::span<const Norm> norms);
  // Another process has its place.
  void Forget(WorkerId worker) { workers_[worker.value] = {}; }
  // The worker's norm over the median worker's, by its last rounds; nullopt: too few rounds.
  std::optional<double> Times(WorkerId worker) const;
  // Ascending.
  std::vector<Change> Far() const;

 private:
  struct Worker {
    std::uint32_t rounds = 0;
    double mean = 0;      // of how far off it is, each round's bounded
    double variance = 0;  // about that
    std::optional<Change> far;
    std::uint32_t calm = 0;  // rounds since it was last seen to be
  };
  // A contribution's deviations, as logarithms of norms over the median worker's.
  struct Off {
    double by = 0;       // what its count does not explain
    double largest = 0;  // over the largest usual norm of any round so far
  };

  std::vector<Off> OffsOf(std::span<const Norm> norms);
  // The spread among the other workers.
  double SpreadBeside(WorkerId worker, std::span<const Norm> norms) const;
  bool Lasting(WorkerId worker, std::span<const Norm> norms) const;
  void Note(Worker& worker, double off) const;

  std::vector<Worker> workers_;
  std::optional<double> largest_usual_;  // logarithm of the median worker's norm for each sample
};

// Compares the loss with this process' first rounds: its size differs by job, and it falls.
class LossWatch {
 public:
  // Takes the loss of a closed round. True: whether it has exploded has changed.
  bool OnRound(double loss);
  bool exploded() const { return exploded_; }
  double times() const { return times_; }  // over the largest of the first rounds

 private:
  std::uint32_t rounds_ = 0;
  double first_ = 0;      // magnitude
  double reference_ = 0;  // the largest of the first rounds, without those that explode
  double times_ = 0;
  std::uint32_t in_a_row_ = 0;  // beyond the limit, or within it once it has exploded
  bool exploded_ = false;
};

// Both, in words.
class Outliers {
 public:
  struct Line {
    bool warning = false;  // else what is over
    std::string text;
  };

  explicit Outliers(std::uint32_t workers) : gradients_(workers) {}

  // Returns what this closed round has changed.
  std::vector<Line> OnClosed(const RoundRecord& record);
  void OnOut(WorkerId worker) { gradients_.Forget(worker); }
  // The warnings that still hold, for the status.
  std::vector<std::string> Standing() const;
  std::optional<double> Times(WorkerId worker) const { return gradients_.Times(worker); }

 private:
  std::string LossText() const;

  GradientWatch gradients_;
  LossWatch loss_;
  double last_loss_ = 0;
};

}  // namespace lockstep::coordinator
