#include "worker/core/round_sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

constexpr std::uint32_t kSumKind = static_cast<std::uint32_t>(PieceKind::kSum);
constexpr std::uint32_t kPartialKind = static_cast<std::uint32_t>(PieceKind::kPartialSum);

// The order of summation (I3), as ProtocolCheck holds the coordinator to it.
bool InOrder(const CommittedPart& a, const CommittedPart& b) {
  return std::pair(a.member.worker, a.part) < std::pair(b.member.worker, b.part);
}

}  // namespace

RoundSums::RoundSums(const SumsContext& with, const HeardSums& heard, const msg::Commit& commit)
    : context_(with.context),
      buffers_(with.buffers),
      fetcher_(with.fetcher),
      peers_(with.peers),
      inputs_(with.inputs),
      own_work_(with.own),
      heard_(heard),
      commit_(commit),
      apart_(context_.config.sums_apart && commit.owners.direct() && commit.owners.holders.empty()),
      generation_(context_.NewGeneration()) {
  LOCKSTEP_CHECK(std::ranges::is_sorted(commit_.parts, InOrder),
                 "I3: the parts of round {} are not in the order of summation", commit_.round);
  for (const OwnerShare& share : commit_.owners.owners) {
    Shard shard;
    shard.owner = share.owner;
    shard.slices = context_.layout.Shard(commit_.owners, share.owner);
    shard.ranges = Wanted(shard);
    shards_.push_back(std::move(shard));
  }
  if (Shard* own = ShardOf(context_.config.self)) own->making = Making::kWaiting;
  if (commit_.owners.direct()) return;
  routed_.emplace(context_, buffers_, fetcher_, peers_, own_work_, heard_, commit_, generation_,
                  RoutedSums::Sums{[this] { return TakeBuffers(); }, &buffer_, &have_, &asked_});
}

