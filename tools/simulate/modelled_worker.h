// A worker of which only the compute side is real: its units, parts, progress and what it gives
// back are the step machine's own OwnWork. Receipts and publication, which are N^2 messages a round
// when they are carried one by one, are computed out of the network's numbers, O(1) for each part.
//
// A part is delivered when its owners have pulled it: the contributor sends it once, and all
// owners take their shards of one part after the other. Most pairs count as mapped for the
// coordinator, so that it does not ask for their receipts; the two of a pair of neighbours (0 and
// 1, 2 and 3, ...) say for all owners when a part has arrived.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/simulate/compute_model.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/simulation.h"
#include "worker/machine/own_work.h"

namespace lockstep::simulate {

class ModelledWorker;

// What the workers of a simulation have in common: the links and the sums of the latest rounds.
class ModelledExchange {
 public:
  struct Options {
    NetworkOptions network;
    std::uint64_t model_bytes = 4u << 20;
    std::uint64_t train_samples = 1;
    worker::MachineConfig machine;  // self and term are set for each
    // Measured latencies in place of those that follow from the network: until a sealed part is
    // delivered, from a commit until it is applied; by the time since the job's start.
    std::function<Duration(WorkerId, Duration)> delivery;
    std::function<Duration(WorkerId, Duration)> apply;
  };
  // The sums of one attempt at a round.
  struct Publication {
    RoundId round;
    Attempt attempt;
    std::size_t parts = 0;
    std::uint64_t weights = 0;  // of all owners
    std::size_t missing = 0;    // owners
    Time last;                  // the last one's publication
    Time sent;                  // and when all have sent their shards to everybody
    std::vector<std::pair<ModelledWorker*, MemberId>> waiting;
  };

  ModelledExchange(Options options, ComputeModel* compute, std::uint32_t workers);

  void Enter(WorkerId slot, ModelledWorker* worker) { workers_[slot.value] = worker; }
  void Leave(WorkerId slot, const ModelledWorker* worker) {
    if (workers_[slot.value] == worker) workers_[slot.value] = nullptr;
  }
  // Null: nobody has the slot now.
  ModelledWorker* Find(WorkerId slot) const { return workers_[slot.value]; }
  ModelledWorker* Find(const MemberId& id) const;

  // The slots whose receipts stand for all.
  std::vector<WorkerId> WitnessesOf(WorkerId slot) const;
  bool Witnesses(WorkerId a, WorkerId b) const;

  // This worker has sealed a part: when all owners have it.
  Time Deliver(WorkerId worker, std::uint32_t machine, Time now);
  // Nothing more of the round is pulled.
  void OnCommitted(Time now) { owners_free_ = std::min(owners_free_, now); }

  Publication& Of(const Commit& commit);
  Publication* FindPublication(RoundId round, Attempt attempt);
  // How long an owner of that weight reduces, and then sends its shard to all others.
  Duration ReduceTime(const Publication& sums, std::uint32_t weight) const;
  Duration SendTime(const Publication& sums, std::uint32_t weight, std::uint32_t machine) const;
  // All of the model, or all but its own part, to this machine.
  Duration TakeTime(std::uint32_t machine) const;
  Duration UpdateTime() const;

  const Options options;
  ComputeModel* const compute;
  const worker::Layout layout;  // of one bucket: bytes do not matter to OwnWork

 private:
  Duration Transfer(double bytes, std::uint32_t machine) const;

  std::vector<ModelledWorker*> workers_;  // by slot
  std::vector<Time> out_free_;            // by machine
  double slowest_ = 0;                    // bandwidth
  Time owners_free_;                      // the incoming links of all owners, which get the same
  std::deque<Publication> publications_;  // the latest
};

class ModelledWorker final : public WorkerModel {
 public:
  ModelledWorker(WorkerHost* host, ModelledExchange* exchange);
  ~ModelledWorker() override;

  void OnStart() override;
  void OnMessage(const ToWorker& message) override;
  void OnKilled() override;

  const MemberId& self() const { return self_; }
  // First round that is not applied; nothing while the parameters are in doubt.
  std::optional<RoundId> next() const { return has_state_ ? std::optional(next_) : std::nullopt; }
  // All owners have this part: to be said by a witness.
  void OnDelivered(RoundId round, const ReceivedPart& part);
  void OnPublished();

 private:
  struct Machine;  // made with Welcome
  struct Committed {
    RoundId round;
    Attempt attempt;
    Epoch epoch;
    std::optional<MemberId> checkpoint_writer;
    Time at;               // when it was told
    bool refused = false;  // promised not to apply it
  };
  struct Received {
    RoundId round;
    ReceivedPart part;
  };
  struct Owning {  // as the latest map of the open round says
    RoundId round;
    std::uint32_t version = 0;
    bool owner = false;
  };

  void On(const Welcome& m);
  void On(const Form& m);
  void On(const Start& m);
  void On(const Commit& m);
  void On(const Revoke& m);
  void On(const Assign& m);
  void On(const FenceRound& m);
  void On(const NewOwners& m);
  void On(const FenceAttempt& m);
  void On(const TakeSums& m);
  void On(const CatchUp& m);
  void On(const Evaluate& m);
  void On(const Finish& m);
  void On(const Ping& m);
  void On(const Refuse&) {}
  void On(const MemberLeft&) {}
  void On(const StateChunk&) {}
  void On(const SetSlowdown&) {}
  void On(const AskToLeave&) {}  // only the HTTP door asks

  void Adopt(const Plan& plan);
  void TakeOwners(RoundId round, const OwnerMap& map);
  void SayReceived();
  Committed* FindCommitted(RoundId round);
  void Remember(const Commit& commit);
  void Publish(const Commit& commit);
  void LookForLoss(RoundId latest);
  void TryApply();
  void OnApplied(RoundId round, Attempt attempt);
  void WriteCheckpoint(RoundId round);
  void TryToCopy(const MemberId& donor, RoundId open_round, std::uint32_t order);

  // After whatever may have changed the own work.
  void Settle();
  void CarryOut(worker::Action& action);
  void Compute();
  void EndUnit(std::uint64_t unit);
  void Seal(const worker::UnitQueue::Take& take);

  WorkerHost* host_;
  ModelledExchange* exchange_;
  MemberId self_;
  std::unique_ptr<Machine> machine_;
  bool has_state_ = false;
  RoundId next_;
  bool applying_ = false;
  std::optional<std::pair<RoundId, Attempt>>
      waits_for_;  // the last publication that was waited for
  bool finished_ = false;
  std::deque<Committed> committed_;  // the latest
  Owning owning_;
  bool carries_ = false;  // the open round carries on work of the one before
  std::vector<Received> received_;
  std::uint32_t copies_ = 0;  // orders to catch up

  std::optional<worker::action::StartWork> work_;
  bool in_unit_ = false;
  std::uint64_t unit_ = 0;  // counts them
  worker::UnitQueue::Take take_;
  Time unit_started_;
  Time timer_ = kNever;
};

}  // namespace lockstep::simulate
