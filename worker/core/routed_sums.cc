// The all-reduce by neighbours, in rings or trees (base/routes.h): partial sums are taken from
// those below, this worker's own parts are added, and the result is told to who is above; the whole
// sums come back the same way. Piece by piece, so that all are at work at the same time.
//
// A partial sum lies where the whole one will: once that is here, whoever is above has read the
// partial one long ago, for the whole one was made of it. From then on it is served to nobody.
//
// There is no recovery in here. Who is stopped, or gone, stops all that are above it on the way up
// and all that are below it on the way down; the coordinator sees that, and has another attempt
// made, which is direct, or has the sums taken from who has them.
#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/routes.h"
#include "worker/core/all_reduce.h"

namespace lockstep::worker {
namespace {

// Of a shard's way from one contributor to the next: while one piece is on it, others are before
// and behind.
constexpr std::uint64_t kPiecesForEach = 8;
constexpr std::uint64_t kLeastPieceFloats = 16 * kGrain;
// That one reduction makes: who is above begins with the first of them soon.
constexpr std::uint32_t kPiecesAtOnce = 4;

class RoutedSums final : public AllReduce {
 public:
  RoutedSums(const SumsContext& with, const msg::Commit& commit, SumShards& sums);

  void Update() override;
  Status OnPassed(const MemberId& peer, const PassedOn& passed) const override;
  bool OnOpDone(const event::OpDone& done) override;
  void OnPeerUp(const MemberId& peer) override;
  void OnPeerDown(const MemberId& peer) override { OnPeerUp(peer); }
  void OnFetchDone(const Fetcher::Done& done) override;
  void OnDropped(const Want& want) override;
  std::optional<BufferRange> FindPartial(const PieceName& piece) const override;
  bool Writes(const SumShard& shard) const override;
  MemberId SourceOf(const SumShard& shard) const override;
  std::string Missing(const SumShard& shard) const override;
  void CheckInvariants() const override;

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
    std::uint32_t whole = 0;                 // the first so many pieces are there as whole sums
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
  Below* Find(const Want& want);