// What of the shard is to be had here: all of it, but of others' only what this worker holds too,
// where not everybody holds everything; and the norms of all slices where the gradient is clipped.
std::vector<FloatRange> RoundSums::Wanted(const Shard& shard) const {
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

RoundSums::~RoundSums() {
  // Also what was asked for an older attempt: its name has the round, and nobody waits for it.
  fetcher_.Cancel([&](const Want& want) {
    return (want.piece.kind == kSumKind || want.piece.kind == kPartialKind) &&
           want.piece.round == commit_.round.value;
  });
  if (buffer_) buffers_.Release(*buffer_);
  if (landing_) buffers_.Release(*landing_);
}

void RoundSums::NameCheckpointWriter(const msg::Commit& same) {
  LOCKSTEP_CHECK(same.round == commit_.round && same.attempt == commit_.attempt,
                 "another attempt's writer of a checkpoint");
  commit_.checkpoint_writer = same.checkpoint_writer;
}

bool RoundSums::Commits(const MemberId& member, PartIndex part) const {
  const CommittedPart sought{member, part};
  const auto at = std::ranges::lower_bound(commit_.parts, sought, InOrder);
  return at != commit_.parts.end() && at->member == member && at->part == part;
}

std::uint32_t RoundSums::IndexOf(const Shard& shard) const {
  return static_cast<std::uint32_t>(&shard - shards_.data());
}

RoundSums::Shard* RoundSums::ShardOf(const MemberId& owner) {
  const auto shard = std::ranges::find(shards_, owner, &Shard::owner);
  return shard == shards_.end() ? nullptr : &*shard;
}

// Once held, always held, but for mapped shards that were found torn: so the answer is kept, and
// the step that asks for each round costs nothing.
bool RoundSums::Held(const Shard& shard) const {
  if (shard.mapped || shard.held) return true;
  shard.held =
      std::ranges::all_of(shard.ranges, [&](const FloatRange& range) { return Covers(range); });
  return shard.held;
}

bool RoundSums::Covers(const FloatRange& range) const {
  return have_.Covers(range) || made_.Covers(range);
}

void RoundSums::NoteMade(Shard& shard) {
  shard.made = true;
  for (const FloatRange& range : shard.ranges) (apart_ ? made_ : have_).Merge(range);
}

bool RoundSums::HoldsAll() const {
  all_held_ =
      all_held_ || std::ranges::all_of(shards_, [&](const Shard& shard) { return Held(shard); });
  return all_held_;
}

// Taken late, when the first byte is there to be written: until then the rounds before may still
// need it. The generation is set first, so that nobody who maps it takes old sums for new ones
// (I4).
//
// Both at once: where some are pinned by who does not read, later rounds whose sums come first
// would have what an earlier one needs, and be applied after it.
bool RoundSums::TakeBuffers() {
  if (!buffer_) {
    buffer_ = buffers_.Take(BufferKind::kSum);
    if (buffer_) context_.Emit(action::OpenBlock{*buffer_, generation_});
    if (buffer_ && apart_) FitBuffer();
  }
  if (apart_ && !landing_ && !own_only_) landing_ = buffers_.Take(BufferKind::kTaken);
  return buffer_ && (landing_ || !apart_ || own_only_);
}

// Sums in a buffer of their own are those that are made here. (Where the gradient is clipped norms
// lie behind them, few beside them, and in the same order.)
void RoundSums::FitBuffer() {
  const Shard* own = ShardOf(context_.config.self);
  buffers_.Fit(*buffer_, ShapeOf(own == nullptr ? std::span<const Slice>() : own->slices));
  if (!stood_in_for_.empty()) buffers_.Spread(*buffer_);
}

// A fenced attempt is served to others and nothing else: it was promised not to come any closer to
// being applied.
void RoundSums::Update() {
  TryServeAll();
  if (fenced_) return;
  AskHolder();
  if (!all_held_) {
    for (Shard& shard : shards_) {
      if (!Held(shard)) Absorb(shard);
    }
  }
  if (routed_) {
    PassOn();
  } else {
    for (Shard& shard : shards_) TryReduce(shard);
  }
  if (asked_to_hold_) TryAnswerHold();
}

// With a holder all is taken from there.
void RoundSums::PassOn() {
  if (holder_ || gone_) return;
  routed_->Update();
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].making == Making::kWaiting && routed_->Made(i)) Publish(shards_[i]);
  }
}

// --- the shards that are made here

// Where the part's gradients can be read.
std::optional<Source> RoundSums::SourceOf(const CommittedPart& part, const Shard& shard) const {
  if (part.member != context_.config.self) {
    return inputs_.Complete(commit_.round, part.member, part.part, shard.slices);
  }
  const auto own = own_work_.Sealed(commit_.round, part.part);
  if (!own) return std::nullopt;
  return Source{*own, std::nullopt, 0};
}

// A sum is a function of the commit: the parts in its order, with its weights, however they are
// reached. So the reduction waits until all of them are here.
void RoundSums::TryReduce(Shard& shard) {
  if (shard.making != Making::kWaiting) return;
  if (shard.slices.empty()) {
    Publish(shard);
    return;
  }
  // The other one that makes it was quicker. What has come may be all that anybody has of it, where
  // that one stops now: so it is published here, too.
  if (!shard.mapped && Held(shard)) {
    if (apart_ && !shard.made) return CopyToPublish(shard);
    Publish(shard);
    return;
  }
  if (shard.requested) return;
  for (const FloatRange& range : shard.ranges) {
    if (asked_.Intersects(range)) return;  // the one that was asked is gone, and it may still land
    if (!have_.Intersects(range)) continue;
    // Half of it has come, and may be on its way to others: nothing is written over that.
    shard.making = Making::kVoid;
    return;
  }
  action::Reduce reduce;
  std::vector<BufferId> uses;
  for (const CommittedPart& part : commit_.parts) {
    const std::optional<Source> source = SourceOf(part, shard);
    if (!source) return;
    if (!source->peer) uses.push_back(source->buffer);
    reduce.inputs.push_back({*source, part.weight});
  }
  if (!TakeBuffers()) return;
  uses.push_back(*buffer_);
  reduce.op = context_.NewOp();
  reduce.round = commit_.round;
  reduce.attempt = commit_.attempt;
  reduce.slices = shard.slices;
  reduce.out = *buffer_;
  reduce.norms = context_.config.clip > 0;
  for (const FloatRange& range : shard.ranges) {
    LOCKSTEP_CHECK(!have_.Intersects(range) && !asked_.Intersects(range),
                   "I1: a shard of round {} is made that has come from elsewhere", commit_.round);
  }
  buffers_.BeginOp(reduce.op, std::move(uses));
  shard.reduce_op = reduce.op;
  shard.making = Making::kReducing;
  context_.Emit(std::move(reduce));
}

