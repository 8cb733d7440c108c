// With optimizer.replicas (ZeRO-1): what this worker holds of the optimizer's state, and of the
// parameters beside those that it computes with.
//
// A holder of a shard has, before round r, the state and the parameters of it at version r (all
// rounds before r are in them). It takes the sums of the shards that it holds (round_sums.h), says
// Held, and changes nothing before the coordinator decides the attempt. Until then any other
// attempt can be made, by other holders, and a worker that lacks a shard can copy it from one that
// has it. Once it is decided the state is updated in place; the new parameters are written over the
// sums, so that those of the version before can still be read. All that happens on the reduction
// thread, whatever the compute thread does: a slow unit never holds up a holder.
//
// In: the start's plan, Decide, the sums of the commit, fetches and operations that end. Out: Held,
// UpdateHeld, DropHeldState, ParametersReady, and fetches of the shards that are lacking.
//
// Invariants:
//   I1  state and parameters of all shards that are held are at one version, but while an operation
//       brings them to the next. No round is in them that was not decided.
//   I4  nothing of a copy that was given up lands in what is held.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "worker/core/fetcher.h"
#include "worker/core/live_rounds.h"
#include "worker/core/parameter_fetch.h"
#include "worker/core/peers.h"

namespace lockstep::worker {

class Holdings {
 public:
  Holdings(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers,
           LiveRounds& rounds, ParameterFetch& parameter_fetch)
      : context_(context),
        buffers_(buffers),
        fetcher_(fetcher),
        peers_(peers),
        rounds_(rounds),
        parameter_fetch_(parameter_fetch) {}

  // The job begins, and this worker has the whole state: it keeps what it is to hold. `held`: it
  // has what it has said (MachineConfig::held_shards).
  void OnStart(const Plan& plan, bool held);
  // See Updates. The parameters that are held are put where all are, unless `whole`: they are
  // there.
  void BeginDetach(const std::optional<HeldParameters>& decided);
  bool Detached(bool whole);
  // Null: nothing is held.
  std::optional<RoundId> version() const;
  void Describe(action::Detached* to) const;
  // False: this worker has not said Held.
  [[nodiscard]] bool OnDecide(const msg::Decide& decide);
  // All shards at this version are copied here, then that operation takes a snapshot of them. Until
  // then this worker does not say Held, so that nobody goes on.
  void Gather(RoundId version, std::uint64_t op) { gather_ = {version, op, false}; }
  // It cannot be had: the operation that will not be.
  std::optional<std::uint64_t> TakeFailedGather() { return std::exchange(failed_gather_, {}); }
  // The shards held here are of no use any more: others hold them from now on.
  void Drop();
  void OnPeerUp(const MemberId& peer);
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  // True when the operation was of what is held.
  bool OnOpDone(const event::OpDone& done);
  void Update();

  std::optional<BufferRange> FindPiece(const PieceName& piece) const;
  // For people; empty: nothing.
  std::string Missing() const;

  void CheckInvariants() const;

 private:
  // Parameters at a version, in a sum buffer, and what of them.
  struct Generation {
    RoundId version;
    Attempt attempt;  // at the round before
    BufferId buffer;
    std::uint32_t generation = 0;
    std::vector<std::uint32_t> shards;  // ascending
    FloatSet ranges;                    // of these
  };
  // A shard that is copied from one that holds it. It stays until nothing of it can land any more.
  //
  // The state comes first and the parameters when all of that is here. The donor updates its state
  // in place, and while a piece of it is on its way it may do so, where the round is decided
  // without this worker. Parameters stay as they are while they are read, and are given out only
  // until that update begins: whoever is still given them has the state of that version.
  struct ShardCopy {
    RoundId version;
    MemberId donor;
    std::uint32_t generation = 0;  // of what the donor holds: it may begin anew at the same version
    std::uint64_t to_come = 0;     // floats that may land
    bool failed = false;
    bool state_here = false;
  };

  // Of a checkpoint.
  struct Gathering {
    RoundId version;
    std::uint64_t op = 0;
    bool copying = false;
  };

  FloatSet SetOf(const std::vector<std::uint32_t>& shards) const;
  std::vector<FloatRange> RangesOf(const std::vector<std::uint32_t>& shards) const;
  void Set(Generation& generation, std::vector<std::uint32_t> shards) const;
  void TryUpdate();
  void TryGather();
  void EndGather();
  void TryHold();
  // True when this worker has all of these shards at the version; else it goes on copying them.
  bool CopyShards(const std::vector<std::uint32_t>& shards, RoundId version);
  std::optional<MemberId> DonorOf(std::uint32_t shard, RoundId version) const;
  // In the attempt that was committed last.
  bool HoldsNothingNow(const MemberId& member) const;
  // A copy of a silent donor is given up where another has the shard. True: nothing of it can
  // land any more.
  bool GiveUpDonor(std::uint32_t shard, ShardCopy& copy);
  void DropAllBut(const std::vector<std::uint32_t>& shards);
  void BeginCopy(std::uint32_t shard, const MemberId& donor, RoundId version);
  // Asks the donor for these parts of it: 0 the parameters, 1.. the optimizer's tensors.
  void Fetch(std::uint32_t shard, ShardCopy& copy, std::uint32_t first_part,
             std::uint32_t end_part);
  void GoOn(std::uint32_t shard);
  void GiveUp(const std::function<bool(std::uint32_t shard)>& unwanted);
  void GiveUpCopies(const std::vector<std::uint32_t>& but);
  void EndOf(const Want& want, bool ok);
  void TellCopied(std::uint64_t floats);
  void Announce();
  std::optional<ParametersReady> Announcement() const;
  void Release(std::optional<Generation>& generation);

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  LiveRounds& rounds_;
  ParameterFetch& parameter_fetch_;

  std::optional<Generation> newest_;  // with the state
  std::optional<Generation> before_;  // to be read only
  std::optional<Generation> next_;    // that the operation makes
  std::optional<std::uint64_t> op_;
  bool abandoned_ = false;                     // what the operation makes is of no use
  std::map<std::uint32_t, ShardCopy> copies_;  // by shard
  std::uint64_t copied_ = 0;                   // floats of other holders, at the newest version
  std::uint64_t untold_ = 0;                   // of these, since the coordinator heard of it
  std::optional<msg::Decide> decided_;         // the last one
  bool acted_ = false;                         // on it
  std::optional<Gathering> gather_;
  std::optional<std::uint64_t> failed_gather_;
  std::optional<std::pair<RoundId, Attempt>> told_;  // Held
  std::optional<RoundId> started_at_;  // the version that the job began with, in this term
  bool detaching_ = false;
  bool put_back_ = false;  // or `op_` does so
};

}  // namespace lockstep::worker
