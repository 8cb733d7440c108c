// The contributions of other workers, as an owner sees them: what is announced, what of it has
// arrived, what is still to be fetched, and the receipts.
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

class Inputs {
 public:
  Inputs(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers, RoundMaps& maps)
      : context_(context), buffers_(buffers), fetcher_(fetcher), peers_(peers), maps_(maps) {}

  // An error: the peer said what cannot be.
  Status OnPartReady(const MemberId& peer, const PartReady& ready,
                     std::span<const std::byte> floats);
  void OnFetchDone(const Fetcher::Done& done);
  // A want that was queued will not be fetched.
  void OnDropped(const Want& want);
  void OnPeerUp(const MemberId& peer);
  // A map has changed: other pieces may be missing.
  void OnMapChanged() { MarkAll(); }
  // Only these parts of the round are wanted from here on; with `carries` what has come of the
  // others is kept, their workers announce them anew for the next round.
  void OnCommit(const Commit& commit, bool carries);
  // The round is open again: parts of it are announced and wanted as before a commit.
  void OnReopened(RoundId round);
  void DropBefore(RoundId round);

  // Fetches what is missing and tells the coordinator what is complete: one Receipts a round.
  void Update();

  // Where this worker's shard of a part can be read; none while it is not complete.
  std::optional<Source> Complete(RoundId round, const MemberId& member, PartIndex part);

 private:
  struct Key {
    WorkerId worker;
    // Of the staging buffer: 2 * (round % 2) + part of the round in which it was announced first,
    // or any that is free where work carried on lies there.
    std::uint32_t index = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Input {
    MemberId member;
    PartReady ready;  // the latest; its `inlined` is not kept
    FloatSet have;
    FloatSet asked;
    // The staging buffer is still used on behalf of what was announced before.
    bool blocked = false;
    bool gone = false;
    bool dirty = true;
    std::optional<std::uint32_t> receipted;  // for this version of the map
  };

  using Entry = std::pair<const Key, Input>;
  // Of this worker, for which `fits` holds.
  Entry* FindOf(WorkerId worker, const std::function<bool(const Input&)>& fits);
  // Where a part that was not announced before goes.
  Key KeyFor(const MemberId& peer, const PartReady& ready);
  static BufferId Staging(const Key& key) { return {BufferKind::kStaging, key.index, key.worker}; }
  Status CheckPlausible(const PartReady& ready) const;
  bool Wanted(const Input& input) const;
  bool HasShard(const Input& input);
  void StoreInlined(const Key& key, Input& input, const InlineRanges& inlined,
                    std::span<const std::byte> floats);
  void FetchMissing(const Key& key, Input& input);
  void Mark(const Key& key, Input& input);
  void MarkAll();

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  RoundMaps& maps_;
  RoundId oldest_;
  bool carries_ = false;  // the open round carries on work of the one before
  std::map<Key, Input> inputs_;
  std::set<Key> dirty_;  // those to look at: dirty or blocked
  std::map<RoundId, std::set<std::pair<MemberId, PartIndex>>> committed_;
};

}  // namespace lockstep::worker