// Whoever maps this worker reads what it publishes in the one buffer only.
void RoundSums::CopyToPublish(Shard& shard) {
  if (!TakeBuffers()) return;
  action::CopySums copy;
  copy.op = context_.NewOp();
  copy.to = *buffer_;
  for (const FloatRange& range : shard.ranges) {
    copy.from.push_back({Source{*landing_, std::nullopt, generation_}, range});
  }
  buffers_.BeginOp(copy.op, {*landing_, *buffer_});
  shard.reduce_op = copy.op;
  shard.making = Making::kReducing;
  context_.Emit(std::move(copy));
}

bool RoundSums::OnOpDone(const event::OpDone& done) {
  if (routed_ && routed_->OnOpDone(done)) return true;
  const auto made = std::ranges::find(shards_, std::optional(done.op), &Shard::reduce_op);
  if (made != shards_.end()) {
    made->reduce_op.reset();
    if (done.torn) {
      // A contributor has gone on, so this attempt is history, as the coordinator will say; or its
      // owner was quicker than who stands in for it, which is as it should be.
      made->making = Making::kVoid;
      if (made->owner == context_.config.self) {
        context_.Log(
            fmt::format("round {}: another worker went on to its next round while this one added "
                        "up its gradient; this sum is not used and is made anew where it is "
                        "needed, nothing is lost",
                        commit_.round));
      }
      return true;
    }
    if (!done.not_finite.empty()) {
      // Nobody who makes it publishes it, so nobody ever holds all of this attempt (I1).
      made->making = Making::kVoid;
      context_.Tell(msg::NotFinite{
          commit_.round, commit_.attempt, {done.not_finite.begin(), done.not_finite.end()}});
      return true;
    }
    NoteMade(*made);
    Publish(*made);
    return true;
  }
  if (copy_op_ != done.op) return false;
  copy_op_.reset();
  if (!done.torn) {
    for (Shard& shard : shards_) {
      if (!shard.mapped) continue;
      shard.mapped.reset();
      for (const FloatRange& range : shard.ranges) have_.Merge(range);
    }
  } else if (!applied_) {
    all_held_ = false;
    for (Shard& shard : shards_) shard.mapped.reset();
    gone_ = "its mapped sums changed";
  }
  return true;
}

// Said to those who are up; who comes later is told then (OnPeerUp).
void RoundSums::Publish(Shard& shard) {
  LOCKSTEP_CHECK(shard.making == Making::kWaiting || shard.making == Making::kReducing,
                 "I1: a shard of round {} is published twice", commit_.round);
  LOCKSTEP_CHECK(Held(shard), "round {} is published without its sums", commit_.round);
  shard.making = Making::kPublished;
  msg::Published published{commit_.round, commit_.attempt};
  if (shard.owner != context_.config.self) published.stands_in_for = shard.owner.worker;
  context_.Tell(published);
  if (routed_) return;
  for (const MemberId& member : commit_.members) SaySumReady(member, shard);
}

