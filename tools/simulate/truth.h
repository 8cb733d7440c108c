// Computes the correct result of each round. It sums the sealed contributions of a commit by
// itself, in one place, and compares each worker's state after each update bit by bit (I1, I3, I4).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/messages.h"
#include "tools/simulate/memory.h"
#include "tools/simulate/residuals.h"

namespace lockstep::simulate {

class Truth {
 public:
  // `sharded`: nobody has the whole state (optimizer.replicas). So workers' state is compared where
  // they hold it (OnHeld), and elsewhere only the parameters. `own_parameters`: each worker draws
  // its own, and the job begins with those of one.
  Truth(worker::Layout layout, double clip, bool sharded = false, bool own_parameters = false)
      : layout_(std::move(layout)),
        clip_(clip),
        sharded_(sharded),
        own_parameters_(own_parameters) {
    if (!own_parameters) initial_ = InitialState(layout_);
  }

  bool own_parameters() const { return own_parameters_; }
  // The worker's own initial state; the job may begin with it.
  State Draw(const MemberId& member);
  // The worker begins with this state.
  void OnBegun(const MemberId& member, const State& state);

  // The coordinator commits this.
  void OnCommit(const msg::Commit& commit);
  // It also takes another plan of a round that begins again, in which all have their first part
  // again.
  void OnPlan(const Plan& plan);
  // A worker has sealed a part, with these parameters.
  void OnSealed(const MemberId& member, RoundId round, PartIndex part, std::vector<float> gradient,
                const State& state);
  // Where not all of a gradient is sent: these numbers of this gradient (Residuals). `factors`:
  // those of the state with which the work was computed, if any.
  void OnSent(const MemberId& member, RoundId round, PartIndex part,
              std::span<const float> gradient, std::span<const float> sent,
              std::span<const float> factors);
  // The member reports that it has applied the round.
  void OnSaidApplied(const MemberId& member, RoundId round, Attempt attempt);
  // The member has done this update and has this state now, or reports so.
  void OnApplied(const MemberId& member, RoundId round, Attempt attempt, const State& state);
  // The member has this state of these ranges after the round.
  void OnHeld(const MemberId& member, RoundId round, Attempt attempt,
              const std::vector<FloatRange>& ranges, const State& state);
  // The member has caught up.
  void OnLevel(const MemberId& member, RoundId next, const State& state);
  // A checkpoint of the state before round `next`.
  void OnCheckpoint(RoundId next, const State& state);
  // The job continues after a checkpoint: later work is void.
  void OnResumed(RoundId next, State state);
  // It goes on under another coordinator from what workers hold before round `next`: what one of
  // the attempts at the round before came to, the same for all of them.
  void OnTakenOver(RoundId next);
  // A worker that was stopped meanwhile may go on for a while as the coordinator before has told
  // it, outside the job. True: it began before the death that the takeover is of.
  void OnCrashed() { ++crashes_; }
  std::uint32_t crashes() const { return crashes_; }
  bool IsOld(std::uint32_t began_after) const { return began_after < taken_over_after_; }
  void OnHolds(const MemberId& member, RoundId next, const State& state,
               const std::vector<FloatRange>& ranges);
  void Complain(const MemberId& member, const std::string& what);

  // Whether all values of the latest known state are numbers.
  bool Finite() const;

  const worker::Layout& layout() const { return layout_; }
  const std::vector<std::string>& errors() const { return errors_; }
  std::uint64_t applied() const { return applied_; }      // updates compared
  std::uint64_t caught_up() const { return caught_up_; }  // copied states that were compared
  const Residuals& residuals() const { return residuals_; }
  const worker::Factors& factors() const { return factors_; }

 private:
  struct Known {
    Attempt attempt;
    State state;
    std::uint64_t digest = 0;
  };
  struct SealedPart {
    std::vector<float> gradient;
    std::uint64_t state_digest = 0;  // of the state with which it was computed
    std::uint64_t sequence = 0;
  };
  using PartKey = std::tuple<MemberId, RoundId, PartIndex>;
  // A relaxed round may commit a part that was sealed as work of an earlier one: the last one that
  // the worker had sealed at the commit.
  void Choose(const msg::Commit& commit);
  const SealedPart* FindSealed(const msg::Commit& commit, const CommittedPart& part) const;
  bool AddParts(const msg::Commit& commit, const MemberId* of, bool first,
                std::vector<float>* sum) const;
  std::optional<std::vector<float>> SumOfTree(const msg::Commit& commit, std::uint32_t shard,
                                              const MemberId& member) const;
  std::optional<std::vector<float>> SumOf(const msg::Commit& commit) const;
  std::optional<State> Compute(const msg::Commit& commit);
  // Notes the result of the attempt; false: it is unknown.
  bool Learn(const msg::Commit& commit);
  std::uint64_t DigestOf(const State& state) const;
  std::string CheckApplied(RoundId round, Attempt attempt, const State& state);
  void CheckContributors(const msg::Commit& commit);

  const worker::Layout layout_;
  const double clip_;
  const bool sharded_;
  const bool own_parameters_;
  std::uint32_t crashes_ = 0;           // of the coordinator
  std::uint32_t taken_over_after_ = 0;  // as many of them
  bool same_for_all_ = true;            // false: the first that holds something decides
  std::vector<State> drawn_;            // by who was told that the job begins with its parameters
  std::optional<State> initial_;        // before round 0; none: not known yet
  RoundId oldest_;                      // that is still known
  std::map<std::pair<RoundId, Attempt>, msg::Commit> commits_;
  std::map<PartKey, SealedPart> sealed_;  // by the round in which the work began
  std::uint64_t next_sequence_ = 0;
  std::map<PartKey, PartKey> chosen_;  // of the parts of relaxed rounds
  std::map<RoundId, Known> truth_;     // after the round
  std::map<RoundId, Attempt> plans_;   // Plan::attempt
  std::set<RoundId> relaxed_;
  std::vector<std::string> errors_;
  std::uint64_t applied_ = 0;
  std::uint64_t caught_up_ = 0;
  const worker::Factors factors_{layout_, worker::NumberType::kFp32, /*seed=*/7};
  Residuals residuals_{layout_, factors_};
};

}  // namespace lockstep::simulate
