// The shards of one attempt's sums on one worker: which of them are here, where they lie, and what
// of them may still land. How they get here is the all-reduce's (all_reduce.h); what is promised
// about them is the attempt's (round_sums.h).
//
// In: the commit, fetches and copies that end. Out: OpenBlock, StoreInline, fetches, CopySums,
// Published. Its end gives up its fetches and gives back its buffers, so no byte of an attempt that
// was dropped lands anywhere (I4).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker/core/fetcher.h"

namespace lockstep::worker {

// Of a shard that is made here. It is reduced at most once, and never again once a holder was
// named.
enum class Making : std::uint8_t {
  kNone,       // another one's, and this worker does not stand in for it
  kWaiting,    // for what it is made of, and for a buffer
  kReducing,   // an operation is under way; or a copy to where it is published
  kPublished,  // it is in the buffer, and the coordinator was told
  kVoid,       // it comes from elsewhere, or cannot be made: an input changed
};

struct SumShard {
  std::uint32_t index;  // in the map's order
  MemberId owner;
  std::vector<Slice> slices;
  std::vector<FloatRange> ranges;  // in the buffer: the slices, and their norms when clipping
  Making making = Making::kNone;
  std::optional<MemberId> requested = {};  // from there
  std::optional<Source> mapped = {};       // read in place, out of the owner's memory
  mutable bool held = false;               // found to be in an own buffer, once
  bool made = false;                       // and that is the one which is published
};

class SumShards {
 public:
  // All of it outlives them.
  SumShards(Context& context, Buffers& buffers, Fetcher& fetcher, const msg::Commit& commit);
  SumShards(const SumShards&) = delete;
  SumShards& operator=(const SumShards&) = delete;
  ~SumShards();

  // One for each owner, in the map's order.
  auto begin() { return shards_.begin(); }
  auto end() { return shards_.end(); }
  auto begin() const { return shards_.begin(); }
  auto end() const { return shards_.end(); }
  SumShard& operator[](std::uint32_t index) { return shards_[index]; }
  SumShard* Of(const MemberId& owner);

  bool Held(const SumShard& shard) const;
  bool HoldsAll() const;
  // Where what others have made lands: what is there, and what was asked for and is not.
  const FloatSet& have() const { return have_; }
  const FloatSet& asked() const { return asked_; }
  // Something of it cannot be had from where it was; why.
  const std::optional<std::string>& gone() const { return gone_; }
  // Others' sums have been given back (GiveBackTaken).
  bool own_only() const { return own_only_; }
  // Of a shard that is held.
  Source SourceOf(const SumShard& shard) const;
  bool Reads(const MemberId& peer) const;
  std::optional<BufferRange> Find(const FloatRange& range) const;

  // False: not all buffers can be had now.
  [[nodiscard]] bool TakeBuffers();
  // The sums that are made here are published in it. None: nothing was taken yet.
  const std::optional<BufferId>& buffer() const { return buffer_; }
  const BufferId& Landing() const { return apart_ ? *landing_ : *buffer_; }
  bool apart() const { return apart_; }

  // These sums have come, or were made whole, where others' land.
  void Add(const FloatRange& range) { have_.Merge(range); }
  void NoteMade(SumShard& shard);
  // It is to be told to peers as the shard that this worker makes.
  void Publish(SumShard& shard);
  SumReady Announcement() const;
  // This worker makes another one's shard: its slices are to be had of each part.
  void StandIn(const SumShard& shard);
  std::span<const Slice> stood_in_for() const { return stood_in_for_; }

  // It does not ask again for what has come already, from whomever it came: all sources have the
  // same bits (I1).
  void Fetch(const MemberId& from, const MemberId& owner, std::span<const FloatRange> ranges);
  void FetchShard(SumShard& shard, const MemberId& from);
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  void ForgetRequests();
  void ForgetRequests(const MemberId& peer);
  void OnGone(const MemberId& holder);
  void Retry() { gone_.reset(); }
  // From now on all that is missing comes from there, the own shard too.
  void OnlyFrom(const MemberId& holder);

  // True when all that is held lies in an own buffer; else it is being copied there. Mapped shards
  // lie in a memory that may go with its owner.
  [[nodiscard]] bool Localize();
  // True when the operation was that copy. `applied`: it is too late for what it found torn.
  bool OnOpDone(const event::OpDone& done, bool applied);
  // Nothing is known of the shards that were mapped: they are fetched again, if anybody still has
  // them.
  void OnTorn();

  // True when all that is held is in the one buffer, and nothing else can land there (I4).
  [[nodiscard]] bool InOwnBuffer();
  // To be asked only when that is so. The buffer is the caller's from here on.
  BufferId HandOver();
  // False: it cannot be yet, or was.
  bool GiveBackTaken();

  void CheckInvariants() const;

 private:
  std::vector<FloatRange> Wanted(const SumShard& shard) const;
  // Gives up fetches; what is under way may still land.
  void Drop(const std::function<bool(const Want&)>& unwanted);

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const msg::Commit& commit_;

  std::vector<SumShard> shards_;
  // The sums made here are in `buffer_`, which is published. The sums that others have made land
  // apart from it where that can be given back earlier: not where all of it is passed on, or
  // updated in its place. Else it is the same buffer, and all that is here is in `have_`.
  const bool apart_;
  std::optional<BufferId> buffer_;
  std::optional<BufferId> landing_;
  const std::uint32_t generation_;  // of the buffer, once it is taken
  FloatSet made_;                   // apart: in the buffer
  FloatSet have_;                   // where it lands; never less, but for what is fetched anew
  FloatSet asked_;                  // fetches of it are queued or under way
  bool own_only_ = false;
  std::vector<Slice> stood_in_for_;
  std::optional<std::uint64_t> copy_op_;  // of mapped shards
  mutable bool all_held_ = false;         // found to be, once
  std::optional<std::string> gone_;
};

}  // namespace lockstep::worker