  std::vector<Shard> shards_;  // one for each owner, in the map's order
};

RoutedSums::RoutedSums(const SumsContext& with, const msg::Commit& commit, SumShards& sums)
    : AllReduce(with, commit, sums) {
  const std::size_t contributors = ContributorsOf(commit).size();
  for (std::uint32_t i = 0; i < commit.owners.owners.size(); ++i) {
    Shard shard;
    shard.owner = commit.owners.owners[i].owner;
    shard.route = RouteOf(commit, i, context_.config.self);
    shard.pieces = RoutedPieces(context_.layout, context_.layout.Shard(commit.owners, shard.owner),
                                contributors, context_.config.piece_bytes);
    const std::vector<FloatRange> ranges = RangesOf(shard, context_.config.clip > 0);
    std::uint64_t floats = 0;
    for (const FloatRange& range : ranges) floats += range.count;
    shard.rides = ranges.size() <= kMaxInlineRanges &&
                  floats * context_.layout.number_bytes() <= context_.config.inline_bytes;
    for (const MemberId& member : shard.route.below) shard.below.push_back({member, {}, {}});
    shards_.push_back(std::move(shard));
  }
}

// Of whole sums the norms are wanted too, where the gradient is clipped.
void RoutedSums::AppendRanges(const Slice& piece, bool norms,
                              std::vector<FloatRange>* ranges) const {
  ranges->push_back(piece.range);
  if (norms) ranges->push_back(context_.layout.NormsOf(piece));
}

std::vector<FloatRange> RoutedSums::RangesOf(const Shard& shard, bool norms) const {
  std::vector<FloatRange> ranges;
  for (const Slice& piece : shard.pieces) AppendRanges(piece, norms, &ranges);
  return ranges;
}

void RoutedSums::Update() {
  if (sums_.gone()) return;
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    for (Below& below : shard.below) Take(i, shard, below);
    Add(shard);
    TakeWhole(i, shard);
    TellAll(i, shard);
  }
  for (SumShard& made : sums_) {
    const Shard& shard = shards_[made.index];
    const bool whole = shard.route.root() && shard.added == shard.pieces.size();
    if (made.making == Making::kWaiting && whole) sums_.Publish(made);
  }
}

// One buffer has them all, and partial sums are in it too.
bool RoutedSums::Writes(const SumShard&) const {
  return std::ranges::any_of(shards_, [](const Shard& shard) { return shard.op.has_value(); });
}

// --- up

// It may have been said before the commit was known here, and not been looked at since.
std::uint32_t RoutedSums::TellsOf(const HeardSums::Heard& heard, const Shard& shard) {
  return std::min(heard.ready.passed->pieces, static_cast<std::uint32_t>(shard.pieces.size()));
}

// What rode along counts only as a whole: the neighbour cuts the same commit alike.
bool RoutedSums::StoreInlined(const HeardSums::Heard& heard, const std::vector<FloatRange>& ranges,
                              const BufferId& to) {
  if (ranges.empty() || heard.ready.inlined.ranges != ranges) return false;
  std::span<const std::byte> floats = heard.floats;
  for (const FloatRange& range : ranges) {
    const std::size_t bytes = range.count * context_.layout.number_bytes();
    context_.Emit(action::StoreInline{{to, range}, floats.first(bytes)});
    floats = floats.subspan(bytes);
  }
  return true;
}

// Partial sums of who is below, in a staging buffer: they are read once.
void RoutedSums::Take(std::uint32_t index, Shard& shard, Below& below) {
  if (below.staged == shard.pieces.size()) return;
  const HeardSums::Heard* heard = with_.heard.FindPassed(below.member, index, false, commit_);
  if (heard == nullptr) return;
  const BufferId staging = Staging(below.member);
  // Until then nothing lands there on behalf of this attempt, so any use is an older one's.
  if (below.blocked) {
    const bool ours = std::ranges::any_of(shards_, [&](const Shard& other) {
      return std::ranges::any_of(
          other.below, [&](const Below& b) { return b.member == below.member && !b.blocked; });
    });
    if (!ours && with_.buffers.InUse(staging)) return;
    below.blocked = false;
  }
  if (below.have.empty() && below.asked.empty() &&
      StoreInlined(*heard, RangesOf(shard, false), staging)) {
    for (const Slice& piece : shard.pieces) below.have.Merge(piece.range);
  }
  const std::uint32_t told = TellsOf(*heard, shard);
  if (with_.peers.Up(below.member) && !below.gone) {
    PieceName name;
    name.kind = static_cast<std::uint32_t>(PieceKind::kPartialSum);
    name.attempt = commit_.attempt.value;
    name.round = commit_.round.value;
    name.owner = shard.owner.worker.value;
    for (std::uint32_t p = below.staged; p < told; ++p) {
      for (const FloatRange& lacking : below.have.Missing(shard.pieces[p].range)) {
        for (const FloatRange& range : below.asked.Missing(lacking)) {
          below.asked.Merge(range);
          with_.fetcher.Add(below.member, name, {staging, range}, range.first);
        }
      }
    }
  }
  while (below.staged < told && below.have.Covers(shard.pieces[below.staged].range)) {
    ++below.staged;
  }
}

// Those below in their order, then the own parts in the commit's: so the sum is a function of the
// commit (I1, I3).
void RoutedSums::Add(Shard& shard) {
  if (!shard.route.adds || shard.op) return;
  auto until = static_cast<std::uint32_t>(shard.pieces.size());
  for (const Below& below : shard.below) until = std::min(until, below.staged);
  until = std::min(until, shard.added + kPiecesAtOnce);
  if (until <= shard.added) return;
  action::Reduce reduce;
  for (std::uint32_t p = shard.added; p < until; ++p) {
    const FloatRange& range = shard.pieces[p].range;
    LOCKSTEP_CHECK(!sums_.have().Intersects(range) && !sums_.asked().Intersects(range),
                   "I4: round {}: a partial sum is written where the whole one is", commit_.round);
    reduce.slices.push_back(shard.pieces[p]);
  }
  std::vector<BufferId> uses;
  const auto input = [&](const BufferId& buffer, float weight) {
    uses.push_back(buffer);
    reduce.inputs.push_back({{buffer, std::nullopt, 0}, weight});
  };
  for (const Below& below : shard.below) input(Staging(below.member), 1.0f);
  for (const CommittedPart& part : commit_.parts) {
    if (part.member != context_.config.self) continue;
    const std::optional<BufferId> own = with_.own.Sealed(commit_.round, part.part);
    if (!own) return;
    input(*own, part.weight);
  }
  if (!sums_.TakeBuffers()) return;
  uses.push_back(*sums_.buffer());
  reduce.op = context_.NewOp();
  reduce.round = commit_.round;
  reduce.attempt = commit_.attempt;
  reduce.out = *sums_.buffer();
  reduce.norms = shard.route.root() && context_.config.clip > 0;
  with_.buffers.BeginOp(reduce.op, std::move(uses));
  shard.op = reduce.op;
  shard.op_until = until;
  context_.Emit(std::move(reduce));
}

bool RoutedSums::OnOpDone(const event::OpDone& done) {
  const auto shard = std::ranges::find(shards_, std::optional(done.op), &Shard::op);
  if (shard == shards_.end()) return false;
  LOCKSTEP_CHECK(!done.torn, "round {}: own buffers changed under a reduction", commit_.round);
  shard->op.reset();
  if (shard->route.root()) {
    std::vector<FloatRange> ranges;
    for (std::uint32_t p = shard->added; p < shard->op_until; ++p) {
      AppendRanges(shard->pieces[p], context_.config.clip > 0, &ranges);
    }
    for (const FloatRange& range : ranges) sums_.Add(range);
  }
  shard->added = shard->op_until;
  return true;
}

// --- down

// Into the place of the partial sum, once that was made: a neighbour that says so sooner is not
// believed.
void RoutedSums::TakeWhole(std::uint32_t index, Shard& shard) {
  const bool norms = context_.config.clip > 0;
  const HeardSums::Heard* heard =
      shard.route.root() || shard.whole == shard.pieces.size()
          ? nullptr
          : with_.heard.FindPassed(*shard.route.above, index, true, commit_);
  if (heard != nullptr) {
    const std::uint32_t told = TellsOf(*heard, shard);
    FetchWhole(shard, *heard, shard.route.adds ? std::min(told, shard.added) : told);
  }
  for (; shard.whole < shard.pieces.size(); ++shard.whole) {
    std::vector<FloatRange> ranges;
    AppendRanges(shard.pieces[shard.whole], norms, &ranges);
    if (!std::ranges::all_of(ranges, [&](const auto& r) { return sums_.have().Covers(r); })) break;
  }
}

void RoutedSums::FetchWhole(Shard& shard, const HeardSums::Heard& heard, std::uint32_t until) {
  if (until <= shard.whole || !sums_.TakeBuffers()) return;
  const bool norms = context_.config.clip > 0;
  if (shard.rides && until == shard.pieces.size()) {
    const std::vector<FloatRange> all = RangesOf(shard, norms);
    const bool untouched = std::ranges::none_of(all, [&](const FloatRange& range) {
      return sums_.have().Intersects(range) || sums_.asked().Intersects(range);
    });
    if (untouched && StoreInlined(heard, all, *sums_.buffer())) {
      for (const FloatRange& range : all) sums_.Add(range);
      return;
    }
  }
  const MemberId& above = *shard.route.above;
  if (!with_.peers.Up(above)) return;
  std::vector<FloatRange> ranges;
  for (std::uint32_t p = shard.whole; p < until; ++p) {
    AppendRanges(shard.pieces[p], norms, &ranges);
  }
  sums_.Fetch(above, shard.owner, ranges);
}

// --- what neighbours are told

void RoutedSums::TellAll(std::uint32_t index, Shard& shard) {
  if (shard.route.adds && shard.route.above) {
    Tell(index, shard, *shard.route.above, false, shard.added);
  }
  for (const MemberId& member : shard.route.below) Tell(index, shard, member, true, shard.whole);
  for (const MemberId& member : shard.route.leaves) Tell(index, shard, member, true, shard.whole);
}

void RoutedSums::Tell(std::uint32_t index, Shard& shard, const MemberId& to, bool whole,
                      std::uint32_t pieces) {
  const auto at = shard.told.find(to);
  if (pieces <= (at == shard.told.end() ? 0 : at->second) || !with_.peers.Up(to)) return;
  if (shard.rides && pieces < shard.pieces.size()) return;
  // The whole ones lie there by now, so who is above has it.
  if (!whole && shard.rides && shard.whole > 0) return;
  SumReady ready = sums_.Announcement();
  ready.passed = PassedOn{index, whole, pieces};
  std::vector<BufferRange> payload;
  if (shard.rides) {
    ready.inlined.ranges = RangesOf(shard, whole && context_.config.clip > 0);
    for (const FloatRange& range : ready.inlined.ranges)
      payload.push_back({*sums_.buffer(), range});
  }
  shard.told[to] = pieces;
  context_.Say(to, ready, std::move(payload));
}

// --- what is heard

Status RoutedSums::OnPassed(const MemberId& peer, const PassedOn& passed) const {
  if (passed.shard < shards_.size()) {
    const Shard& shard = shards_[passed.shard];
    const bool below = std::ranges::find(shard.route.below, peer) != shard.route.below.end();
    const bool may = passed.whole ? shard.route.above == peer : below;
    if (may && passed.pieces > 0 && passed.pieces <= shard.pieces.size()) return {};
  }
  return Error{ErrorCode::kInvalid,
               fmt::format("it passes on sums of round {} that are not its own", commit_.round)};
}

RoutedSums::Below* RoutedSums::Find(const Want& want) {
  if (commit_.attempt.value != want.piece.attempt) return nullptr;
  for (Shard& shard : shards_) {
    if (shard.owner.worker.value != want.piece.owner) continue;
    const auto below = std::ranges::find(shard.below, want.peer, &Below::member);
    if (below != shard.below.end()) return &*below;
  }
  return nullptr;
}

// One of an older attempt may end here too: that one was cancelled, and asked for nothing of these.
void RoutedSums::OnFetchDone(const Fetcher::Done& done) {
  Below* below = Find(done.want);
  if (below == nullptr || done.cancelled) return;
  LOCKSTEP_CHECK(below->asked.Covers(done.want.to.range),
                 "I4: a partial sum of round {} came that was not asked for", commit_.round);
  below->asked.Remove(done.want.to.range);
  if (done.ok) below->have.Merge(done.want.to.range);
  if (done.status == FetchStatus::kGone) below->gone = true;
}

void RoutedSums::OnDropped(const Want& want) {
  if (Below* below = Find(want)) below->asked.Remove(want.to.range);
}

// What was told to its last connection may be lost with that.
void RoutedSums::OnPeerUp(const MemberId& peer) {
  for (Shard& shard : shards_) {
    shard.told.erase(peer);
    for (Below& below : shard.below) below.gone = below.gone && below.member != peer;
  }
}

// --- what others ask

// Where whole sums are, or may land, the partial one is gone: nobody needs it then.
std::optional<BufferRange> RoutedSums::FindPartial(const PieceName& piece) const {
  const std::uint64_t number = context_.layout.number_bytes();
  const FloatRange range{piece.offset / number, piece.bytes / number};
  for (const Shard& shard : shards_) {
    if (shard.owner.worker.value != piece.owner || shard.route.root()) continue;
    for (std::uint32_t p = 0; p < shard.added; ++p) {
      const FloatRange& own = shard.pieces[p].range;
      const bool within = own.first <= range.first && range.end() <= own.end();
      if (!within || sums_.have().Intersects(range) || sums_.asked().Intersects(range)) continue;
      return BufferRange{*sums_.buffer(), range};
    }
  }
  return std::nullopt;
}

MemberId RoutedSums::SourceOf(const SumShard& shard) const {
  return shards_[shard.index].route.above.value_or(context_.config.self);
}

std::string RoutedSums::Missing(const SumShard& of) const {
  const Shard& shard = shards_[of.index];
  std::string text;
  for (const Below& below : shard.below) {
    if (below.staged == shard.pieces.size()) continue;
    text += fmt::format("{}{} of {} pieces of {}", text.empty() ? " (has " : ", ", below.staged,
                        shard.pieces.size(), Name(below.member));
  }
  return text.empty() ? text : text + ")";
}

void RoutedSums::CheckInvariants() const {
  for (const Shard& shard : shards_) {
    LOCKSTEP_CHECK(shard.added <= shard.pieces.size() && shard.whole <= shard.pieces.size(),
                   "round {}: more pieces than there are", commit_.round);
    LOCKSTEP_CHECK(shard.route.adds || (shard.added == 0 && !shard.op),
                   "round {}: a worker without a part in it adds to its sums", commit_.round);
    for (const Below& below : shard.below) {
      LOCKSTEP_CHECK(shard.added <= below.staged, "I1: round {}: sums without all that is below",
                     commit_.round);
      LOCKSTEP_CHECK(!below.blocked || (below.have.empty() && below.asked.empty()),
                     "I4: a staging buffer of worker {} is written while it is used",
                     below.member.worker);
    }
  }
}

}  // namespace

// By grains, so that the norms of a piece are its own.
std::vector<Slice> RoutedPieces(const Layout& layout, const std::vector<Slice>& shard,
                                std::size_t contributors, std::uint64_t piece_bytes) {
  const std::uint64_t most =
      std::max<std::uint64_t>(piece_bytes / layout.number_bytes() / kGrain, 1) * kGrain;
  const std::uint64_t wanted = layout.parameter_count() / (kPiecesForEach * contributors);
  const std::uint64_t floats =
      std::clamp((wanted + kGrain - 1) / kGrain * kGrain, std::min(kLeastPieceFloats, most), most);
  std::vector<Slice> pieces;
  for (const Slice& slice : shard) {
    for (std::uint64_t at = slice.range.first; at < slice.range.end(); at += floats) {
      pieces.push_back({slice.bucket, {at, std::min(floats, slice.range.end() - at)}});
    }
  }
  return pieces;
}

std::unique_ptr<AllReduce> MakeRoutedSums(const SumsContext& with, const msg::Commit& commit,
                                          SumShards& sums) {
  return std::make_unique<RoutedSums>(with, commit, sums);
}

}  // namespace lockstep::worker
