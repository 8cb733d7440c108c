// The sums of one round, as one attempt at it makes them, on one worker: the own shard is reduced
// and published, the other shards are taken from their owners or from who stands in for them, and
// what may be said about all of them when something fails is decided here.
//
// In: the commit, what owners say (heard_sums.h), fetches and operations that end, orders of the
// coordinator to stand in for an owner, to fence the attempt or to take everything from a holder.
// Out: reductions, fetches, Published or NotFinite, SumReady, HoldAnswer, and the update of the
// parameters.
//
// Another attempt is another object. Its end gives up its fetches and gives back its buffer, so no
// byte of a round that was dropped lands anywhere (I4).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/core/heard_sums.h"
#include "worker/core/inputs.h"
#include "worker/core/own_work.h"
#include "worker/core/routed_sums.h"

namespace lockstep::worker {

// What the sums work with; all of it outlives them.
struct SumsContext {
  Context& context;
  Buffers& buffers;
  Fetcher& fetcher;
  const Peers& peers;
  Inputs& inputs;
  const OwnWork& own;
};

// The life of an attempt on a member: committed; the own shard is reduced when all parts of the
// commit are here, and published; the other shards come, each from its owner; all held, it may be
// applied. The own shard stays, for those who are late, until three later rounds are committed.
//
// When an owner is silent while others have published, one of these stands in for it: it makes the
// same sums once more, out of the same parts, and everybody takes them from whichever of the two is
// first. Which bits come out is fixed by the commit (I1), so nobody has to be asked or fenced.
//
// Where that cannot be done, as parts are gone with the owner, the coordinator asks everybody: do
// you hold all shards? "Yes" means "and others can fetch them from me", "no" is a promise not to
// apply them, which is what makes it safe to sum the round again, over other parts or by other
// owners (I1: one result, wherever it is applied). If somebody said yes, this attempt stands:
// everybody takes what is missing from that holder, and the promises end.
class RoundSums {
 public:
  RoundSums(const SumsContext& with, const HeardSums& heard, const msg::Commit& commit);
  RoundSums(const RoundSums&) = delete;
  RoundSums& operator=(const RoundSums&) = delete;
  ~RoundSums();

  const msg::Commit& commit() const { return commit_; }
  // The same commit came again, with another writer of its checkpoint.
  void NameCheckpointWriter(const msg::Commit& same);
  // The part is one of those that are summed.
  bool Commits(const MemberId& member, PartIndex part) const;

  // Takes buffers, reduces, fetches, answers what can be answered by now.
  void Update();

  // True when this worker stands in for the owner from here on.
  [[nodiscard]] bool OnHedge(const MemberId& owner, const MemberId& by);
  // The slices of those that it stands in for: they are to be had of each part.
  std::span<const Slice> stood_in_for() const { return stood_in_for_; }
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
  // What was asked of it may be had elsewhere.
  void OnPeerDown(const MemberId& peer);
  // True when the operation was of these sums.
  bool OnOpDone(const event::OpDone& done);

  // All shards of the attempt are here and may be applied.
  bool MayApply() const { return !fenced_ && HoldsAll(); }
  bool applied() const { return applied_; }
  // With optimizer.replicas: all shards that this worker holds are in the own buffer, or it holds
  // none. What is mapped is copied there first.
  [[nodiscard]] bool InOwnBuffer();
  // To be asked only when that is so. The buffer is the caller's from here on; the round counts as
  // applied.
  BufferId HandOver();
  // To be asked only when MayApply. The update of the buckets that `wanted` names, out of the
  // shards. From here on the round counts as applied.
  action::Apply Apply(const std::function<bool(std::uint32_t bucket)>& wanted);
  // Mapped shards changed while they were applied.
  void OnTornApply();
  // The round is closed, and in the parameters: what others have summed of it is needed no longer,
  // but where somebody was told that all of it can be had here.
  void KeepOwnOnly();
  // Who was named as holder has them no longer.
  bool HolderFailed() const { return holder_ && gone_ && !HoldsAll(); }
  // The shards cannot be had any more, if the round is closed: why.
  std::optional<std::string> Lost() const;

  // Shards are read out of this peer's memory.
  bool Reads(const MemberId& peer) const;
  // What the update waits for, for people.
  std::string Missing() const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;

  void CheckInvariants() const;

