// How committed rounds get into this worker's parameters, and how it copies the state and gives it
// to others. There are two ways, and the core chooses one by the config:
// - replicated_updates.cc: all workers hold the whole state, take all sums and apply them;
// - sharded_updates.cc (optimizer.replicas, ZeRO-1): shards of the state have holders, which apply
//   the sums of these; all workers take the new parameters from holders.
//
// In: commits and sums of the other parts, what peers say of state and parameters, fetches and
// operations that end, orders to catch up. Out: updates of the parameters, Applied, Level, Behind.
//
// Both keep I1: rounds are applied in order, each with all shards of one attempt. The parameters
// never change under a unit that reads them or before an evaluation's snapshot.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "worker/core/checkpoint_upload.h"
#include "worker/core/ending.h"
#include "worker/core/epoch_ends.h"
#include "worker/core/evaluation.h"
#include "worker/core/inputs.h"
#include "worker/core/own_work.h"
#include "worker/core/parameters.h"
#include "worker/core/peers.h"
#include "worker/core/sums.h"

namespace lockstep::worker {

// The parts that updates work with; all of them outlive the updates.
struct UpdatesContext {
  Context& context;
  Buffers& buffers;
  Fetcher& fetcher;
  const Peers& peers;
  LiveRounds& rounds;
  OwnWork& own;
  Inputs& inputs;
  Sums& sums;
  Evaluation& evaluation;
  CheckpointUpload& upload;
  const Ending& ending;
  EpochEnds& epoch_ends;
  Parameters& parameters;
};

class Updates {
 public:
  explicit Updates(const UpdatesContext& with)
      : with_(with),
        context_(with.context),
        rounds_(with.rounds),
        own_(with.own),
        sums_(with.sums),
        parameters_(with.parameters) {}
  virtual ~Updates() = default;

  // The first round that is not in the parameters, or not in all of the copies.
  virtual RoundId next() const = 0;
  // The job begins, and this worker has the whole state, or what it has said that it holds.
  virtual void OnStart(const msg::Start&) {}
  // The owner, or holder, is silent.
  virtual void OnHedge(const msg::Hedge& hedge) = 0;
  // False: this worker has not said that it holds what is decided.
  [[nodiscard]] virtual bool OnDecide(const msg::Decide&) { return true; }
  virtual void OnPeerUp(const MemberId&) {}
  virtual void OnPeerDown(const MemberId& peer) = 0;
  virtual void OnDropped(const Want&) {}
  virtual void OnFetchDone(const Fetcher::Done& done) = 0;
  // True when the operation was of these updates.
  virtual bool OnOpDone(const event::OpDone& done) = 0;
  // Take what peers say. An error: it cannot be, or not in a job that updates in this way.
  virtual Status OnStateWant(const MemberId&, const StateWant&) { return Unexpected(); }
  virtual Status OnStateReady(const MemberId&, const StateReady&) { return Unexpected(); }
  virtual Status OnStateTaken(const MemberId&, const StateTaken&) { return Unexpected(); }
  virtual Status OnParametersReady(const MemberId&, const ParametersReady&) { return Unexpected(); }

  // Shows the program an epoch's end, if one is due. Before Advance.
  void ShowEpochEnd();
  // Brings the parameters as far as can be by now.
  virtual void Advance() = 0;
  // Gives the state to those that copy it, and asks for what this worker copies itself.
  virtual void CopyState() {}

  // Commits are followed from that round on; those before it are in what is copied.
  virtual void BeginCatchUp(const msg::CatchUp& order) = 0;
  // The same order, from another round on: what was copied of it was replaced.
  virtual void CatchUpFrom(RoundId round) = 0;
  // Copies contain an older attempt at the round than this one.
  virtual bool CopiesOlder(RoundId, Attempt) const { return false; }
  // This worker cannot go on by itself. It says so, keeps serving what it has, and waits to be told
  // from whom to copy. `clean`: the parameters are those before round next(), so a donor need not
  // be asked for what they contain already.
  void FallBehind(const std::string& reason, bool clean = true);
  // The state is that after this commit, of which a checkpoint may be asked.
  virtual void BeginCheckpoint(const msg::Commit& commit) = 0;
  // The coordinator is gone, and the next one is there or none will come. `decided`: what the one
  // before has decided on (msg::Welcome). Nothing new is begun. Detached: nothing is under way.
  virtual void BeginDetach(const std::optional<HeldParameters>& decided) { (void)decided; }
  virtual bool Detached() { return !parameters_.update(); }
  // After that, with optimizer.replicas: what this worker holds.
  virtual void Holds(action::Detached*) const {}
  // Drops the rounds that are over, and all that is theirs.
  void Prune();

  // How far the copies are, for people.
  virtual std::string Copied() const { return ""; }
  // Names, for people, what the parameters wait for beside sums.
  virtual std::string Missing() const { return ""; }
  virtual std::optional<BufferRange> FindPiece(const MemberId& peer,
                                               const PieceName& piece) const = 0;

  // Those of each step; and those that take longer.
  virtual void CheckCheapInvariants() const = 0;
  virtual void CheckInvariants() const = 0;

 protected:
  // The last order to catch up, also when it is over; 0: none.
  virtual std::uint32_t order() const = 0;
  virtual void EndCatchUp() = 0;
  // It is the update of the parameters.
  bool IsUpdate(const event::OpDone& done) const {
    return parameters_.update() && parameters_.update()->op == done.op;
  }
  // The compute thread reads the parameters, or the program looks at them: they must not change.
  bool InUse() const { return own_.UsesParameters() || with_.epoch_ends.shown(); }
  // The parameters were copied, and are those before this round.
  void BecomeLevel(RoundId next, Attempt newest);
  // The round is in the parameters: says so, and begins what waits for that.
  void TellApplied(const msg::Commit& commit, std::uint64_t digest);
  static Status Unexpected() {
    return Error{ErrorCode::kInvalid, "it speaks of state that this job does not exchange"};
  }

  const UpdatesContext with_;
  Context& context_;
  LiveRounds& rounds_;
  OwnWork& own_;
  Sums& sums_;
  Parameters& parameters_;
};

std::unique_ptr<Updates> MakeReplicatedUpdates(const UpdatesContext& with);
std::unique_ptr<Updates> MakeShardedUpdates(const UpdatesContext& with);

}  // namespace lockstep::worker