SumReady RoundSums::Announcement() const {
  SumReady ready;
  ready.term = context_.config.term;
  ready.round = commit_.round;
  ready.attempt = commit_.attempt;
  ready.map_version = commit_.owners.version;
  ready.buffer = buffer_ ? buffer_->index : 0;
  ready.generation = generation_;
  return ready;
}

// A small shard rides along; a peer that maps reads it in place and needs no bytes.
void RoundSums::SaySumReady(const MemberId& to, const Shard& shard) {
  if (to == context_.config.self || !peers_.Up(to) || !buffer_) return;
  SumReady ready = Announcement();
  if (shard.owner != context_.config.self) ready.stands_in_for = shard.owner.worker;
  std::vector<BufferRange> payload;
  if (!peers_.Mapped(to)) {
    ready.inlined.ranges = shard.ranges;
    if (ready.inlined.Floats() * context_.layout.number_bytes() > context_.config.inline_bytes ||
        ready.inlined.ranges.size() > kMaxInlineRanges) {
      ready.inlined.ranges.clear();
    }
    for (const FloatRange& range : ready.inlined.ranges) payload.push_back({*buffer_, range});
  }
  context_.Say(to, ready, std::move(payload));
}

// --- the other shards

void RoundSums::OnPeerUp(const MemberId& peer) {
  for (Shard& shard : shards_) shard.requested.reset();
  if (holder_ && holder_->member == peer) holder_->state = Holder::State::kToAsk;
  if (routed_) return routed_->OnPeerUp(peer);
  if (!std::ranges::binary_search(commit_.members, peer)) return;
  for (const Shard& shard : shards_) {
    if (shard.making == Making::kPublished) SaySumReady(peer, shard);
  }
}

void RoundSums::OnPeerDown(const MemberId& peer) {
  for (Shard& shard : shards_) {
    if (shard.requested == peer) shard.requested.reset();
  }
  if (routed_) routed_->OnPeerDown(peer);
}

// With a holder only the holder's word counts: it was named because owners are gone or silent, and
// what a late owner publishes now has the same bits (the sum is a function of the commit), but is
// one source more to wait for.
Result<bool> RoundSums::OnSumReady(const MemberId& peer, const SumReady& ready) {
  const bool of_it = ready.attempt == commit_.attempt;
  if (of_it && holder_) {
    // What it announces as an owner is its own shard, and not its answer.
    if (holder_->member != peer || ready.whole == ready.gone) return false;
    holder_->state = ready.gone ? Holder::State::kAsked : Holder::State::kReady;
    if (ready.gone) gone_ = fmt::format("{} has its sums no longer", Name(peer));
    return false;
  }
  if (ready.gone) return false;
  if (ready.passed) {
    if (!of_it) return true;
    const Status may = routed_ ? routed_->OnPassed(peer, *ready.passed)
                               : Status(Error{ErrorCode::kInvalid, "it passes on what is direct"});
    if (!may) return may.error();
    return true;
  }
  // Who stands in for whom is the coordinator's to say, and may be heard later than this.
  const auto owner = [&](const Shard& shard) {
    return ready.stands_in_for ? shard.owner.worker == *ready.stands_in_for : shard.owner == peer;
  };
  if (of_it && std::ranges::none_of(shards_, owner)) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("it published sums of round {}, of which it owns nothing", ready.round)};
  }
  return true;
}

// With a holder nobody stands in any more: all is taken from there.
bool RoundSums::OnHedge(const MemberId& owner, const MemberId& by) {
  Shard* shard = ShardOf(owner);
  if (shard == nullptr || shard->stand_in || holder_ || routed_) return false;
  shard->stand_in = by;
  if (by != context_.config.self) return false;
  shard->making = Making::kWaiting;
  if (shard->requested || (!shard->mapped && Held(*shard))) return false;
  stood_in_for_.insert(stood_in_for_.end(), shard->slices.begin(), shard->slices.end());
  if (buffer_) buffers_.Spread(*buffer_);
  return true;
}

