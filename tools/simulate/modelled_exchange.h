// What the modelled workers of a simulation have in common: the links, and the sums of the latest
// rounds. When parts are delivered and sums published is computed out of the network's numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "tools/simulate/compute_model.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/exchange_times.h"
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
    std::uint64_t kept = 0;                      // of them in each block of a contribution; 0: all
    std::uint64_t factor_bytes =
        0;  // what the factors take in place of all that; 0: there are none
    std::uint64_t contribution_bytes() const { return GradientBytes(kept); }
    std::uint64_t sum_bytes(std::size_t parts) const { return GradientBytes(kept * parts); }
    // With so many entries for each block, unless that is more than all numbers take.
    std::uint64_t GradientBytes(std::uint64_t entries) const;
    std::uint64_t train_samples = 1;
    double measured_gb_per_second = 0;  // that workers say of their paths; 0: nothing
    worker::MachineConfig machine;      // self and term are set for each
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
    ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
    ExchangeTimes times;        // of another one
    std::uint64_t weights = 0;  // of all owners
    std::vector<OwnerShare> owners;
    std::vector<bool> published;  // by owner's slot: by itself or by who stands in for it
    std::size_t missing = 0;      // owners whose shard is not published
    Time last;                    // the last one's publication
    Time sent;                    // and when all have sent their shards to everybody
    std::vector<std::pair<ModelledWorker*, MemberId>> waiting;
  };

  static constexpr std::size_t kRoundsKept = 6;  // the latest

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

  Publication& Of(const msg::Commit& commit);
  Publication* FindPublication(RoundId round, Attempt attempt);
  // How long an owner of that weight reduces, and then sends its shard to all others.
  Duration ReduceTime(const Publication& sums, std::uint32_t weight) const;
  Duration SendTime(const Publication& sums, std::uint32_t weight, std::uint32_t machine) const;
  // Of so many bytes that all others have, all but its own part, to this machine.
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
  std::vector<Time> out_free_;            // by machine
  double slowest_ = 0;                    // bandwidth
  Time owners_free_;                      // the incoming links of all owners, which get the same
  std::deque<Publication> publications_;  // the latest
  std::map<std::pair<ExchangeAlgorithm, std::uint32_t>, ExchangeTimes> times_;
};

// Null: it owns nothing.
const OwnerShare* FindOwner(const OwnerMap& map, const MemberId& id);

}  // namespace lockstep::simulate
