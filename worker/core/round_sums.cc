#include "worker/core/round_sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

// The order of summation (I3), as ProtocolCheck holds the coordinator to it.
bool InOrder(const CommittedPart& a, const CommittedPart& b) {
  return std::pair(a.member.worker, a.part) < std::pair(b.member.worker, b.part);
}

bool OfPartial(const PieceName& piece) {
  return piece.kind == static_cast<std::uint32_t>(PieceKind::kPartialSum);
}

}  // namespace

RoundSums::RoundSums(const SumsContext& with, const msg::Commit& commit)
    : context_(with.context),
      buffers_(with.buffers),
      peers_(with.peers),
      commit_(commit),
      shards_(with.context, with.buffers, with.fetcher, commit_),
      all_reduce_(
          (commit.owners.direct() ? MakeDirectSums : MakeRoutedSums)(with, commit_, shards_)) {
  LOCKSTEP_CHECK(std::ranges::is_sorted(commit_.parts, InOrder),
                 "I3: the parts of round {} are not in the order of summation", commit_.round);
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

// A fenced attempt is served to others and nothing else: it was promised not to come any closer to
// being applied.
void RoundSums::Update() {
  TryServeAll();
  if (fenced_) return;
  if (holder_) {
    TakeFromHolder();
  } else {
    all_reduce_->Update();
  }
  if (asked_to_hold_) TryAnswerHold();
}

// --- what is heard

void RoundSums::OnPeerUp(const MemberId& peer) {
  shards_.ForgetRequests();
  if (holder_ && holder_->member == peer) holder_->state = Holder::State::kToAsk;
  all_reduce_->OnPeerUp(peer);
}

void RoundSums::OnPeerDown(const MemberId& peer) {
  shards_.ForgetRequests(peer);
  all_reduce_->OnPeerDown(peer);
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
    if (ready.gone) shards_.OnGone(peer);
    return false;
  }
  if (ready.gone) return false;
  if (!of_it) return true;
  if (ready.passed) {
    const Status may = all_reduce_->OnPassed(peer, *ready.passed);
    if (!may) return may.error();
    return true;
  }
  // Who stands in for whom is the coordinator's to say, and may be heard later than this.
  const auto owner = [&](const SumShard& shard) {
    return ready.stands_in_for ? shard.owner.worker == *ready.stands_in_for : shard.owner == peer;
  };
  if (std::ranges::none_of(shards_, owner)) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("it published sums of round {}, of which it owns nothing", ready.round)};
  }
  return true;
}

void RoundSums::OnFetchDone(const Fetcher::Done& done) {
  OfPartial(done.want.piece) ? all_reduce_->OnFetchDone(done) : shards_.OnFetchDone(done);
}

void RoundSums::OnDropped(const Want& want) {
  OfPartial(want.piece) ? all_reduce_->OnDropped(want) : shards_.OnDropped(want);
}

// --- the update

BufferId RoundSums::HandOver() {
  applied_ = true;
  return shards_.HandOver();
}