 private:
  // Of a shard that is made here. It is reduced at most once, and never again once a holder was
  // named.
  enum class Making : std::uint8_t {
    kNone,       // another one's, and this worker does not stand in for it
    kWaiting,    // for the parts of the commit, and for a buffer
    kReducing,   // an operation is under way; or a copy to where it is published
    kPublished,  // it is in the buffer, and the members were told
    kVoid,       // it comes from elsewhere, or cannot be made: an input changed
  };
  struct Shard {
    MemberId owner;
    std::optional<MemberId> stand_in;  // who makes it as well
    std::vector<Slice> slices;
    std::vector<FloatRange> ranges;  // in the buffer: the slices, and their norms when clipping
    Making making = Making::kNone;
    std::optional<std::uint64_t> reduce_op;  // while it is kReducing
    std::optional<MemberId> requested;       // from there
    std::optional<Source> mapped;            // read in place, out of the owner's memory
    mutable bool held = false;               // found to be in an own buffer, once
    bool made = false;                       // and that is the one which is published
  };
  // A member that holds everything, where what is missing is taken from. It is asked first, because
  // it may have to copy what it reads out of others' memories before anybody can fetch it.
  struct Holder {
    enum class State : std::uint8_t { kToAsk, kAsked, kReady };
    MemberId member;
    State state = State::kToAsk;
  };

  std::vector<FloatRange> Wanted(const Shard& shard) const;
  bool Held(const Shard& shard) const;
  bool HoldsAll() const;
  bool TakeBuffers();
  void FitBuffer();
  const BufferId& Landing() const { return apart_ ? *landing_ : *buffer_; }
  void NoteMade(Shard& shard);
  bool Covers(const FloatRange& range) const;
  void CopyToPublish(Shard& shard);
  std::string PartsMissing(const Shard& shard) const;
  std::optional<Source> SourceOf(const CommittedPart& part, const Shard& shard) const;
  void TryReduce(Shard& shard);
  void Publish(Shard& shard);
  SumReady Announcement() const;
  void SaySumReady(const MemberId& to, const Shard& shard);
  const HeardSums::Heard* WhereReady(const Shard& shard, MemberId& from) const;
  void PassOn();
  void Absorb(Shard& shard);
  bool StoreInlined(const Shard& shard, const HeardSums::Heard& heard);
  void FetchMissing(Shard& shard, const MemberId& from);
  void AskHolder();
  // True when all that is held lies in the own buffer; else it is being copied there.
  bool Localize();
  void TryAnswerHold();
  void TryServeAll();
  Shard* ShardOf(const MemberId& owner);
  std::uint32_t IndexOf(const Shard& shard) const;

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  Inputs& inputs_;
  const OwnWork& own_work_;
  const HeardSums& heard_;

  msg::Commit commit_;
  std::vector<Shard> shards_;  // one for each owner, in the map's order
  // What is made here is in `buffer_`, which is published. What others have made lands apart from
  // it where that can be given back earlier: not where all of it is passed on, or updated in its
  // place. Else it is the same buffer, and all that is here is in `have_`.
  const bool apart_;
  std::optional<BufferId> buffer_;
  std::optional<BufferId> landing_;
  const std::uint32_t generation_;   // of the buffer, once it is taken
  FloatSet made_;                    // apart: in the buffer
  FloatSet have_;                    // where it lands; never less, but for what is fetched anew
  FloatSet asked_;                   // fetches of it are queued or under way
  bool named_ = false;               // others may be told that all of it can be had here
  bool own_only_ = false;            // KeepOwnOnly has given back the rest
  std::vector<Slice> stood_in_for_;  // of all shards that it stands in for
  std::optional<std::uint64_t> copy_op_;  // of mapped shards, before holding them is promised
  std::optional<msg::FenceAttempt> asked_to_hold_;
  std::optional<Holder> holder_;
  std::set<MemberId> wanted_by_;  // others were told to fetch everything here
  // Two promises that exclude each other: the attempt is in the parameters (or on its way there),
  // or never will be, unless the coordinator says that it stands after all.
  bool applied_ = false;
  bool fenced_ = false;
  mutable bool all_held_ = false;  // found to be, once
  // Where the commit is not direct: makes the shards, and takes them from neighbours instead of
  // from owners, until a holder is named.
  std::optional<RoutedSums> routed_;
  // Something of it cannot be had from where it was; why.
  std::optional<std::string> gone_;
};

}  // namespace lockstep::worker
