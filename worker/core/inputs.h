// The contributions of other workers, as an owner sees them: what is announced, what of it has
// arrived, what is still to be fetched, and the receipts.
//
// In: what workers announce (PartReady), fetches that end, commits. Out: fetches, and Receipts to
// the coordinator. It decides which staging buffer a part goes to, and when that may be written
// anew. That is never while a fetch or a reduction uses it on behalf of another part (I4).
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "worker/core/fetcher.h"
#include "worker/core/live_rounds.h"
#include "worker/core/peers.h"

namespace lockstep::worker {

// The life of a part here: it is announced, bucket by bucket. The slices of it that this worker
// owns are fetched, or were sent along, into one staging buffer. When all of them are here and the
// part is sealed, a receipt is sent. Then, if it is in the commit, it is a source of the reduction.
// It is gone when its round is closed. A part of a mapped peer is only noted: it is read in place,
// as a whole.
//
// One worker has at most two parts in each of the two rounds that are not closed (the open one and
// the provisional one). Hence there are four staging buffers for each worker, whatever the number
// of rounds (I7). Two of them do as a rule, one for each part. A worker that announces a part of
// the open round has the one before in its parameters, so no attempt will ever ask for its part in
// that.
class Inputs {
 public:
  Inputs(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers,
         LiveRounds& rounds)
      : context_(context), buffers_(buffers), fetcher_(fetcher), peers_(peers), rounds_(rounds) {}

  // An error: the peer said what cannot be.
  Status OnPartReady(const MemberId& peer, const PartReady& ready,
                     std::span<const std::byte> floats);
  void OnFetchDone(const Fetcher::Done& done);
  // A want that was queued will not be fetched.
  void OnDropped(const Want& want);
  void OnPeerUp(const MemberId& peer);
  // A map has changed: other pieces may be missing.
  void OnMapChanged() { MarkAll(); }
  // Only the parts of the commit are wanted from here on, and nothing of the rounds before it.
  // Where the next round carries work on, what has come of the others is kept: their workers
  // announce them anew for the next round.
  void OnCommit(const msg::Commit& commit);

  // Fetches what is missing and tells the coordinator what is complete: one Receipts a round.
  void Update();

  // Where these slices of a part can be read; none while they are not complete. Fetched are those
  // of the own shard, and of the shards of owners that this worker stands in for.
  std::optional<Source> Complete(RoundId round, const MemberId& member, PartIndex part,
                                 std::span<const Slice> slices);

  void CheckInvariants() const;

 private:
  struct Key {
    WorkerId worker;
    // Of the staging buffer: the part's, or any that is free where work carried on lies there.
    std::uint32_t index = 0;
    auto operator<=>(const Key&) const = default;
  };
  // A part that was announced, and its staging buffer. `have` and `asked` do not meet, and are of
  // this very part: while the buffer is blocked both are empty.
  struct Input {
    MemberId member;
    PartReady ready;  // the latest; its `inlined` is not kept
    FloatSet have;    // in the buffer; never less
    FloatSet asked;   // fetches of it are queued or under way
    // The staging buffer is still used on behalf of what was announced before.
    bool blocked = false;
    bool gone = false;  // by its worker: it is not asked for again
    bool dirty = true;
    std::optional<std::uint32_t> receipted;  // for this version of the map
    std::uint64_t fits = 0;                  // ShapeOf what was last fetched of it
  };

  // A key is never in use for two parts. Where a part takes the place of another one, the fetches
  // of the older are cancelled. The newer waits until none of them can land any more.
  using Entry = std::pair<const Key, Input>;
  // Of this worker, for which `fits` holds.
  Entry* FindOf(WorkerId worker, const std::function<bool(const Input&)>& fits);
  // Where a part that was not announced before goes.
  Key KeyFor(const MemberId& peer, const PartReady& ready);
  static BufferId Staging(const Key& key) { return {BufferKind::kStaging, key.index, key.worker}; }
  Status CheckPlausible(const PartReady& ready) const;
  bool Wanted(const Input& input) const;
  bool HasShard(const Input& input);
  bool Has(const Input& input, std::span<const Slice> slices) const;
  bool HasNoneBut(const Input& input, std::span<const Slice> slices) const;
  void DropClosed(RoundId committed);
  void StoreInlined(const Key& key, Input& input, const InlineRanges& inlined,
                    std::span<const std::byte> floats);
  void FetchMissing(const Key& key, Input& input);
  void FetchMissing(const Key& key, Input& input, std::span<const Slice> slices);
  void FitStaging(const Key& key, Input& input, std::span<const Slice> slices);
  // To be looked at in the next Update. An input that nothing has happened to is not: in a job of a
  // thousand workers most steps concern one of them.
  void Mark(const Key& key, Input& input);
  void MarkAll();

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  LiveRounds& rounds_;
  bool carries_ = false;  // the open round carries on work of the one before
  std::map<Key, Input> inputs_;
  std::set<Key> dirty_;  // those to look at: dirty or blocked
};

}  // namespace lockstep::worker
