// Sums that are passed on (routes.h), of one attempt, on one worker: partial sums are taken from
// those below, this worker's own parts are added, and the result is told to who is above; the whole
// sums come back the same way. Piece by piece, so that all are at work at the same time.
//
// In: what neighbours say (heard_sums.h), fetches and reductions that end. Out: fetches, reductions
// and SumReady to neighbours; in the buffer of the round's sums, which is round_sums.h's, whole
// sums.
//
// A partial sum lies where the whole one will: once that is here, whoever is above has read the
// partial one long ago, for the whole one was made of it. From then on it is served to nobody.
//
// There is no recovery in here. Who is stopped, or gone, stops all that are above it on the way up
// and all that are below it on the way down; the coordinator sees that, and has another attempt
// made, which is direct, or has the sums taken from who has them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/routes.h"
#include "worker/core/fetcher.h"
#include "worker/core/heard_sums.h"
#include "worker/core/own_work.h"

namespace lockstep::worker {

// What of a shard is passed on at once, in the order in which it is. All cut it alike: pieces are
// so small that a long way is filled soon, and not so small that messages take longer than bytes.
std::vector<Slice> RoutedPieces(const Layout& layout, const std::vector<Slice>& shard,
                                std::size_t contributors, std::uint64_t piece_bytes);

class RoutedSums {
 public:
  // The whole sums of the attempt, which are another's: where they lie, and what of them is there
  // and asked for.
  struct Sums {
    std::function<bool()> take_buffer;
    const std::optional<BufferId>* buffer;
    FloatSet* have;
    FloatSet* asked;
  };

  RoutedSums(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers,
             const OwnWork& own, const HeardSums& heard, const msg::Commit& commit,
             std::uint32_t generation, Sums sums);

  // Does all that can be done by now.
  void Update();
  // The shard's sums were all made here, by its owner.
  bool Made(std::uint32_t shard) const;
  // A reduction writes to the buffer.
  bool Adding() const;

  // An error: the peer said what cannot be.
  Status OnPassed(const MemberId& peer, const PassedOn& passed) const;
  bool OnOpDone(const event::OpDone& done);     // true when it was of these sums
  void OnFetchDone(const Fetcher::Done& done);  // of a partial sum
  void OnDropped(const Want& want);             // the same
  void OnPeerUp(const MemberId& peer);
  void OnPeerDown(const MemberId& peer);

  std::optional<BufferRange> FindPartial(const PieceName& piece) const;
  // From whom the shard's whole sums come; none: they are made here.
  const std::optional<MemberId>& Above(std::uint32_t shard) const {
    return shards_[shard].route.above;
  }
  std::string Missing(std::uint32_t shard) const;  // for people

  void CheckInvariants() const;

 private:
  struct Below {
    MemberId member;
    FloatSet have;             // in its staging buffer; never less
    FloatSet asked;            // fetches of it are queued or under way
    std::uint32_t staged = 0;  // the first so many pieces are in `have`
    bool blocked = true;       // the staging buffer is still used on behalf of an older attempt
    bool gone = false;         // by its worker: it is not asked for again
  };
  struct Shard {
    MemberId owner;
    Route route;
    std::vector<Slice> pieces;
    bool rides = false;  // it is so small that it rides on the message that tells of it
    std::vector<Below> below;
    std::uint32_t added = 0;          // of the first so many pieces the sum of all below and here
    std::optional<std::uint64_t> op;  // makes more of it, up to:
    std::uint32_t op_until = 0;
    std::uint32_t whole = 0;                 // the first so many pieces are in `have` of the sums
    std::map<MemberId, std::uint32_t> told;  // above of `added`, the others of `whole`
  };

  BufferId Staging(const MemberId& below) const {
    return {BufferKind::kStaging, kPartialStaging, below.worker};
  }
  std::vector<FloatRange> RangesOf(const Shard& shard, bool norms) const;
  void AppendRanges(const Slice& piece, bool norms, std::vector<FloatRange>* ranges) const;
  void Take(std::uint32_t index, Shard& shard, Below& below);
  void Add(Shard& shard);
  void TakeWhole(std::uint32_t index, Shard& shard);
  void FetchWhole(Shard& shard, const HeardSums::Heard& heard, std::uint32_t until);
  void TellAll(std::uint32_t index, Shard& shard);
  void Tell(std::uint32_t index, Shard& shard, const MemberId& to, bool whole,
            std::uint32_t pieces);
  static std::uint32_t TellsOf(const HeardSums::Heard& heard, const Shard& shard);
  bool StoreInlined(const HeardSums::Heard& heard, const std::vector<FloatRange>& ranges,
                    const BufferId& to);
  PieceName NameOf(PieceKind kind, const Shard& shard) const;
  Below* Find(const Want& want);

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  const OwnWork& own_;
  const HeardSums& heard_;
  const msg::Commit& commit_;
  const std::uint32_t generation_;
  const Sums sums_;
  std::vector<Shard> shards_;  // one for each owner, in the map's order
};

}  // namespace lockstep::worker
