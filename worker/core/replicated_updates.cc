// Updates where every worker holds the whole state and applies all sums to it. A worker that is
// behind copies the state bucket by bucket from a donor (catch_up.h), and any level worker is a
// donor (donor.h).
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "worker/core/catch_up.h"
#include "worker/core/donor.h"
#include "worker/core/updates.h"

namespace lockstep::worker {
namespace {

class ReplicatedUpdates final : public Updates {
 public:
  explicit ReplicatedUpdates(const UpdatesContext& with)
      : Updates(with),
        catch_up_(with.context, with.buffers, with.fetcher, with.peers),
        donor_(with.context, with.buffers) {}

  RoundId next() const override {
    return parameters_.catching_up() ? catch_up_.next() : parameters_.next();
  }

  // A worker that stands in for the owner fetches more of what was announced.
  void OnHedge(const msg::Hedge& hedge) override {
    if (sums_.OnHedge(hedge)) with_.inputs.OnMapChanged();
  }

  void OnPeerDown(const MemberId& peer) override {
    donor_.OnPeerDown(peer);
    catch_up_.OnPeerDown(peer);
  }

  void OnFetchDone(const Fetcher::Done& done) override { catch_up_.OnFetchDone(done); }

  bool OnOpDone(const event::OpDone& done) override {
    if (!IsUpdate(done)) return donor_.OnOpDone(done);
    OnApplied(done);
    return true;
  }

  Status OnStateWant(const MemberId& peer, const StateWant& want) override {
    return donor_.OnStateWant(peer, want);
  }

  Status OnStateReady(const MemberId& peer, const StateReady& ready) override {
    bool gone = false;
    Status status = catch_up_.OnStateReady(peer, ready, gone);
    if (gone) {
      context_.Tell(msg::Behind{parameters_.next(), false,
                                fmt::format("{} has no state to give", Name(peer)), order()});
    }
    return status;
  }

  Status OnStateTaken(const MemberId& peer, const StateTaken& taken) override {
    donor_.OnStateTaken(peer, taken);
    return {};
  }

  void Advance() override {
    LookForLoss();
    if (parameters_.catching_up()) WorkInWhileCatchingUp();
    ApplyIfPossible();
  }

  // A joiner is given the state between two updates, never in one.
  void CopyState() override {
    // A donor may hear of the start later than a joiner hears of its copy: the joiner waits.
    if (!parameters_.update() && parameters_.started()) {
      donor_.Update(parameters_.level() ? std::optional(parameters_.next()) : std::nullopt,
                    parameters_.newest() ? parameters_.newest()->attempt : Attempt());
    }
    catch_up_.Update(!parameters_.update() && !InUse() && !with_.evaluation.ReadsState() &&
                     !with_.upload.ReadsState());
  }

  void BeginCatchUp(const msg::CatchUp& order) override { catch_up_.Begin(order); }
  void CatchUpFrom(RoundId round) override { catch_up_.Restart(round); }
  bool CopiesOlder(RoundId round, Attempt attempt) const override {
    return catch_up_.ContainsOlder(round, attempt);
  }
  void BeginCheckpoint(const msg::Commit& commit) override { with_.upload.OnCheckpoint(commit); }

  std::string Copied() const override {
    return fmt::format(": {} of {} buckets were copied", catch_up_.buckets_copied(),
                       context_.layout.copy_count());
  }

  std::optional<BufferRange> FindPiece(const MemberId& peer,
                                       const PieceName& piece) const override {
    if (piece.kind != static_cast<std::uint32_t>(PieceKind::kState)) return std::nullopt;
    return donor_.FindPiece(peer, piece);
  }

  void CheckCheapInvariants() const override {
    LOCKSTEP_CHECK(parameters_.catching_up() == catch_up_.active(),
                   "a worker that catches up has no order to, or the other way round");
    const auto& update = parameters_.update();
    if (!update || update->abandoned) return;
    LOCKSTEP_CHECK(update->round == next(), "I1: round {} is applied, and {} comes next",
                   update->round, next());
    const RoundSums* sums = rounds_.SumsOf(update->round);
    LOCKSTEP_CHECK(sums != nullptr && sums->commit().attempt == update->attempt,
                   "I1: attempt {} at round {} is applied, and stands no longer", update->attempt,
                   update->round);
    LOCKSTEP_CHECK(sums->applied(), "I1: round {} is applied behind its sums", update->round);
  }

  void CheckInvariants() const override {
    catch_up_.CheckInvariants();
    donor_.CheckInvariants();
  }

 protected:
  std::uint32_t order() const override { return catch_up_.order(); }
  void EndCatchUp() override { catch_up_.End(); }

 private:
  // No other attempt at the round will be made: the commit of the round after it says so, or, at
  // the job's end, that the coordinator has finished. The newest one that was committed may be
  // tried again, or computed again; those before it stay closed then.
  bool Closed(RoundId round) const {
    const RoundId expected = rounds_.expected();
    return round.Next() < expected || round < rounds_.first_not_closed() ||
           (with_.ending.begun() && round < expected);
  }

