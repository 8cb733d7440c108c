// A worker as the protocol describes it, without numbers: its parameters are a hash of what it has
// applied, its gradients are nothing. It computes, seals, receives, publishes, applies, fences,
// catches up, evaluates and writes checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tools/simulate/simulation.h"

namespace lockstep::coordinator {

using simulate::WorkerHost;
using simulate::WorkerModel;

struct ModelOptions {
  Duration unit_time = std::chrono::milliseconds(2);
  bool mapped = false;  // all on one host
  bool ucx = false;     // offers it
  std::uint64_t train_samples = 500;
  std::uint64_t test_samples = 64;
  std::set<std::uint32_t> slow;  // machines
  double slow_factor = 8;
};

// What all models of a simulation have seen; for checks.
struct World {
  ModelOptions options;
  // Pieces of (contributor, round, part) that an owner has.
  std::map<MemberId, std::set<std::tuple<MemberId, RoundId, PartIndex>>> received = {};
  std::uint64_t assigned = 0;  // orders that were taken
  std::uint64_t refused = 0;
};

class ModelWorker : public WorkerModel {
 public:
  ModelWorker(WorkerHost* host, World* world) : host_(host), world_(world) {}
  void OnStart() override;
  void OnMessage(const ToWorker& message) override;

 private:
  using PartKey = std::tuple<MemberId, RoundId, PartIndex>;
  using SumKey = std::pair<RoundId, Attempt>;

  void On(const Welcome& m);
  void On(const Refuse&) {}
  void On(const Form& m);
  void On(const MemberLeft& m);
  void CheckSources();
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
  void On(const StateChunk&) {}
  void On(const Finish& m);
  void On(const SetSlowdown&) {}
  void On(const AskToLeave&) {}
  void On(const Ping& m);

  void TakePlan(const Plan& plan);
  void BeginRound();
  void TakeUnit();
  void Seal();
  void Announce(const PartKey& part);
  void OnPartReady(const PartKey& part);
  void FetchPart(const PartKey& part);
  void OnPart(const PartKey& part);
  void SendReceipt(const PartKey& part);
  void Reduce();
  void FetchSum(const MemberId& from, const SumKey& key, std::set<MemberId> shards);
  void OnSum(const SumKey& key, const std::set<MemberId>& shards);
  bool Holds(const SumKey& key) const;
  void Apply();
  void Copy(MemberId donor, RoundId open, std::uint32_t order);
  std::vector<float> Tensor() const;
  void Stream(const Commit& commit);
  bool IsOwner(const OwnerMap& map) const;
  std::string Digest() const;

  WorkerHost* host_;
  World* world_;
  MemberId self_;
  Term term_;
  std::set<MemberId> peers_;

  bool has_state_ = false;
  RoundId next_;  // first that is not applied
  std::uint64_t state_ = 0;

  std::optional<Plan> plan_;      // of the latest round that is not committed
  bool computing_ = false;        // the queue is that of plan_
  std::uint64_t work_ = 0;        // generation of the queue
  std::uint32_t copy_order_ = 0;  // of the last CatchUp
  std::vector<Unit> queue_;
  std::size_t head_ = 0;
  bool busy_ = false;
  std::uint32_t parts_used_ = 0;
  std::vector<UnitTiming> part_units_;
  OwnerMap owners_;  // of plan_'s round

  std::set<PartKey> ready_;     // sealed by somebody
  std::set<PartKey> received_;  // held here
  std::map<RoundId, Commit> commits_;
  std::map<SumKey, std::set<MemberId>> sums_;  // shards held, by owner
  std::map<SumKey, MemberId> sources_;         // by TakeSums
  std::set<SumKey> published_;
  std::set<SumKey> refused_;
  std::map<std::uint32_t, RoundId> snapshots_;
  std::set<RoundId> streamed_;
};

}  // namespace lockstep::coordinator
