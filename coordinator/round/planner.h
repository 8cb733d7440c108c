// Who computes what in the next round, and who owns.
//
// In: the members as they are now, the policy's work rule, the sampler, and of a relaxed round the
// work that goes on. Out: a Plan, or an owner map. The planner sends nothing and changes no round;
// what it keeps is what lasts longer than one: how owners have done (owner_weights.h), and which
// versions of owner maps there have been.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/round/algorithm_choice.h"
#include "coordinator/round/owner_weights.h"
#include "coordinator/round/round_work.h"
#include "coordinator/round/sampler.h"
#include "coordinator/round/state_replicas.h"

namespace lockstep::coordinator {

struct PlannedRound {
  Plan plan;
  bool exact = false;  // nothing of the epoch is left after it
};

// Of a relaxed round that is committed: what these workers have begun goes on in the next one.
struct CarriedWork {
  const RoundWork* work = nullptr;
  const std::vector<WorkerId>* workers = nullptr;  // ascending
};

// Into how many units a round's samples are cut; where none are configured, as many as the policy
// has use for, but so many that none is above `bound`. Where that has units computed one by one, of
// one size, if that can be.
std::uint32_t UnitsPerRound(const StartParameters& start, const policies::Policy& policy,
                            const RunBound& bound);
// Under any policy that the job may change to, with whatever bounds its workers have.
std::uint32_t MostUnits(const StartParameters& start);
// That of each kind which no live member's is below; 0: nobody has one.
RunBound LeastBound(const Members& members);

class Planner {
 public:
  explicit Planner(Job* job);

  // Takes the round's samples out of `sampler`. `updates`: made before. The owner map's version is
  // `version`, or more: see newest_version_.
  PlannedRound PlanRound(RoundId round, std::uint32_t version, std::uint64_t updates,
                         const std::optional<CarriedWork>& carried, Sampler* sampler);
  // Where the schedule of the learning rate is before the round that comes behind `updates` of them
  // and what `sampler` has counted: in a job that ends by its rounds each is one; in one that ends
  // by its epochs rounds may close over less, and be more, so it is by what was counted.
  double SchedulePosition(const Sampler& sampler, std::uint64_t updates) const;

  // A map of its own for a round that has been planned: `version` is above that of all it had.
  // Without candidates: out of all who may own.
  OwnerMap ChooseOwners(RoundId round, std::uint32_t version);
  OwnerMap ChooseOwners(RoundId round, std::uint32_t version, std::span<const MemberId> candidates);

  // Who may compute the round: live members that have applied the round before the last one at
  // least. `exact`: those of them that have contributed lately, if there are any.
  std::vector<MemberId> EligibleFor(RoundId round, bool exact) const;

  // The latest round that was ever planned; nothing before the first.
  std::optional<RoundId> newest() const { return newest_; }

  // --- how owners do
  void NotePublished(std::span<const MemberId> owners, std::span<const Duration> took) {
    weights_.OnRoundPublished(owners, took);
  }
  // Of a round that is about to be committed.
  void NoteResponses(const RoundWork& work);

  // --- which algorithm the exchange takes
  const AlgorithmChoice& algorithm() const { return algorithm_; }
  void NoteExchange(ExchangeAlgorithm algorithm, Duration took) {
    algorithm_.OnRound(algorithm, took);
  }

  // Who holds the optimizer's state, where not everybody does.
  StateReplicas& replicas() { return replicas_; }
  const StateReplicas& replicas() const { return replicas_; }

  void CheckInvariants() const { weights_.CheckInvariants(); }

 private:
  std::vector<MemberId> Responsive(const std::vector<MemberId>& members) const;
  // What was said of the units of a round.
  struct LoggedUnits {
    std::uint32_t units = 0;
    RunBound least;
    RunBound most;
    bool some_have_none = false;
    bool operator==(const LoggedUnits&) const = default;
  };
  std::vector<policies::WorkerView> ViewsOf(const std::vector<MemberId>& members,
                                            const PlannedUnits& planned) const;
  void LogUnits(std::uint32_t units);
  std::vector<std::uint32_t> ShareUnits(const std::vector<policies::WorkerView>& members,
                                        std::uint32_t units);
  std::vector<RunLimit> LimitRuns(const std::vector<policies::WorkerView>& members,
                                  const std::vector<std::uint32_t>& shares);
  static PlannedUnits PlanUnits(const std::optional<CarriedWork>& carried, std::size_t eligible,
                                Sampler* sampler);
  ExchangeAlgorithm ChooseAlgorithm(std::size_t contributors);  // of the next round
  const MeasuredLinks& Links(std::size_t members);
  void NoteMap(RoundId round, std::uint32_t version);
  OwnerMap Choose(RoundId round, std::uint32_t version, std::span<const MemberId> candidates,
                  bool may_move);

  Job* job_;
  OwnerWeights weights_;
  StateReplicas replicas_;
  AlgorithmChoice algorithm_;
  std::optional<LoggedUnits> logged_units_;
  MeasuredLinks links_;
  std::size_t links_of_ = 0;  // so many members; measured anew with others
  // Of the newest round's owner maps. Versions of a round's maps grow also over the plans of it
  // that a further attempt at the round before has made void: what was said under one of them is
  // not taken for another's.
  std::optional<RoundId> newest_;
  std::uint32_t newest_version_ = 0;
  std::vector<OwnerShare> shares_;  // of the map that was chosen last
};

}  // namespace lockstep::coordinator
