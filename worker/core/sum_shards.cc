#include "worker/core/sum_shards.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

constexpr std::uint32_t kSumKind = static_cast<std::uint32_t>(PieceKind::kSum);
constexpr std::uint32_t kPartialKind = static_cast<std::uint32_t>(PieceKind::kPartialSum);

}  // namespace

SumShards::SumShards(Context& context, Buffers& buffers, Fetcher& fetcher,
                     const msg::Commit& commit)
    : context_(context),
      buffers_(buffers),
      fetcher_(fetcher),
      commit_(commit),
      apart_(context_.config.sums_apart && commit.owners.direct() && commit.owners.holders.empty()),
      generation_(context_.NewGeneration()) {
  for (const OwnerShare& share : commit_.owners.owners) {
    SumShard shard{.index = static_cast<std::uint32_t>(shards_.size()),
                   .owner = share.owner,
                   .slices = context_.layout.Shard(commit_.owners, share.owner),
                   .ranges = {}};
    shard.ranges = Wanted(shard);
    shards_.push_back(std::move(shard));
  }
  if (SumShard* own = Of(context_.config.self)) own->making = Making::kWaiting;
}

// Also what was asked for an older attempt: its name has the round, and nobody waits for it.
SumShards::~SumShards() {
  fetcher_.Cancel([&](const Want& want) {
    return (want.piece.kind == kSumKind || want.piece.kind == kPartialKind) &&
           want.piece.round == commit_.round.value;
  });
  if (buffer_) buffers_.Release(*buffer_);
  if (landing_) buffers_.Release(*landing_);
}

// What of the shard is to be had here: all of it, but of others' only what this worker holds too,
// where not everybody holds everything; and the norms of all slices where the gradient is clipped.
std::vector<FloatRange> SumShards::Wanted(const SumShard& shard) const {
  const std::uint32_t entries = context_.layout.SumEntries(commit_.parts.size());
  FloatSet held;
  const auto of = static_cast<std::uint32_t>(commit_.owners.holders.size());
  const std::vector<std::uint32_t> own = HeldBy(commit_.owners, context_.config.self);
  for (const std::uint32_t s : own) {
    for (const Slice& slice : context_.layout.EqualShard(s, of)) held.Merge(slice.range);
  }
  std::vector<FloatRange> ranges;
  if (of > 0 && own.empty()) return ranges;
  for (const Slice& slice : shard.slices) {
    if (of == 0 || held.Covers(slice.range)) {
      ranges.push_back(context_.layout.InSum(slice.range, entries));
    }
    if (context_.config.clip > 0) ranges.push_back(context_.layout.NormsOf(slice));
  }
  return ranges;
}

SumShard* SumShards::Of(const MemberId& owner) {
  const auto shard = std::ranges::find(shards_, owner, &SumShard::owner);
  return shard == shards_.end() ? nullptr : &*shard;
}

// Once held, always held, but for mapped shards that were found torn: so the answer is kept, and
// the step that asks for each round costs nothing.
bool SumShards::Held(const SumShard& shard) const {
  if (shard.mapped || shard.held) return true;
  shard.held = std::ranges::all_of(shard.ranges, [&](const FloatRange& range) {
    return have_.Covers(range) || made_.Covers(range);
  });
  return shard.held;
}

bool SumShards::HoldsAll() const {
  all_held_ =
      all_held_ || std::ranges::all_of(shards_, [&](const SumShard& shard) { return Held(shard); });
  return all_held_;
}

Source SumShards::SourceOf(const SumShard& shard) const {
  if (shard.mapped) return *shard.mapped;
  return {shard.made ? *buffer_ : Landing(), std::nullopt, generation_};
}

bool SumShards::Reads(const MemberId& peer) const {
  return std::ranges::any_of(
      shards_, [&](const SumShard& shard) { return shard.mapped && shard.mapped->peer == peer; });
}

std::optional<BufferRange> SumShards::Find(const FloatRange& range) const {
  if (made_.Covers(range)) return BufferRange{*buffer_, range};
  if (!have_.Covers(range)) return std::nullopt;
  return BufferRange{Landing(), range};
}

// --- buffers

