// Updates with optimizer.replicas: this worker updates the shards that it holds (holdings.h) and
// takes the parameters of all shards from their holders (parameter_fetch.h). A worker that is
// behind takes the newest parameters, and copies the shards that it is to hold.
#include "base/check.h"
#include "worker/core/holdings.h"
#include "worker/core/parameter_fetch.h"
#include "worker/core/updates.h"

namespace lockstep::worker {
namespace {

class ShardedUpdates final : public Updates {
 public:
  explicit ShardedUpdates(const UpdatesContext& with)
      : Updates(with),
        parameter_fetch_(with.context, with.buffers, with.fetcher, with.peers),
        holdings_(with.context, with.buffers, with.fetcher, with.peers, with.rounds,
                  parameter_fetch_) {}

  RoundId next() const override {
    return parameters_.catching_up() ? parameter_fetch_.catch_up()->from : parameters_.next();
  }

  // Parameters that are to be taken are those before the plan's round.
  void OnStart(const msg::Start& start) override {
    holdings_.OnStart(start.plan, start.source == StateSource::kHeld);
    if (parameters_.catching_up()) {
      parameter_fetch_.BeginCatchUp({.donor = {}, .open_round = start.plan.round, .order = 0});
    }
  }
  void OnHedge(const msg::Hedge& hedge) override {
    parameter_fetch_.PassOver(hedge.owner, hedge.round.Next());
  }
  bool OnDecide(const msg::Decide& decide) override { return holdings_.OnDecide(decide); }
  void OnPeerUp(const MemberId& peer) override { holdings_.OnPeerUp(peer); }
  void OnPeerDown(const MemberId& peer) override { parameter_fetch_.OnPeerDown(peer); }

  void OnDropped(const Want& want) override {
    parameter_fetch_.OnDropped(want);
    holdings_.OnDropped(want);
  }

  void OnFetchDone(const Fetcher::Done& done) override {
    const bool parameters =
        done.want.piece.kind == static_cast<std::uint32_t>(PieceKind::kParameters);
    parameters ? parameter_fetch_.OnFetchDone(done) : holdings_.OnFetchDone(done);
  }

  bool OnOpDone(const event::OpDone& done) override {
    if (!IsUpdate(done)) return holdings_.OnOpDone(done);
    OnTaken(done);
    return true;
  }

  Status OnParametersReady(const MemberId& peer, const ParametersReady& ready) override {
    return parameter_fetch_.OnReady(peer, ready);
  }

  void Advance() override {
    holdings_.Update();
    if (const auto op = holdings_.TakeFailedGather()) with_.upload.OnNotGathered(*op);
    if (!detaching_) TakeIfPossible();
  }

  void BeginDetach(const std::optional<HeldParameters>& decided) override {
    detaching_ = true;
    holdings_.BeginDetach(decided);
  }
  // A version that is being taken is given up, and then the parameters are in no state.
  bool Detached() override {
    if (parameter_fetch_.active()) {
      if (parameter_fetch_.copying() || !parameter_fetch_.GiveUp()) return false;
      if (parameters_.update()) parameters_.EndUpdate();
      torn_ = true;
    }
    return holdings_.Detached(whole());
  }
  void Holds(action::Detached* to) const override {
    to->whole = whole();
    // Nobody could take parameters that are before the first round.
    if (to->whole || holdings_.version() != RoundId(0)) holdings_.Describe(to);
  }

  void BeginCatchUp(const msg::CatchUp& order) override {
    holdings_.Drop();
    parameter_fetch_.BeginCatchUp(order);
  }
  void CatchUpFrom(RoundId round) override { parameter_fetch_.FollowFrom(round); }

  void BeginCheckpoint(const msg::Commit& commit) override {
    if (const auto op = with_.upload.OnGather(commit)) holdings_.Gather(commit.round.Next(), *op);
  }

  std::string Missing() const override { return "; parameters; " + holdings_.Missing(); }

  std::optional<BufferRange> FindPiece(const MemberId&, const PieceName& piece) const override {
    if (piece.kind == static_cast<std::uint32_t>(PieceKind::kState)) return std::nullopt;
    return holdings_.FindPiece(piece);
  }

  void CheckCheapInvariants() const override {
    LOCKSTEP_CHECK(parameters_.catching_up() == parameter_fetch_.catch_up().has_value(),
                   "a worker that catches up has no order to, or the other way round");
  }