  // While a round may get another attempt, or be computed again, a missing shard is the
  // coordinator's business: it sees the owner's deadline pass. Once the round is closed nobody will
  // make its sums anew, and once the holder that was named has lost them neither.
  void LookForLoss() {
    if (!parameters_.level() || parameters_.update()) return;
    const RoundSums* sums = rounds_.SumsOf(parameters_.next());
    if (!Closed(parameters_.next()) && (sums == nullptr || !sums->HolderFailed())) return;
    const std::uint64_t waiting = rounds_.expected().value - parameters_.next().value;
    if (const auto reason = sums_.Lost(parameters_.next())) {
      FallBehind(fmt::format("round {}: {}", parameters_.next(), *reason));
    } else if (waiting > kSumBuffers) {
      FallBehind(
          fmt::format("{} rounds have closed that it has not applied, and it has room for the sums "
                      "of {}",
                      waiting, kSumBuffers));
    }
  }

  // I1: in order, with all shards of one attempt, and never under a unit that reads the parameters
  // or an evaluation that waits for its snapshot of them.
  void ApplyIfPossible() {
    if (!parameters_.level() || parameters_.update() || InUse() ||
        with_.evaluation.WaitsForSnapshot() || !sums_.MayApply(parameters_.next())) {
      return;
    }
    action::Apply apply =
        rounds_.SumsOf(parameters_.next())->Apply([](std::uint32_t) { return true; });
    parameters_.BeginUpdate(apply.op, parameters_.next(), apply.attempt);
    context_.Emit(std::move(apply));
  }

  // Bucket by bucket, the copies stand at different rounds. The oldest round that a bucket still
  // lacks is applied to all buckets that are at it; then the next one. When all stand at the same
  // round, this worker is level.
  void WorkInWhileCatchingUp() {
    while (!parameters_.update()) {
      // Of rounds before the last one there is no other attempt.
      const RoundId expected = rounds_.expected();
      const RoundSums* last =
          expected.value > 0 ? rounds_.SumsOf(RoundId(expected.value - 1)) : nullptr;
      if (last != nullptr) catch_up_.LoseOlder(last->commit().round, last->commit().attempt);
      if (const auto level = catch_up_.LevelAt()) {
        catch_up_.End();
        BecomeLevel(level->next, level->attempt);
        rounds_.Expect(std::max(expected, level->next));
        context_.Tell(msg::Level{parameters_.newest()->round, catch_up_.order()});
        Prune();
        return;
      }
      const RoundId round = catch_up_.next();
      if (round >= expected) return;
      // No more rounds can be kept waiting than there are buffers for.
      const bool pressed = expected.value - round.value >= kSumBuffers;
      if (catch_up_.NeededByCopy(round) && !pressed) return;
      if (!catch_up_.AnyAt(round)) {
        catch_up_.Advance(Attempt());
      } else if (sums_.MayApply(round)) {
        if (InUse()) return;
        action::Apply apply = rounds_.SumsOf(round)->Apply([&](std::uint32_t bucket) {
          return catch_up_.At(context_.layout.copy_of(bucket), round);
        });
        catch_up_.BeginApply(round);
        parameters_.BeginUpdate(apply.op, round, apply.attempt);
        context_.Emit(std::move(apply));
      } else if (Closed(round) && (pressed || sums_.Lost(round))) {
        catch_up_.Lose(round);
      } else {
        return;
      }
      Prune();
    }
  }

  // The update has ended; only now is the round in the parameters. Mapped sums are read in place,
  // so their owner may have died or gone on under the pass: then what was written is nothing that
  // anybody else has.
  void OnApplied(const event::OpDone& done) {
    const auto [op, round, attempt, abandoned] = parameters_.EndUpdate();
    RoundSums* sums = rounds_.SumsOf(round);
    if (done.torn && sums != nullptr) sums->OnTornApply();
    if (abandoned) return;
    if (parameters_.catching_up()) {
      if (done.torn) catch_up_.Lose(round);
      catch_up_.Advance(attempt);
      return;
    }
    if (done.torn) {
      FallBehind(fmt::format("round {}: the worker whose sum it read in shared memory ended or "
                             "went on meanwhile",
                             round),
                 false);
      return;
    }
    LOCKSTEP_CHECK(sums != nullptr && sums->commit().attempt == attempt,
                   "I1: round {} was applied, but not as it is committed", round);
    TellApplied(sums->commit(), done.digest);
  }

  CatchUpJob catch_up_;
  Donor donor_;
};

}  // namespace

std::unique_ptr<Updates> MakeReplicatedUpdates(const UpdatesContext& with) {
  return std::make_unique<ReplicatedUpdates>(with);
}

}  // namespace lockstep::worker