// Taken late, when the first byte is there to be written: until then the rounds before may still
// need it. The generation is set first, so that nobody who maps it takes old sums for new ones
// (I4).
//
// Both at once: where some are pinned by who does not read, later rounds whose sums come first
// would have what an earlier one needs, and be applied after it.
//
// Sums in a buffer of their own are those that are made here. (Where the gradient is clipped norms
// lie behind them, few beside them, and in the same order.)
bool SumShards::TakeBuffers() {
  if (!buffer_) {
    buffer_ = buffers_.Take(BufferKind::kSum);
    if (buffer_) context_.Emit(action::OpenBlock{*buffer_, generation_});
    if (buffer_ && apart_) {
      const SumShard* own = Of(context_.config.self);
      buffers_.Fit(*buffer_, ShapeOf(own == nullptr ? std::span<const Slice>() : own->slices));
      if (!stood_in_for_.empty()) buffers_.Spread(*buffer_);
    }
  }
  if (apart_ && !landing_ && !own_only_) landing_ = buffers_.Take(BufferKind::kTaken);
  return buffer_ && (landing_ || !apart_ || own_only_);
}

void SumShards::StandIn(const SumShard& shard) {
  stood_in_for_.insert(stood_in_for_.end(), shard.slices.begin(), shard.slices.end());
  if (buffer_) buffers_.Spread(*buffer_);
}

void SumShards::NoteMade(SumShard& shard) {
  shard.made = true;
  for (const FloatRange& range : shard.ranges) (apart_ ? made_ : have_).Merge(range);
}

void SumShards::Publish(SumShard& shard) {
  LOCKSTEP_CHECK(shard.making == Making::kWaiting || shard.making == Making::kReducing,
                 "I1: a shard of round {} is published twice", commit_.round);
  LOCKSTEP_CHECK(Held(shard), "round {} is published without its sums", commit_.round);
  shard.making = Making::kPublished;
  msg::Published published{commit_.round, commit_.attempt};
  if (shard.owner != context_.config.self) published.stands_in_for = shard.owner.worker;
  context_.Tell(published);
}

SumReady SumShards::Announcement() const {
  SumReady ready;
  ready.term = context_.config.term;
  ready.round = commit_.round;
  ready.attempt = commit_.attempt;
  ready.map_version = commit_.owners.version;
  ready.buffer = buffer_ ? buffer_->index : 0;
  ready.generation = generation_;
  return ready;
}

// --- fetches

void SumShards::Fetch(const MemberId& from, const MemberId& owner,
                      std::span<const FloatRange> ranges) {
  LOCKSTEP_CHECK(from != context_.config.self, "round {}: sums fetched from itself", commit_.round);
  PieceName name;
  name.kind = kSumKind;
  name.attempt = commit_.attempt.value;
  name.round = commit_.round.value;
  name.owner = owner.worker.value;
  for (const FloatRange& whole : ranges) {
    for (const FloatRange& lacking : have_.Missing(whole)) {
      for (const FloatRange& range : asked_.Missing(lacking)) {
        asked_.Merge(range);
        fetcher_.Add(from, name, {Landing(), range}, range.first);
      }
    }
  }
}

void SumShards::FetchShard(SumShard& shard, const MemberId& from) {
  shard.requested = from;
  Fetch(from, shard.owner, shard.ranges);
}

// A fetch that ends may be of an attempt that this one has replaced: its buffer, or the attempt in
// its name, tells.
void SumShards::OnFetchDone(const Fetcher::Done& done) {
  const auto& landing = apart_ ? landing_ : buffer_;
  if (commit_.attempt.value != done.want.piece.attempt || landing != done.want.to.buffer) return;
  LOCKSTEP_CHECK(asked_.Covers(done.want.to.range), "round {}: sums came that were not asked for",
                 commit_.round);
  asked_.Remove(done.want.to.range);
  if (done.ok) {
    have_.Merge(done.want.to.range);
  } else if (done.cancelled) {
    ForgetRequests();
  } else if (done.status == FetchStatus::kGone) {
    OnGone(done.want.peer);
  }
}

void SumShards::OnDropped(const Want& want) {
  if (commit_.attempt.value == want.piece.attempt) asked_.Remove(want.to.range);
}

void SumShards::ForgetRequests() {
  for (SumShard& shard : shards_) shard.requested.reset();
}

void SumShards::ForgetRequests(const MemberId& peer) {
  for (SumShard& shard : shards_) {
    if (shard.requested == peer) shard.requested.reset();
  }
}

void SumShards::OnGone(const MemberId& holder) {
  gone_ = fmt::format("{} has its sums no longer", Name(holder));
}

void SumShards::OnlyFrom(const MemberId& holder) {
  for (SumShard& shard : shards_) {
    if (shard.making == Making::kWaiting) shard.making = Making::kVoid;
  }
  ForgetRequests();
  Drop([&](const Want& want) { return want.peer != holder; });
}

