#include "worker/core/routed_sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

// Of a shard's way from one contributor to the next: while one piece is on it, others are before
// and behind.
constexpr std::uint64_t kPiecesForEach = 8;
constexpr std::uint64_t kLeastPieceFloats = 16 * kGrain;
// That one reduction makes: who is above begins with the first of them soon.
constexpr std::uint32_t kPiecesAtOnce = 4;

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

RoutedSums::RoutedSums(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers,
                       const OwnWork& own, const HeardSums& heard, const msg::Commit& commit,
                       std::uint32_t generation, Sums sums)
    : context_(context),
      buffers_(buffers),
      fetcher_(fetcher),
      peers_(peers),
      own_(own),
      heard_(heard),
      commit_(commit),
      generation_(generation),
      sums_(std::move(sums)) {
  const std::size_t contributors = ContributorsOf(commit).size();
  for (std::uint32_t i = 0; i < commit.owners.owners.size(); ++i) {
    Shard shard;
    shard.owner = commit.owners.owners[i].owner;
    shard.route = RouteOf(commit, i, context.config.self);
    shard.pieces = RoutedPieces(context.layout, context.layout.Shard(commit.owners, shard.owner),
                                contributors, context.config.piece_bytes);
    const std::vector<FloatRange> ranges = RangesOf(shard, context.config.clip > 0);
    std::uint64_t floats = 0;
    for (const FloatRange& range : ranges) floats += range.count;
    shard.rides = ranges.size() <= kMaxInlineRanges &&
                  floats * context.layout.number_bytes() <= context.config.inline_bytes;
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
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    for (Below& below : shard.below) Take(i, shard, below);
    Add(shard);
    TakeWhole(i, shard);
    TellAll(i, shard);
  }
}

bool RoutedSums::Made(std::uint32_t shard) const {
  const Shard& of = shards_[shard];
  return of.route.root() && of.added == of.pieces.size();
}

bool RoutedSums::Adding() const {
  return std::ranges::any_of(shards_, [](const Shard& shard) { return shard.op.has_value(); });
}

// --- up

