// The sums of one round, as one attempt at it makes them, on one worker. It decides what may be
// said about all of them when something fails, and that they are applied. The shards come by the
// attempt's all-reduce (all_reduce.h).
//
// In: the commit, what owners say (heard_sums.h), fetches and operations that end. Also in: orders
// of the coordinator to stand in for an owner, to fence the attempt or to take everything from a
// holder. Out: what the all-reduce does, HoldAnswer, SumWant, and the update of the parameters.
//
// Another attempt is another object.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/result.h"
#include "worker/core/all_reduce.h"
#include "worker/core/sum_shards.h"

namespace lockstep::worker {

// The life of an attempt on a member: it is committed. The own shard is reduced when all parts of
// the commit are here, and published. The other shards come, each from its owner. When all are
// held, it may be applied. The own shard stays, for those who are late, until three later rounds
// are committed.
//
// When an owner is silent while others have published, one of these stands in for it
// (direct_sums.cc). Where that cannot be done, as parts are gone with the owner, the coordinator
// asks everybody: do you hold all shards? "Yes" means "and others can fetch them from me". "No" is
// a promise not to apply them. That promise makes it safe to sum the round again, over other parts
// or by other owners (I1: one result, wherever it is applied). If somebody said yes, this attempt
// stands: everybody takes what is missing from that holder, and the promises end.
class RoundSums {
 public:
  RoundSums(const SumsContext& with, const msg::Commit& commit);

  const msg::Commit& commit() const { return commit_; }
  // The same commit came again, with another writer of its checkpoint.
  void NameCheckpointWriter(const msg::Commit& same);
  // The part is one of those that are summed.
  bool Commits(const MemberId& member, PartIndex part) const;

  // Takes buffers, reduces, fetches, answers what can be answered by now.
  void Update();

  // True when this worker stands in for the owner from here on.
  [[nodiscard]] bool OnHedge(const MemberId& owner, const MemberId& by) {
    return !holder_ && all_reduce_->OnHedge(owner, by);
  }
  // The slices of those that it stands in for: they are to be had of each part.
  std::span<const Slice> stood_in_for() const { return shards_.stood_in_for(); }
  void OnTakeSums(const MemberId& holder);
  void OnFenceAttempt(const msg::FenceAttempt& fence);
  // The peer publishes its shard, or, as the holder that was asked, all of them. An error: the peer
  // said what cannot be. True: to be remembered as what an owner said.
  Result<bool> OnSumReady(const MemberId& peer, const SumReady& ready);
  // False: not all of them are here.
  [[nodiscard]] bool OnSumWant(const MemberId& peer);
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  void OnPeerUp(const MemberId& peer);
  // The pieces that were asked of it may be had elsewhere.
  void OnPeerDown(const MemberId& peer);
  // True when the operation was of these sums.
  bool OnOpDone(const event::OpDone& done) {
    return all_reduce_->OnOpDone(done) || shards_.OnOpDone(done, applied_);
  }

  // All shards of the attempt are here and may be applied.
  bool MayApply() const { return !fenced_ && shards_.HoldsAll(); }
  bool applied() const { return applied_; }
  // With optimizer.replicas: all shards that this worker holds are in the own buffer, or it holds
  // none. Mapped sums are copied there first.
  [[nodiscard]] bool InOwnBuffer() { return shards_.InOwnBuffer(); }
  // To be asked only when that is so. The buffer is the caller's from here on; the round counts as
  // applied.
  BufferId HandOver();
  // To be asked only when MayApply. The update of the buckets that `wanted` names, out of the
  // shards. From here on the round counts as applied.
  action::Apply Apply(const std::function<bool(std::uint32_t bucket)>& wanted);
  // Mapped shards changed while they were applied.
  void OnTornApply();
  // The round is closed, and in the parameters: what others have summed of it is needed no longer.
  // The exception is where somebody was told that all of it can be had here.
  void KeepOwnOnly();
  // The worker that was named as holder has them no longer.
  bool HolderFailed() const { return holder_ && shards_.gone() && !shards_.HoldsAll(); }
  // The shards cannot be had any more, if the round is closed: why.
  std::optional<std::string> Lost() const;

  // Shards are read out of this peer's memory.
  bool Reads(const MemberId& peer) const { return shards_.Reads(peer); }
  // Names, for people, what the update waits for.
  std::string Missing() const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;

  void CheckInvariants() const;

 private:
  // A member that holds everything, where what is missing is taken from. It is asked first, because
  // it may have to copy what it reads out of others' memories before anybody can fetch it.
  struct Holder {
    enum class State : std::uint8_t { kToAsk, kAsked, kReady };
    MemberId member;
    State state = State::kToAsk;
  };

  void TakeFromHolder();
  void TryAnswerHold();
  void TryServeAll();

  Context& context_;
  Buffers& buffers_;
  const Peers& peers_;

  msg::Commit commit_;
  SumShards shards_;
  const std::unique_ptr<AllReduce> all_reduce_;
  bool named_ = false;  // others may be told that all of it can be had here
  std::optional<msg::FenceAttempt> asked_to_hold_;
  std::optional<Holder> holder_;
  std::set<MemberId> wanted_by_;  // others were told to fetch everything here
  // Two promises that exclude each other: the attempt is in the parameters (or on its way there),
  // or never will be, unless the coordinator says that it stands after all.
  bool applied_ = false;
  bool fenced_ = false;
};

}  // namespace lockstep::worker