void SumShards::Drop(const std::function<bool(const Want&)>& unwanted) {
  const auto dropped = fetcher_.Cancel([&](const Want& want) {
    return want.piece.kind == kSumKind && want.piece.round == commit_.round.value && unwanted(want);
  });
  for (const Want& want : dropped) OnDropped(want);
}

// --- mapped shards

bool SumShards::Localize() {
  if (copy_op_) return false;
  action::CopySums copy;
  for (const SumShard& shard : shards_) {
    if (!shard.mapped || gone_) continue;
    for (const FloatRange& range : shard.ranges) copy.from.push_back({*shard.mapped, range});
  }
  if (copy.from.empty()) return true;
  if (!TakeBuffers()) return false;
  copy.op = context_.NewOp();
  copy.to = Landing();
  buffers_.BeginOp(copy.op, {copy.to});
  copy_op_ = copy.op;
  context_.Emit(std::move(copy));
  return false;
}

bool SumShards::OnOpDone(const event::OpDone& done, bool applied) {
  if (copy_op_ != done.op) return false;
  copy_op_.reset();
  if (!done.torn) {
    for (SumShard& shard : shards_) {
      if (!shard.mapped) continue;
      shard.mapped.reset();
      for (const FloatRange& range : shard.ranges) have_.Merge(range);
    }
  } else if (!applied) {
    OnTorn();
  }
  return true;
}

void SumShards::OnTorn() {
  all_held_ = false;
  gone_ = "its mapped sums changed";
  for (SumShard& shard : shards_) shard.mapped.reset();
}

// --- what becomes of the buffers

// Who was fetched from when its memory was mapped may still send: that would land on what is made
// of the sums in their place (I4).
bool SumShards::InOwnBuffer() {
  LOCKSTEP_CHECK(!apart_, "round {}: sums that are updated in their place are in two",
                 commit_.round);
  if (!HoldsAll() || !Localize() || !TakeBuffers()) return false;
  if (asked_.empty()) return true;
  Drop([&](const Want& want) { return want.to.buffer == *buffer_; });
  return asked_.empty();
}

BufferId SumShards::HandOver() {
  LOCKSTEP_CHECK(HoldsAll() && buffer_ && asked_.empty() && !copy_op_,
                 "I1: round {} is applied without all shards that are held", commit_.round);
  have_ = {};
  const BufferId buffer = *buffer_;
  buffer_.reset();
  return buffer;
}

// The own shard stays, for who is late; each of the others is its owner's to keep. What is still
// under way may land, so the buffer is used until that has ended (I4).
bool SumShards::GiveBackTaken() {
  const bool making = std::ranges::any_of(shards_, [](const SumShard& shard) {
    return shard.making == Making::kWaiting || shard.making == Making::kReducing;
  });
  if (!landing_ || making || copy_op_) return false;
  Drop([&](const Want& want) { return want.to.buffer == *landing_; });
  have_ = {};
  asked_ = {};
  buffers_.Release(*landing_);
  landing_.reset();
  own_only_ = true;
  return true;
}

void SumShards::CheckInvariants() const {
  const RoundId round = commit_.round;
  const bool reduces = std::ranges::any_of(
      shards_, [](const SumShard& shard) { return shard.making == Making::kReducing; });
  const bool lands = apart_ ? landing_.has_value() : buffer_.has_value();
  LOCKSTEP_CHECK(lands || (have_.empty() && asked_.empty()), "round {}: sums in no buffer", round);
  LOCKSTEP_CHECK(buffer_ || (made_.empty() && !reduces), "round {}: an operation on no buffer",
                 round);
  LOCKSTEP_CHECK(lands || !copy_op_, "round {}: sums are copied to no buffer", round);
  LOCKSTEP_CHECK(apart_ || (!landing_ && made_.empty()), "round {}: its sums are in two", round);
  LOCKSTEP_CHECK(!own_only_ || !landing_, "round {}: it keeps what it gave back", round);
  LOCKSTEP_CHECK(!buffer_ || buffers_.Taken(*buffer_), "round {}: its buffer is not taken", round);
  LOCKSTEP_CHECK(!landing_ || buffers_.Taken(*landing_), "round {}: where it lands is not taken",
                 round);
  LOCKSTEP_CHECK(shards_.size() == commit_.owners.owners.size(), "round {}: a shard is nobody's",
                 round);
}

}  // namespace lockstep::worker
