// Plans the next round: who computes which units, and who owns which slices.
//
// In: the members as they are now, the policy's work rule, the sampler, and of a relaxed round the
// work that goes on. Out: a Plan, or an owner map. The planner sends nothing and changes no round.
// It keeps only the owners' record (owner_weights.h) and the versions of owner maps.
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
#include "coordinator/round/sample_costs.h"
#include "coordinator/round/sampler.h"
#include "coordinator/round/state_replicas.h"

namespace lockstep::coordinator {

struct PlannedRound {
  Plan plan;
  bool exact = false;  // nothing of the epoch is left after it
  // By unit's number, in usual units: those of so many usual samples as a unit has. Empty: nothing
  // is known, or nobody uses it.
  std::vector<float> costs = {};
};

// In a committed relaxed round, the work of these workers goes on in the next one.
struct CarriedWork {
  const RoundWork* work = nullptr;
  const std::vector<WorkerId>* workers = nullptr;  // ascending
};

// The number of units that a round's samples are cut into. Where none is configured, it is as many
// as the policy has use for, but so many that none is above `bound`. Workers that compute units one
// by one get units of one size, if possible.
std::uint32_t UnitsPerRound(const StartParameters& start, const policies::Policy& policy,
                            const RunBound& bound);
// The most units under any policy that the job may change to, with any bounds of its workers.
std::uint32_t MostUnits(const StartParameters& start);
// The least bound of each kind among the live members; 0: nobody has one.
RunBound LeastBound(const Members& members);

class Planner {
 public:
  explicit Planner(Job* job);

  // Takes the round's samples out of `sampler`. `updates`: made before. The owner map's version is
  // `version`, or more: see newest_version_.
  PlannedRound PlanRound(RoundId round, std::uint32_t version, std::uint64_t updates,
                         const std::optional<CarriedWork>& carried, Sampler* sampler);
  // Returns the position in the learning rate's schedule before the next round. A job that ends by
  // rounds counts each round as one. A job that ends by epochs goes by the samples that were
  // counted, since its rounds may close over fewer samples and be more.
  double SchedulePosition(const Sampler& sampler, std::uint64_t updates) const;

  // A map of its own for a round that has been planned: `version` is above that of all it had.
  // Without candidates: out of all who may own.
  OwnerMap ChooseOwners(RoundId round, std::uint32_t version);
  OwnerMap ChooseOwners(RoundId round, std::uint32_t version, std::span<const MemberId> candidates);

  // Members that may compute the round: they are live, and lack at most the last round. `exact`:
  // those of them that have contributed lately, if there are any.
  std::vector<MemberId> EligibleFor(RoundId round, bool exact) const;

  // The program's word on its samples.
  Status OnCosts(const MemberId& from, const msg::Costs& message, const Sampler& sampler) {
    return costs_.Take(from, message, sampler.epoch_samples(), sampler.epoch());
  }

  // The latest round that was ever planned; nothing before the first.
  std::optional<RoundId> newest() const { return newest_; }

  // --- how owners do
  void NotePublished(std::span<const MemberId> owners, std::span<const Duration> took) {
    weights_.OnRoundPublished(owners, took);
  }
  // Takes a round that is about to be committed.
  void NoteResponses(const RoundWork& work);

  // --- which algorithm the exchange takes
  const AlgorithmChoice& algorithm() const { return algorithm_; }
  void NoteExchange(ExchangeAlgorithm algorithm, Duration took) {
    algorithm_.OnRound(algorithm, took);
  }

  // The replicas of the optimizer's state, where not every member has all of it.
  StateReplicas& replicas() { return replicas_; }
  const StateReplicas& replicas() const { return replicas_; }

  void CheckInvariants() const { weights_.CheckInvariants(); }

 private:
  // The first ones of them: the others are spares.
  std::vector<MemberId> WithoutSpares(std::vector<MemberId> members) const;
  std::vector<MemberId> Responsive(const std::vector<MemberId>& members) const;
  // The units of a round, as they were logged last.
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
  // Of each planned unit; empty: not all are known, or shares are not to depend on what comes late.
  std::vector<float> CostsOf(const PlannedUnits& planned);
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
  SampleCosts costs_;
  bool said_costs_ = false;  // once for the job
  StateReplicas replicas_;
  AlgorithmChoice algorithm_;
  std::optional<LoggedUnits> logged_units_;
  MeasuredLinks links_;
  std::size_t links_of_ = 0;  // so many members; measured anew with others
  // The newest round's owner maps. Versions also grow over plans that a further attempt at the
  // previous round made void. So a message under one of them is not taken for one under another.
  std::optional<RoundId> newest_;
  std::uint32_t newest_version_ = 0;
  std::vector<OwnerShare> shares_;  // of the map that was chosen last
};

}  // namespace lockstep::coordinator