// The owner, or who stands in for it, whoever says so first; null while neither has. What an owner
// said that is gone by now is of no use, unless its memory is still mapped.
const HeardSums::Heard* RoundSums::WhereReady(const Shard& shard, MemberId& from) const {
  from = shard.owner;
  const HeardSums::Heard* heard = heard_.Find(from, commit_);
  if (!shard.stand_in || (heard != nullptr && (peers_.Up(from) || peers_.Mapped(from)))) {
    return heard;
  }
  from = *shard.stand_in;
  return heard_.FindStandIn(from, shard.owner.worker, commit_);
}

// Gets one shard on its way, once its owner, who stands in for it, or the holder says that it is
// there: read in place where mapped, else what rode along, else fetched.
void RoundSums::Absorb(Shard& shard) {
  if (shard.requested || gone_ || shard.making == Making::kReducing) return;
  // Only from a holder, and not under a reduction.
  if (routed_ && (!holder_ || routed_->Adding())) return;
  // The own shard is made here, unless that cannot be done any more.
  if (shard.owner == context_.config.self && !shard.stand_in && !holder_) return;
  if (holder_) {
    if (holder_->state != Holder::State::kReady || !peers_.Up(holder_->member) || !TakeBuffers())
      return;
    FetchMissing(shard, holder_->member);
    return;
  }
  MemberId from;
  const HeardSums::Heard* heard = WhereReady(shard, from);
  if (heard == nullptr || from == context_.config.self) return;
  if (peers_.Mapped(from)) {
    shard.mapped =
        Source{{BufferKind::kSum, heard->ready.buffer, {}}, from, heard->ready.generation};
    return;
  }
  if (!TakeBuffers()) return;
  if (StoreInlined(shard, *heard) || !peers_.Up(from)) return;
  FetchMissing(shard, from);
}

// The floats that rode along count only if they are ranges of the shard: an owner cuts the same map
// alike, and may say more than is held here.
bool RoundSums::StoreInlined(const Shard& shard, const HeardSums::Heard& heard) {
  std::span<const std::byte> floats = heard.floats;
  for (const FloatRange& range : heard.ready.inlined.ranges) {
    const std::size_t bytes = range.count * context_.layout.number_bytes();
    const bool wanted = std::ranges::find(shard.ranges, range) != shard.ranges.end();
    // What was asked for may land at any time.
    if (wanted && !asked_.Intersects(range)) {
      context_.Emit(action::StoreInline{{Landing(), range}, floats.first(bytes)});
      have_.Merge(range);
    }
    floats = floats.subspan(bytes);
  }
  return Held(shard);
}

// What has come already is not asked for again, from whomever it came: all sources have the same
// bits (I1).
void RoundSums::FetchMissing(Shard& shard, const MemberId& from) {
  LOCKSTEP_CHECK(from != context_.config.self, "round {}: sums fetched from itself", commit_.round);
  shard.requested = from;
  PieceName name;
  name.kind = kSumKind;
  name.attempt = commit_.attempt.value;
  name.round = commit_.round.value;
  name.owner = shard.owner.worker.value;
  for (const FloatRange& whole : shard.ranges) {
    for (const FloatRange& lacking : have_.Missing(whole)) {
      for (const FloatRange& range : asked_.Missing(lacking)) {
        asked_.Merge(range);
        fetcher_.Add(from, name, {Landing(), range}, range.first);
      }
    }
  }
}

// A fetch that ends may be of an attempt that this one has replaced: its buffer, or the attempt in
// its name, tells.
void RoundSums::OnFetchDone(const Fetcher::Done& done) {
  if (done.want.piece.kind == kPartialKind) {
    if (routed_) routed_->OnFetchDone(done);
    return;
  }
  const auto& landing = apart_ ? landing_ : buffer_;
  if (commit_.attempt.value != done.want.piece.attempt || landing != done.want.to.buffer) return;
  LOCKSTEP_CHECK(asked_.Covers(done.want.to.range), "round {}: sums came that were not asked for",
                 commit_.round);
  asked_.Remove(done.want.to.range);
  if (done.ok) {
    have_.Merge(done.want.to.range);
  } else if (done.cancelled) {
    for (Shard& shard : shards_) shard.requested.reset();
  } else if (done.status == FetchStatus::kGone) {
    gone_ = fmt::format("{} has its sums no longer", Name(done.want.peer));
  }
}

