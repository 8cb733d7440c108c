// Decides which samples a round computes, as ranges of positions in the epoch's sample order
// (base/permutation.h). Keeps I2: a position counts at most once in an epoch, and the epoch ends
// when each has been counted.
//
// A round goes through PlanRound -> Settle. Between the two its positions are out. No other round
// may be planned then, except relaxed rounds (PlanMore), whose work outlives them. The object is a
// value: copy it before Settle and assign the copy back to undo.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/interval_set.h"
#include "base/messages.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

struct PlannedUnits {
  Epoch epoch;
  std::vector<Unit> units;       // given-back ranges first; indices 0, 1, ...
  std::uint32_t given_back = 0;  // how many of them are of given-back ranges
  std::uint64_t samples = 0;
  bool exact = false;  // nothing of the epoch is left after these
};

class Sampler {
 public:
  // `epoch_samples` >= 1, `samples` in a round >= 1, 1 <= `units` <= samples.
  Sampler(std::uint64_t epoch_samples, std::uint64_t samples, std::uint32_t units);
  // Continues at a saved state between two rounds.
  Sampler(const SamplerState& state, std::uint64_t samples, std::uint32_t units);

  // Applies to rounds that are planned from now on.
  void SetUnits(std::uint32_t units);

  PlannedUnits PlanRound();
  // Plans at most `samples`, while other positions may be out; none when all the rest is out.
  PlannedUnits PlanMore(std::uint64_t samples);

  // Ends the planned round: `counted` is in the commit, and `kept` stays out. The rest comes again
  // in this epoch, lowest positions first. When nothing is left the next epoch begins.
  void Settle(const std::vector<SampleRange>& counted, const std::vector<SampleRange>& kept = {});

  Epoch epoch() const { return epoch_; }
  std::uint64_t epoch_samples() const { return epoch_samples_; }
  std::uint64_t counted() const { return counted_.positions(); }  // of this epoch
  // The job's progress in whole rounds: those of each earlier epoch, and the counted part of this
  // one, however many rounds that took.
  double WholeRounds() const;
  std::uint64_t given_back() const { return pool_.positions(); }
  std::size_t fragments() const { return pool_.fragments() + counted_.fragments(); }
  bool round_is_out() const { return !out_.empty(); }
  std::uint64_t round_samples() const { return round_samples_; }
  SamplerState State() const;  // what is out counts as not planned

 private:
  void AppendUnits(SampleRange range, std::vector<Unit>* units) const;

  std::uint64_t epoch_samples_;
  std::uint64_t round_samples_;
  std::uint64_t unit_samples_;  // upper bound
  Epoch epoch_;
  std::uint64_t fresh_ = 0;  // from here on never planned in this epoch
  // Invariants: pool_, out_ and counted_ are disjoint and lie before fresh_; together with what
  // lies behind it they are the epoch. An epoch ends when counted_ is all of it (I2).
  IntervalSet pool_;  // given back; at most round_samples_ positions
  IntervalSet out_;   // of the planned round
  IntervalSet counted_;
};

}  // namespace lockstep::coordinator
