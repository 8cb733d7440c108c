// The sums of the committed rounds: reducing the own shard, publishing it, getting the others'
// shards, and what may be said about them when something fails. An entry is one round's current
// attempt; entries stay until two later rounds are committed and theirs is applied.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker/core/inputs.h"
#include "worker/core/own_work.h"

namespace lockstep::worker {

class Sums {
 public:
  Sums(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers, Inputs& inputs,
       OwnWork& own)
      : context_(context),
        buffers_(buffers),
        fetcher_(fetcher),
        peers_(peers),
        inputs_(inputs),
        own_(own) {}

  // False when this attempt is known already, or an older one than is known. The same commit may
  // come again with another writer of the checkpoint.
  bool OnCommit(const Commit& commit);
  // The commit is known already.
  void OnTakeSums(const TakeSums& take);
  void OnFenceAttempt(const FenceAttempt& fence);
  Status OnSumReady(const MemberId& peer, const SumReady& ready, std::span<const std::byte> floats);
  void OnSumWant(const MemberId& peer, const SumWant& want);
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  void OnPeerUp(const MemberId& peer);
  // True when the operation was of the sums.
  bool OnOpDone(const event::OpDone& done);
  // The round is planned anew: no attempt at it stands.
  void Drop(RoundId round);
  void DropFrom(RoundId round);

  // Takes buffers, reduces, fetches.
  void Update();

  bool Committed(RoundId round) const { return Find(round) != nullptr; }
  const Commit* Find(RoundId round) const;
  // It was promised not to apply the round's attempt.
  bool Fenced(RoundId round) const;
  // All shards of the round's attempt are here and may be applied.
  bool MayApply(RoundId round) const;
  // The update of the buckets that `wanted` names, out of the shards. Marks the round as applied.
  action::Apply Apply(RoundId round, const std::function<bool(std::uint32_t bucket)>& wanted);
  // Mapped shards changed while the round was applied.
  void OnTornApply(RoundId round);
  // The rounds before `next` are applied, those from `kept` on are still taken by others.
  void DropApplied(RoundId next, RoundId kept);
  // Who was named as holder has them no longer.
  bool HolderFailed(RoundId round) const;
  // A closed round's shards cannot be had any more: why.
  std::optional<std::string> Lost(RoundId round) const;

  // Shards are read out of this peer's memory.
  bool Reads(const MemberId& peer) const;
  // What the round's update waits for, for people.
  std::string Missing(RoundId round) const;
  std::optional<BufferRange> FindPiece(const PieceName& piece) const;

 private:
  enum class Own : std::uint8_t { kNothing, kWaiting, kReducing, kPublished, kVoid };
  struct Shard {
    MemberId owner;
    std::vector<Slice> slices;
    std::vector<FloatRange> ranges;  // of the slices, and of their norms when clipping
    bool requested = false;
    std::optional<Source> mapped;
    mutable bool held = false;  // found to be, once
  };
  struct Entry {
    Commit commit;
    std::vector<Shard> shards;
    std::optional<BufferId> buffer;
    std::uint32_t generation = 0;
    FloatSet have;  // in the buffer
    FloatSet asked;
    Own own = Own::kNothing;
    std::optional<std::uint64_t> op;       // reduction
    std::optional<std::uint64_t> copy_op;  // of mapped shards, before holding them is promised
    std::optional<FenceAttempt> asked_to_hold;
    std::optional<MemberId> holder;  // TakeSums: where everything is fetched from
    bool holder_asked = false;
    bool holder_ready = false;
    std::set<MemberId> wanted_by;  // others were told to fetch everything here
    bool fenced = false;           // promised not to apply it
    bool applied = false;
    mutable bool all_held = false;  // found to be, once
    std::optional<std::string> gone;
  };
  struct Heard {
    SumReady ready;
    std::vector<std::byte> floats;
  };

  Entry* FindEntry(RoundId round);
  Entry& Create(const Commit& commit);
  void Erase(std::map<RoundId, Entry>::iterator at);
  bool Held(const Entry& entry, const Shard& shard) const;
  bool HoldsAll(const Entry& entry) const;
  bool TakeBuffer(Entry& entry);
  void TryReduce(Entry& entry);
  void Publish(Entry& entry);
  SumReady ReadyOf(const Entry& entry) const;
  void SaySumReady(const Entry& entry, const MemberId& to);
  void Absorb(Entry& entry, Shard& shard);
  bool StoreInlined(Entry& entry, const Shard& shard, const Heard& heard);
  void FetchMissing(Entry& entry, const Shard& shard, const MemberId& from);
  void AskHolder(Entry& entry);
  bool Localize(Entry& entry);
  void TryAnswerHold(Entry& entry);
  void TryServeAll(Entry& entry);
  Shard* OwnShard(Entry& entry);

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  Inputs& inputs_;
  OwnWork& own_;
  std::map<RoundId, Entry> entries_;
  // What owners said last, also of rounds whose commit is still to come: one for each round that
  // could still be taken.
  std::map<MemberId, std::array<std::optional<Heard>, kSumBuffers>> heard_;
};

}  // namespace lockstep::worker
