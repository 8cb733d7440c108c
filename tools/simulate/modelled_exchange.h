// The shared state of a simulation's modelled workers: the links, and the sums of the latest
// rounds. The times of delivery and publication are computed from the network's numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tools/simulate/compute_model.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/exchange_times.h"
#include "tools/simulate/known_costs.h"
#include "worker/core/step_machine.h"
#include "worker/layout/layout.h"

namespace lockstep::simulate {

class ModelledWorker;

class ModelledExchange {
 public:
  struct Options {
    NetworkOptions network;
    std::uint64_t model_bytes = 4u << 20;        // of the parameters
    std::uint64_t number_bytes = sizeof(float);  // of a number in a contribution or a sum
    std::uint64_t kept = 0;                      // numbers in each block of a contribution; 0: all
    std::uint64_t factor_bytes =
        0;  // the size of the factors, which replace all that; 0: there are none
    std::uint64_t contribution_bytes() const { return GradientBytes(kept); }
    std::uint64_t sum_bytes(std::size_t parts) const { return GradientBytes(kept * parts); }
    // The bytes with so many entries for each block, unless all numbers take less.
    std::uint64_t GradientBytes(std::uint64_t entries) const;
    std::uint64_t train_samples = 1;
    double measured_gb_per_second = 0;  // in the workers' reports of their paths; 0: none
    worker::MachineConfig machine;      // self and term are set for each
    // Measured latencies in place of those that follow from the network: until a sealed part is
    // delivered, and from a commit until it is applied. They depend on the time since the job's
    // start.
    std::function<Duration(WorkerId, Duration)> delivery;
    std::function<Duration(WorkerId, Duration)> apply;
    std::shared_ptr<KnownCosts> costs;  // that programs tell; null: they tell none
  };
  // The sums of one attempt at a round.
  struct Publication {
    RoundId round;
    Attempt attempt;
    std::size_t parts = 0;
    ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
    ExchangeTimes times;        // for an algorithm other than direct
    std::uint64_t weights = 0;  // sum for all owners
    std::vector<OwnerShare> owners;
    std::vector<bool> published;  // by owner's slot: by the owner or by its stand-in
    std::size_t missing = 0;      // owners whose shard is not published
    Time last;                    // the last owner's publication
    Time sent;                    // when all have sent their shards to everybody
    std::vector<std::pair<ModelledWorker*, MemberId>> waiting;
  };

  static constexpr std::size_t kRoundsKept = 6;  // the latest ones

  ModelledExchange(Options options, ComputeModel* compute, std::uint32_t workers);

  void Enter(WorkerId slot, ModelledWorker* worker) { workers_[slot.value] = worker; }
  void Leave(WorkerId slot, const ModelledWorker* worker) {
    if (workers_[slot.value] == worker) workers_[slot.value] = nullptr;
  }
  // Null: the slot is empty now.
  ModelledWorker* Find(WorkerId slot) const { return workers_[slot.value]; }
  ModelledWorker* Find(const MemberId& id) const;

  // The members that form, ascending; the same list for all of them.
  std::shared_ptr<const std::vector<MemberId>> Forming(const msg::Form& form, const MemberId& self);
  // The slots whose receipts stand for all.
  std::vector<WorkerId> WitnessesOf(WorkerId slot) const;
  bool Witnesses(WorkerId a, WorkerId b) const;

  // This worker has sealed a part: returns when all owners have it.
  Time Deliver(WorkerId worker, std::uint32_t machine, Time now);
  // No more parts of the round are pulled.
  void OnCommitted(Time now) { owners_free_ = std::min(owners_free_, now); }

  Publication& Of(const msg::Commit& commit);
  Publication* FindPublication(RoundId round, Attempt attempt);
  // How long an owner of that weight reduces, and then sends its shard to all others.
  Duration ReduceTime(const Publication& sums, std::uint32_t weight) const;
  Duration SendTime(const Publication& sums, std::uint32_t weight, std::uint32_t machine) const;
  // The time to take so many bytes, which all other members have, to this machine, without its own
  // part.
  Duration TakeTime(std::uint64_t bytes, std::uint32_t machine) const;
  Duration UpdateTime() const;

  const Options options;
  ComputeModel* const compute;
  const worker::Layout layout;  // of one bucket: bytes do not matter to OwnWork

 private:
  Duration Transfer(double bytes, std::uint32_t machine) const;
  double Crowding() const;
  ExchangeTimes TimesOf(ExchangeAlgorithm algorithm, std::uint32_t contributors);

  std::vector<ModelledWorker*> workers_;  // by slot
  std::shared_ptr<const std::vector<MemberId>> forming_;
  std::vector<Time> out_free_;            // by machine
  double slowest_ = 0;                    // bandwidth
  Time owners_free_;                      // the incoming links of all owners, which get the same
                                          // bytes
  std::deque<Publication> publications_;  // the latest ones
  std::map<std::pair<ExchangeAlgorithm, std::uint32_t>, ExchangeTimes> times_;
};

// Null: it owns nothing.
const OwnerShare* FindOwner(const OwnerMap& map, const MemberId& id);

}  // namespace lockstep::simulate