PieceName RoutedSums::NameOf(PieceKind kind, const Shard& shard) const {
  PieceName name;
  name.kind = static_cast<std::uint32_t>(kind);
  name.attempt = commit_.attempt.value;
  name.round = commit_.round.value;
  name.owner = shard.owner.worker.value;
  return name;
}

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
  const HeardSums::Heard* heard = heard_.FindPassed(below.member, index, false, commit_);
  if (heard == nullptr) return;
  const BufferId staging = Staging(below.member);
  // Until then nothing lands there on behalf of this attempt, so any use is an older one's.
  if (below.blocked) {
    const bool ours = std::ranges::any_of(shards_, [&](const Shard& other) {
      return std::ranges::any_of(
          other.below, [&](const Below& b) { return b.member == below.member && !b.blocked; });
    });
    if (!ours && buffers_.InUse(staging)) return;
    below.blocked = false;
  }
  if (below.have.empty() && below.asked.empty() &&
      StoreInlined(*heard, RangesOf(shard, false), staging)) {
    for (const Slice& piece : shard.pieces) below.have.Merge(piece.range);
  }
  const std::uint32_t told = TellsOf(*heard, shard);
  if (peers_.Up(below.member) && !below.gone) {
    for (std::uint32_t p = below.staged; p < told; ++p) {
      for (const FloatRange& lacking : below.have.Missing(shard.pieces[p].range)) {
        for (const FloatRange& range : below.asked.Missing(lacking)) {
          below.asked.Merge(range);
          fetcher_.Add(below.member, NameOf(PieceKind::kPartialSum, shard), {staging, range},
                       range.first);
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
    LOCKSTEP_CHECK(!sums_.have->Intersects(range) && !sums_.asked->Intersects(range),
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
    const std::optional<BufferId> own = own_.Sealed(commit_.round, part.part);
    if (!own) return;
    input(*own, part.weight);
  }
  if (!sums_.take_buffer()) return;
  uses.push_back(**sums_.buffer);
  reduce.op = context_.NewOp();
  reduce.round = commit_.round;
  reduce.attempt = commit_.attempt;
  reduce.out = **sums_.buffer;
  reduce.norms = shard.route.root() && context_.config.clip > 0;
  buffers_.BeginOp(reduce.op, std::move(uses));
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
    for (const FloatRange& range : ranges) sums_.have->Merge(range);
  }
  shard->added = shard->op_until;
  return true;
}

// --- down

// Into the place of the partial sum, once that was made: a neighbour that says so sooner is not
// believed.
void RoutedSums::TakeWhole(std::uint32_t index, Shard& shard) {
  const bool norms = context_.config.clip > 0;
  const HeardSums::Heard* heard = shard.route.root() || shard.whole == shard.pieces.size()
                                      ? nullptr
                                      : heard_.FindPassed(*shard.route.above, index, true, commit_);
  if (heard != nullptr) {
    const std::uint32_t told = TellsOf(*heard, shard);
    FetchWhole(shard, *heard, shard.route.adds ? std::min(told, shard.added) : told);
  }
  for (; shard.whole < shard.pieces.size(); ++shard.whole) {
    std::vector<FloatRange> ranges;
    AppendRanges(shard.pieces[shard.whole], norms, &ranges);
    if (!std::ranges::all_of(ranges, [&](const auto& r) { return sums_.have->Covers(r); })) break;
  }
}

void RoutedSums::FetchWhole(Shard& shard, const HeardSums::Heard& heard, std::uint32_t until) {
  if (until <= shard.whole || !sums_.take_buffer()) return;
  const bool norms = context_.config.clip > 0;
  const BufferId& to = **sums_.buffer;
  if (shard.rides && until == shard.pieces.size()) {
    const std::vector<FloatRange> all = RangesOf(shard, norms);
    const bool untouched = std::ranges::none_of(all, [&](const FloatRange& range) {
      return sums_.have->Intersects(range) || sums_.asked->Intersects(range);
    });
    if (untouched && StoreInlined(heard, all, to)) {
      for (const FloatRange& range : all) sums_.have->Merge(range);
      return;
    }
  }
  const MemberId& above = *shard.route.above;
  if (!peers_.Up(above)) return;
  std::vector<FloatRange> ranges;
  for (std::uint32_t p = shard.whole; p < until; ++p) {
    AppendRanges(shard.pieces[p], norms, &ranges);
  }
  for (const FloatRange& whole : ranges) {
    for (const FloatRange& lacking : sums_.have->Missing(whole)) {
      for (const FloatRange& range : sums_.asked->Missing(lacking)) {
        sums_.asked->Merge(range);
        fetcher_.Add(above, NameOf(PieceKind::kSum, shard), {to, range}, range.first);
      }
    }
  }
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
  if (pieces <= (at == shard.told.end() ? 0 : at->second) || !peers_.Up(to)) return;
  if (shard.rides && pieces < shard.pieces.size()) return;
  // The whole ones lie there by now, so who is above has it.
  if (!whole && shard.rides && shard.whole > 0) return;
  SumReady ready;
  ready.term = context_.config.term;
  ready.round = commit_.round;
  ready.attempt = commit_.attempt;
  ready.map_version = commit_.owners.version;
  ready.buffer = (*sums_.buffer)->index;
  ready.generation = generation_;
  ready.passed = PassedOn{index, whole, pieces};
  std::vector<BufferRange> payload;
  if (shard.rides) {
    ready.inlined.ranges = RangesOf(shard, whole && context_.config.clip > 0);
    for (const FloatRange& range : ready.inlined.ranges) payload.push_back({**sums_.buffer, range});
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

void RoutedSums::OnPeerDown(const MemberId& peer) { OnPeerUp(peer); }

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
      if (!within || sums_.have->Intersects(range) || sums_.asked->Intersects(range)) continue;
      return BufferRange{**sums_.buffer, range};
    }
  }
  return std::nullopt;
}

std::string RoutedSums::Missing(std::uint32_t index) const {
  const Shard& shard = shards_[index];
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
                   "round {}: who has no part in it adds to its sums", commit_.round);
    for (const Below& below : shard.below) {
      LOCKSTEP_CHECK(shard.added <= below.staged, "I1: round {}: sums without all that is below",
                     commit_.round);
      LOCKSTEP_CHECK(!below.blocked || (below.have.empty() && below.asked.empty()),
                     "I4: a staging buffer of worker {} is written while it is used",
                     below.member.worker);
    }
  }
}

}  // namespace lockstep::worker