// The scalars are the coordinator's, computed once and sent with the commit, and the ranges go by
// offset: every member performs the same operations in the same order (I1, I3).
action::Apply RoundSums::Apply(const std::function<bool(std::uint32_t)>& wanted) {
  LOCKSTEP_CHECK(!fenced_, "I1: round {} is applied after the promise not to", commit_.round);
  LOCKSTEP_CHECK(shards_.HoldsAll(), "I1: round {} is applied without all shards of an attempt",
                 commit_.round);
  applied_ = true;
  action::Apply apply;
  apply.op = context_.NewOp();
  apply.round = commit_.round;
  apply.attempt = commit_.attempt;
  std::vector<BufferId> uses;
  for (const SumShard& shard : shards_) {
    if (shard.slices.empty()) continue;
    const Source source = shards_.SourceOf(shard);
    if (!source.peer) uses.push_back(source.buffer);
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

// Of an update that was abandoned the round may be closed by now, and what others made of it given
// back.
void RoundSums::OnTornApply() {
  if (shards_.own_only()) return;
  applied_ = false;
  shards_.OnTorn();
}

// Whether all of it can be had here is nobody's question any more.
void RoundSums::KeepOwnOnly() {
  if (!applied_ || named_ || !wanted_by_.empty() || !shards_.GiveBackTaken()) return;
  asked_to_hold_.reset();
}

// --- where something fails

// The coordinator found the attempt whole somewhere, so it stands and every promise about it ends.
void RoundSums::OnTakeSums(const MemberId& holder) {
  fenced_ = false;
  shards_.Retry();
  if (holder == context_.config.self) {
    named_ = true;
    return;
  }
  holder_ = Holder{holder};
  shards_.OnlyFrom(holder);
}

// It is asked once for each connection: it may first have to copy what it reads in place.
void RoundSums::TakeFromHolder() {
  const MemberId& holder = holder_->member;
  if (holder_->state == Holder::State::kToAsk && !shards_.HoldsAll() && peers_.Up(holder)) {
    holder_->state = Holder::State::kAsked;
    context_.Say(holder, SumWant{context_.config.term, commit_.round, commit_.attempt});
  }
  if (holder_->state != Holder::State::kReady || !peers_.Up(holder)) return;
  for (SumShard& shard : shards_) {
    if (shards_.Held(shard) || shard.requested || shards_.gone() || all_reduce_->Writes(shard) ||
        !shards_.TakeBuffers()) {
      continue;
    }
    shards_.FetchShard(shard, holder);
  }
}

// "Do you hold all shards of it?" may come again under another order number; the last one is
// answered, and none when the round is closed.
void RoundSums::OnFenceAttempt(const msg::FenceAttempt& fence) {
  if (shards_.own_only()) return;
  asked_to_hold_ = fence;
  TryAnswerHold();
}

// "Yes" promises that others can fetch everything from here, so what is only read through the
// mapping is copied first. "No" promises not to apply.
void RoundSums::TryAnswerHold() {
  LOCKSTEP_CHECK(
      asked_to_hold_->round == commit_.round && asked_to_hold_->attempt == commit_.attempt,
      "a promise about another attempt than round {} has", commit_.round);
  const bool holds = applied_ || shards_.HoldsAll();
  if (holds && !shards_.Localize()) return;
  (holds ? named_ : fenced_) = true;
  const msg::FenceAttempt fence = *asked_to_hold_;
  asked_to_hold_.reset();
  context_.Tell(msg::HoldAnswer{fence.term, fence.round, fence.attempt, holds, fence.order});
}

bool RoundSums::OnSumWant(const MemberId& peer) {
  if (!shards_.HoldsAll() || shards_.own_only()) return false;
  named_ = true;
  wanted_by_.insert(peer);
  return true;
}

// Only when everything lies in the own buffer may others be sent here.
void RoundSums::TryServeAll() {
  if (wanted_by_.empty() || !shards_.Localize()) return;
  for (const MemberId& peer : std::exchange(wanted_by_, {})) {
    SumReady ready = shards_.Announcement();
    ready.whole = shards_.HoldsAll();
    ready.gone = !ready.whole;
    context_.Say(peer, ready);
  }
}

// A shard whose source is up is on its way, however slowly.
std::optional<std::string> RoundSums::Lost() const {
  if (shards_.HoldsAll()) return std::nullopt;
  if (shards_.gone()) return *shards_.gone();
  if (fenced_) return std::string("its attempt was fenced");
  for (const SumShard& shard : shards_) {
    MemberId from = holder_ ? holder_->member : all_reduce_->SourceOf(shard);
    // Who stands in and cannot make it has it from its owner or not at all.
    if (from != shard.owner && shard.making == Making::kVoid) from = shard.owner;
    if (!shards_.Held(shard) && from != context_.config.self && !peers_.Up(from)) {
      return fmt::format("{} is lost, which has its sums", Name(from));
    }
  }
  return std::nullopt;
}

// Names every shard that is waited for, and why it may never come: the first thing that is read
// when a job stands still.
std::string RoundSums::Missing() const {
  std::string text;
  for (const SumShard& shard : shards_) {
    if (shards_.Held(shard)) continue;
    text += text.empty()
                ? fmt::format("sums of round {} attempt {} from ", commit_.round, commit_.attempt)
                : std::string(", ");
    text += shard.owner == context_.config.self ? "itself" : Name(shard.owner);
    text += all_reduce_->Missing(shard);
    if (shard.requested) text += " (asked for)";
  }
  if (holder_) text += fmt::format(", held by {}", Name(holder_->member));
  if (fenced_) text += ", fenced";
  if (shards_.gone()) text += ", " + *shards_.gone();
  return text;
}

// Whoever has the bytes may serve them: an owner its shard, a holder everything.
std::optional<BufferRange> RoundSums::FindPiece(const PieceName& piece) const {
  if (commit_.attempt.value != piece.attempt) return std::nullopt;
  if (OfPartial(piece)) return all_reduce_->FindPartial(piece);
  const std::uint64_t number = context_.layout.number_bytes();
  return shards_.Find({piece.offset / number, piece.bytes / number});
}

void RoundSums::CheckInvariants() const {
  const RoundId round = commit_.round;
  LOCKSTEP_CHECK(!(applied_ && fenced_), "I1: round {} was applied and promised not to be", round);
  for (const SumShard& shard : shards_) {
    LOCKSTEP_CHECK(!holder_ || shard.making != Making::kWaiting,
                   "I1: round {} has a holder and a shard is made", round);
  }
  LOCKSTEP_CHECK(!shards_.own_only() || (applied_ && !asked_to_hold_),
                 "round {}: it gave sums back too early", round);
  LOCKSTEP_CHECK(!holder_ || holder_->member != context_.config.self,
                 "round {}: this worker is to fetch from itself", round);
  LOCKSTEP_CHECK(!applied_ || shards_.HoldsAll(), "I1: round {} was applied without all shards",
                 round);
  shards_.CheckInvariants();
  all_reduce_->CheckInvariants();
}

}  // namespace lockstep::worker