  void CheckInvariants() const override {
    parameter_fetch_.CheckInvariants();
    holdings_.CheckInvariants();
  }

 protected:
  std::uint32_t order() const override { return parameter_fetch_.order(); }
  void EndCatchUp() override { parameter_fetch_.EndCatchUp(); }

 private:
  // The newest version that this worker knows the commits of. A version that was begun and cannot
  // be had any more leaves the parameters in no state: the update stays until one has been taken.
  void TakeIfPossible() {
    if (!parameters_.follows()) return;
    const RoundId least =
        parameters_.catching_up() ? parameter_fetch_.catch_up()->least : parameters_.next().Next();
    // Holders may be quicker to tell than the coordinator.
    const auto known = [&](const ParameterFetch::Version& version) {
      if (version.next > rounds_.expected()) return false;
      if (parameters_.catching_up() && version.next == least) return true;
      const RoundSums* sums = rounds_.SumsOf(RoundId(version.next.value - 1));
      return sums != nullptr && sums->commit().attempt == version.attempt;
    };
    if (parameter_fetch_.active()) {
      const bool newer = parameter_fetch_.Stuck() &&
                         parameter_fetch_.Newest(parameter_fetch_.version().next.Next(), known);
      if (!newer && !parameter_fetch_.giving_up()) return parameter_fetch_.Update();
      if (!parameter_fetch_.GiveUp()) return;
    }
    const bool quiet = !InUse() && !with_.evaluation.ReadsState() &&
                       !with_.evaluation.WaitsForSnapshot() && !with_.upload.ReadsState();
    if (!quiet && !parameters_.update()) return;
    const auto version = NewestBeforeEpochEnd(least, known);
    if (!version) return;
    if (parameters_.update()) parameters_.EndUpdate();
    const std::uint64_t op = context_.NewOp();
    parameters_.BeginUpdate(op, RoundId(version->next.value - 1), version->attempt);
    parameter_fetch_.Begin(*version, op);
    parameter_fetch_.Update();
  }

  // A program that asks for the ends of epochs is to see the parameters of each, if they are still
  // to be had.
  std::optional<ParameterFetch::Version> NewestBeforeEpochEnd(
      RoundId least, const std::function<bool(const ParameterFetch::Version&)>& known) const {
    if (parameters_.level()) {
      const std::optional<RoundId> end = with_.epoch_ends.Next(parameters_, rounds_);
      const auto version = parameter_fetch_.Newest(least, [&](const auto& candidate) {
        return (!end || candidate.next <= *end) && known(candidate);
      });
      if (version) return version;
    }
    return parameter_fetch_.Newest(least, known);
  }

  // What was read in place may have changed under the pass: then it is taken anew.
  void OnTaken(const event::OpDone& done) {
    const ParameterFetch::Version taken = parameter_fetch_.version();
    if (!parameter_fetch_.OnTaken(done)) return;
    if (parameters_.EndUpdate().abandoned) return;
    if (parameters_.catching_up()) {
      const std::uint32_t order = parameter_fetch_.catch_up()->order;
      const RoundId from = parameter_fetch_.catch_up()->from;
      parameter_fetch_.EndCatchUp();
      // Without an order the coordinator takes this worker to be level already.
      BecomeLevel(order == 0 ? from : taken.next, taken.attempt);
      if (order != 0) context_.Tell(msg::Level{parameters_.newest()->round, order});
      if (order != 0 || taken.next == from) return;
    }
    const RoundSums* sums = rounds_.SumsOf(RoundId(taken.next.value - 1));
    LOCKSTEP_CHECK(sums != nullptr && sums->commit().attempt == taken.attempt,
                   "I1: version {} was taken, and is not as it is committed", taken.next);
    TellApplied(sums->commit(), done.digest);
  }

  bool whole() const {
    return parameters_.level() && !parameters_.update() && !torn_ &&
           holdings_.version() == parameters_.next();
  }

  ParameterFetch parameter_fetch_;
  Holdings holdings_;
  bool detaching_ = false;
  bool torn_ = false;  // parts of another version may be in the parameters
};

}  // namespace

std::unique_ptr<Updates> MakeShardedUpdates(const UpdatesContext& with) {
  return std::make_unique<ShardedUpdates>(with);
}

}  // namespace lockstep::worker