void RoundSums::OnDropped(const Want& want) {
  if (want.piece.kind == kPartialKind) {
    if (routed_) routed_->OnDropped(want);
    return;
  }
  if (commit_.attempt.value == want.piece.attempt) asked_.Remove(want.to.range);
}

// Who was fetched from when its memory was mapped may still send: that would land on what is made
// of the sums in their place (I4).
bool RoundSums::InOwnBuffer() {
  LOCKSTEP_CHECK(!apart_, "round {}: sums that are updated in their place are in two",
                 commit_.round);
  if (!HoldsAll() || !Localize() || !TakeBuffers()) return false;
  if (asked_.empty()) return true;
  const auto dropped = fetcher_.Cancel([&](const Want& want) {
    return want.piece.kind == kSumKind && want.to.buffer == *buffer_ &&
           want.piece.round == commit_.round.value;
  });
  for (const Want& want : dropped) OnDropped(want);
  return asked_.empty();
}

BufferId RoundSums::HandOver() {
  LOCKSTEP_CHECK(HoldsAll() && buffer_ && asked_.empty() && !copy_op_,
                 "I1: round {} is applied without all shards that are held", commit_.round);
  applied_ = true;
  have_ = {};
  const BufferId buffer = *buffer_;
  buffer_.reset();
  return buffer;
}

// The scalars are the coordinator's, computed once and sent with the commit, and the ranges go by
// offset: every member performs the same operations in the same order (I1, I3).
action::Apply RoundSums::Apply(const std::function<bool(std::uint32_t)>& wanted) {
  LOCKSTEP_CHECK(!fenced_, "I1: round {} is applied after the promise not to", commit_.round);
  LOCKSTEP_CHECK(HoldsAll(), "I1: round {} is applied without all shards of an attempt",
                 commit_.round);
  applied_ = true;
  action::Apply apply;
  apply.op = context_.NewOp();
  apply.round = commit_.round;
  apply.attempt = commit_.attempt;
  std::vector<BufferId> uses;
  for (const Shard& shard : shards_) {
    if (shard.slices.empty()) continue;
    const BufferId* here = shard.mapped ? nullptr : shard.made ? &*buffer_ : &Landing();
    if (here != nullptr) uses.push_back(*here);
    const Source source =
        here == nullptr ? *shard.mapped : Source{*here, std::nullopt, generation_};
    for (const Slice& slice : shard.slices) {
      if (wanted(slice.bucket)) apply.slices.push_back({source, slice.range});
      if (context_.config.clip > 0) {
        apply.norms.push_back({source, context_.layout.NormsOf(slice)});
      }
    }
  }
  const auto by_offset = [](const action::SourceRange& a, const action::SourceRange& b) {
    return a.range.first < b.range.first;
  };
  std::sort(apply.slices.begin(), apply.slices.end(), by_offset);
  std::sort(apply.norms.begin(), apply.norms.end(), by_offset);
  apply.parts = static_cast<std::uint32_t>(commit_.parts.size());
  apply.scale = commit_.scale;
  apply.learning_rate = commit_.learning_rate;
  apply.fraction = commit_.fraction;
  apply.samples = commit_.samples;
  apply.clip = context_.config.clip;
  apply.steps = commit_.steps;
  apply.position = commit_.position;
  apply.digest_bucket =
      static_cast<std::uint32_t>(commit_.round.value % context_.layout.bucket_count());
  buffers_.BeginOp(apply.op, std::move(uses));
  return apply;
}

