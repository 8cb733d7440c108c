// The contributions of other workers, as an owner sees them: what is announced, what of it has
// arrived, what is still to be fetched, and the receipts.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "worker/machine/fetcher.h"
#include "worker/machine/peers.h"
#include "worker/machine/round_maps.h"

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
  // Only these parts of the round are wanted from here on.
  void OnCommit(const Commit& commit);
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
    std::uint32_t index = 0;  // of the staging buffer: 2 * (round % 2) + part
    auto operator<=>(const Key&) const = default;
  };
  struct Input {
    MemberId member;
    PartReady ready;  // the latest; its `inlined` is not kept
    IntervalSet have;
    IntervalSet asked;
    // The staging buffer is still used on behalf of what was announced before.
    bool blocked = false;
    bool gone = false;
    bool dirty = true;
    std::optional<std::uint32_t> receipted;  // for this version of the map
  };

  static Key KeyOf(WorkerId worker, RoundId round, PartIndex part) {
    return {worker, static_cast<std::uint32_t>(2 * (round.value % 2)) + part.value};
  }
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
  std::map<Key, Input> inputs_;
  std::set<Key> dirty_;  // those to look at: dirty or blocked
  std::map<RoundId, std::set<std::pair<MemberId, PartIndex>>> committed_;
};

}  // namespace lockstep::worker
