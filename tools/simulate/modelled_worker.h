// A worker of which only the compute side is real: its units, parts, progress and returned units
// are those of the core's own OwnWork. Receipts and publication would be N^2 messages a round if
// carried one by one. They are computed from the network's numbers, O(1) for each part.
//
// A part is delivered when its owners have pulled it: the contributor sends it once, and all owners
// take their shards of one part after the other. Most pairs count as mapped for the coordinator, so
// that it does not ask for their receipts. The two of a pair of neighbours (0 and 1, 2 and 3, ...)
// report for all owners when a part has arrived.
//
//   modelled_worker.cc    joining, plans, orders, receipts
//   modelled_sums.cc      publishing, applying, promises, catching up
//   modelled_compute.cc   its compute thread
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/simulate/computed_run.h"
#include "tools/simulate/modelled_exchange.h"
#include "tools/simulate/simulation.h"
#include "worker/core/own_work.h"

namespace lockstep::simulate {

class ModelledWorker final : public WorkerModel {
 public:
  ModelledWorker(WorkerHost* host, ModelledExchange* exchange);
  ~ModelledWorker() override;

  void OnConnected() override;
  void OnMessage(const msg::ToWorker& message) override;
  void OnKilled() override;

  const MemberId& self() const { return self_; }
  // First round that is not applied; nullopt while the parameters are in doubt.
  std::optional<RoundId> next() const { return has_state_ ? std::optional(next_) : std::nullopt; }
  // All owners have this part; a witness reports it.
  void OnDelivered(RoundId round, const ReceivedPart& part);
  void OnPublished();

 private:
  struct Machine;  // made at Welcome
  struct Committed {
    RoundId round;
    Attempt attempt;
    std::optional<MemberId> checkpoint_writer;
    Time at;               // when it arrived
    bool refused = false;  // promised not to apply it
  };
  struct Received {
    RoundId round;
    ReceivedPart part;
  };
  struct Owning {  // by the latest map of the open round
    RoundId round;
    std::uint32_t version = 0;
    bool owner = false;
    bool direct = true;  // owners take parts before the commit
  };

  void OnWelcome(const msg::Welcome& m);
  void OnForm(const msg::Form& m);
  void OnStart(const msg::Start& m);
  void OnCommit(const msg::Commit& m);
  void OnNewOwners(const msg::NewOwners& m);
  void OnFenceAttempt(const msg::FenceAttempt& m);
  void OnHedge(const msg::Hedge& m);
  void OnTakeSums(const msg::TakeSums& m);
  void OnCatchUp(const msg::CatchUp& m);
  void OnEvaluate(const msg::Evaluate& m);
  void OnFinish(const msg::Finish& m);
  void OnPing(const msg::Ping& m);

  void Adopt(const Plan& plan);
  void TakeUnits(const Plan& own);
  void TakeOwners(RoundId round, const OwnerMap& map);
  void SayReceived();
  Committed* FindCommitted(RoundId round);
  void Remember(const msg::Commit& commit);
  void Publish(const msg::Commit& commit);
  void MakeSums(const ModelledExchange::Publication& sums, const OwnerShare& share);
  void LookForLoss(RoundId latest);
  void TryApply();
  void OnApplied(RoundId round, Attempt attempt);
  void TakePartInCheckpoint(const Committed& committed);
  void TryToCopy(const msg::CatchUp& order);

  // Call it after any possible change of the own work.
  void Settle();
  void CarryOut(worker::Action& action);
  void Compute();
  void EndTake(std::uint64_t number);
  void Seal(const worker::UnitQueue::Take& take);

  WorkerHost* host_;
  ModelledExchange* exchange_;
  MemberId self_;
  std::unique_ptr<Machine> machine_;
  bool has_state_ = false;
  RoundId next_;
  bool applying_ = false;
  std::optional<std::pair<RoundId, Attempt>> waits_for_;  // the last publication that was awaited
  bool finished_ = false;
  std::optional<Plan> plan_;         // the latest plan: the part that this worker needs, without
                                     // its units
  std::deque<Committed> committed_;  // the latest ones
  Owning owning_;
  bool carries_ = false;  // the open round continues work of the one before
  std::vector<Received> received_;
  std::uint32_t copies_ = 0;  // the last order to catch up

  std::optional<worker::action::StartWork> work_;
  std::optional<Epoch> told_costs_;  // of this epoch and the next one
  bool computing_ = false;           // the state of take_
  std::uint64_t takes_ = 0;          // counts them
  worker::UnitQueue::Take take_;
  std::optional<ComputedRun> run_;  // where that is a run
  Time timer_ = kNever;
};

}  // namespace lockstep::simulate