// Its own shard stays, for who is late; each of the others is its owner's to keep. What is still
// under way may land, so the buffer is used until that has ended (I4). Whether all of it can be had
// here is nobody's question any more.
void RoundSums::KeepOwnOnly() {
  const bool making = std::ranges::any_of(shards_, [](const Shard& shard) {
    return shard.making == Making::kWaiting || shard.making == Making::kReducing;
  });
  if (!landing_ || !applied_ || named_ || making || copy_op_ || !wanted_by_.empty()) return;
  fetcher_.Cancel(
      [&](const Want& want) { return want.piece.kind == kSumKind && want.to.buffer == *landing_; });
  have_ = {};
  asked_ = {};
  buffers_.Release(*landing_);
  landing_.reset();
  own_only_ = true;
  asked_to_hold_.reset();
}

// --- what others ask

bool RoundSums::Reads(const MemberId& peer) const {
  return std::ranges::any_of(
      shards_, [&](const Shard& shard) { return shard.mapped && shard.mapped->peer == peer; });
}

// Whoever has the bytes may serve them: an owner its shard, a holder everything.
std::optional<BufferRange> RoundSums::FindPiece(const PieceName& piece) const {
  if (commit_.attempt.value != piece.attempt) return std::nullopt;
  const std::uint64_t number = context_.layout.number_bytes();
  const FloatRange range{piece.offset / number, piece.bytes / number};
  if (piece.kind == kPartialKind) return routed_ ? routed_->FindPartial(piece) : std::nullopt;
  if (made_.Covers(range)) return BufferRange{*buffer_, range};
  if (!have_.Covers(range)) return std::nullopt;
  return BufferRange{Landing(), range};
}

void RoundSums::CheckInvariants() const {
  const RoundId round = commit_.round;
  LOCKSTEP_CHECK(!(applied_ && fenced_), "I1: round {} was applied and promised not to be", round);
  bool reduces = false;
  for (const Shard& shard : shards_) {
    LOCKSTEP_CHECK(shard.reduce_op.has_value() == (shard.making == Making::kReducing),
                   "round {}: a reduction that nobody waits for", round);
    LOCKSTEP_CHECK(shard.making == Making::kNone || shard.owner == context_.config.self ||
                       shard.stand_in == context_.config.self,
                   "round {}: {}'s shard is made here", round, Name(shard.owner));
    LOCKSTEP_CHECK(!holder_ || shard.making != Making::kWaiting,
                   "I1: round {} has a holder and a shard is made", round);
    reduces = reduces || shard.reduce_op.has_value();
  }
  const bool lands = apart_ ? landing_.has_value() : buffer_.has_value();
  LOCKSTEP_CHECK(lands || (have_.empty() && asked_.empty()), "round {}: sums in no buffer", round);
  LOCKSTEP_CHECK(buffer_ || (made_.empty() && !reduces), "round {}: an operation on no buffer",
                 round);
  LOCKSTEP_CHECK(lands || !copy_op_, "round {}: sums are copied to no buffer", round);
  LOCKSTEP_CHECK(apart_ || (!landing_ && made_.empty()), "round {}: its sums are in two", round);
  LOCKSTEP_CHECK(!own_only_ || (applied_ && !landing_ && !asked_to_hold_),
                 "round {}: it gave sums back too early", round);
  if (routed_) routed_->CheckInvariants();
  LOCKSTEP_CHECK(!buffer_ || buffers_.Taken(*buffer_), "round {}: its buffer is not taken", round);
  LOCKSTEP_CHECK(!landing_ || buffers_.Taken(*landing_), "round {}: where it lands is not taken",
                 round);
  LOCKSTEP_CHECK(!holder_ || holder_->member != context_.config.self,
                 "round {}: this worker is to fetch from itself", round);
  LOCKSTEP_CHECK(!applied_ || all_held_, "I1: round {} was applied without all shards", round);
  LOCKSTEP_CHECK(shards_.size() == commit_.owners.owners.size(), "round {}: a shard is nobody's",
                 round);
}

}  // namespace lockstep::worker
