#include "worker/core/catch_up.h"

#include <algorithm>

#include "base/check.h"
#include "worker/core/protocol_check.h"

namespace lockstep::worker {

namespace {

bool OfState(const Want& want) {
  return want.piece.kind == static_cast<std::uint32_t>(PieceKind::kState);
}

}  // namespace

// The buckets are copied in place, so what was there is gone with the first one: who begins cannot
// go back to what it had.
void CatchUpJob::Begin(const msg::CatchUp& order) {
  Abandon();
  active_ = true;
  waits_for_donor_ = false;
  order_ = order.order;
  donors_ = order.others;
  donors_.insert(donors_.begin(), order.donor);
  turn_ = 0;
  open_round_ = order.open_round;
  next_ = order.open_round;
  versions_.assign(context_.layout.copy_count(), std::nullopt);
}

void CatchUpJob::Restart(RoundId open_round) {
  if (donors_.empty()) {  // another one is named
    open_round_ = next_ = open_round;
    versions_.assign(context_.layout.copy_count(), std::nullopt);
    return;
  }
  Begin(msg::CatchUp{donors_.front(), open_round, order_, {donors_.begin() + 1, donors_.end()}});
}

void CatchUpJob::End() {
  Abandon();
  active_ = false;
}

std::size_t CatchUpJob::buckets_copied() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(versions_, [](const auto& version) { return version.has_value(); }));
}

// None at it means that the round need not be applied at all: every copy already contains it.
bool CatchUpJob::AnyAt(RoundId round) const {
  return std::ranges::any_of(versions_, [&](const auto& version) { return IsAt(version, round); });
}

// The donor may give a later version than it was asked for; until it has said which, any round from
// the one that was asked for on may be needed.
bool CatchUpJob::NeededByCopy(RoundId round) const {
  return copy_ && copy_->version <= round.value;
}

// Sums of rounds that were worked in may go, so a copy that would have needed them begins anew.
void CatchUpJob::Advance(Attempt attempt) {
  LOCKSTEP_CHECK(active_, "round {} is worked in by a worker that is level", next_);
  for (auto& version : versions_) {
    if (IsAt(version, next_)) version = Version{version->value + 1, attempt};
  }
  if (NeededByCopy(next_)) Abandon();
  next_ = next_.Next();
}

// An update that did not go through leaves a bucket in no state that anybody else has (I1).
void CatchUpJob::Lose(RoundId round) {
  for (auto& version : versions_) {
    if (IsAt(version, round)) version.reset();
  }
}

bool CatchUpJob::ContainsOlder(RoundId round, Attempt attempt) const {
  return std::ranges::any_of(versions_, [&](const auto& version) {
    return IsAt(version, round.Next()) && version->attempt < attempt;
  });
}

void CatchUpJob::LoseOlder(RoundId round, Attempt attempt) {
  for (auto& version : versions_) {
    if (IsAt(version, round.Next()) && version->attempt < attempt) version.reset();
  }
}

// All buckets at one version and, of the round before it, at one attempt: then they are the
// parameters that everybody has after that round (I1).
std::optional<CatchUpJob::State> CatchUpJob::LevelAt() {
  LOCKSTEP_CHECK(active_, "a worker that copies nothing asks whether it is level");
  const auto& first = versions_.front();
  if (!first || first->value == 0 || first->value < next_.value) return std::nullopt;
  const RoundId next(first->value);
  Attempt newest = first->attempt;
  for (const auto& version : versions_) {
    if (!IsAt(version, next)) return std::nullopt;
    newest = std::max(newest, version->attempt);
  }
  const RoundId last(next.value - 1);
  if (ContainsOlder(last, newest)) {
    LoseOlder(last, newest);
    return std::nullopt;
  }
  return State{next, newest};
}

// The donor has copied the bucket as it was between two of its updates, perhaps some rounds later
// than it was asked for.
Status CatchUpJob::OnStateReady(const MemberId& peer, const StateReady& ready, bool& gone) {
  gone = false;
  if (!active_ || !copy_ || peer != copy_->from || copy_->tag || ready.bucket != copy_->bucket ||
      (!ready.gone && ready.version < copy_->version)) {
    // The answer to a question that was dropped since; the donor need not keep it.
    if (!ready.gone) context_.Say(peer, StateTaken{ready.tag});
    return {};
  }
  if (ready.gone) {
    copy_.reset();
    std::erase(donors_, peer);
    gone = waits_for_donor_ = donors_.empty();
    return {};
  }
  if (ready.buffer >= kStateOutBuffers || ready.tag == 0 || ready.version >= kMaxRounds) {
    return Error{ErrorCode::kInvalid, "it answered with state that was not asked for"};
  }
  const FloatRange bucket = context_.layout.copy(ready.bucket);
  copy_->version = ready.version;
  copy_->attempt = ready.attempt;
  copy_->tag = ready.tag;
  const std::uint32_t tensors = 1 + context_.config.state_tensors;
  copy_->missing = 0;
  PieceName name;
  name.kind = static_cast<std::uint32_t>(PieceKind::kState);
  name.attempt = ready.tag;
  name.round = ready.version;
  name.part = ready.buffer;
  for (std::uint32_t t = 0; t < tensors; ++t) {
    const std::uint64_t at = t * context_.layout.largest_copy();
    for (const FloatRange& range :
         context_.layout.InStateTensor(t, context_.config.state_tensors, bucket)) {
      copy_->missing += range.count;
      fetcher_.Add(peer, name, {{BufferKind::kState, t, {}}, range},
                   at + (range.first - bucket.first));
    }
  }
  return {};
}

// A bucket counts when all of its tensors are here; if one piece is missing it is copied again.
void CatchUpJob::OnFetchDone(const Fetcher::Done& done) {
  if (!copy_ || copy_->tag != done.want.piece.attempt || done.want.peer != copy_->from) return;
  if (!done.ok) {
    Abandon();
    return;
  }
  LOCKSTEP_CHECK(copy_->missing >= done.want.to.range.count, "more of a bucket came than it has");
  copy_->missing -= done.want.to.range.count;
  copy_->untold += done.want.to.range.count;
  if (copy_->missing > 0) {
    if (copy_->untold >= kToldFloats) TellCopied();
    return;
  }
  versions_[copy_->bucket] = Version{copy_->version, copy_->attempt};
  context_.Say(copy_->from, StateTaken{*copy_->tag});
  copy_.reset();
  TellCopied();
}

// In all, not since the last time: what was lost and copied again is no progress.
void CatchUpJob::TellCopied() {
  std::uint64_t values = 0;
  for (std::uint32_t b = 0; b < versions_.size(); ++b) {
    if (versions_[b]) values += context_.layout.copy(b).count;
  }
  if (copy_ && !versions_[copy_->bucket]) {
    const std::uint64_t floats = context_.layout.copy(copy_->bucket).count;
    values += floats - copy_->missing / (1 + context_.config.state_tensors);
    copy_->untold = 0;
  }
  context_.Tell(msg::Copied{order_, values});
}

// What has been copied stays: another donor goes on, or the coordinator names one, or this one
// comes back.
void CatchUpJob::OnPeerDown(const MemberId& peer) {
  if (copy_ && peer == copy_->from) Abandon();
}

// Tells the donor, which has few buffers for copies.
void CatchUpJob::Abandon() {
  if (!copy_) return;
  fetcher_.Cancel(OfState);
  if (copy_->tag && peers_.Up(copy_->from)) context_.Say(copy_->from, StateTaken{*copy_->tag});
  copy_.reset();
}

// One bucket at a time, the first that is missing or too old. It lands in the state itself, so
// nothing may read or write that meanwhile.
void CatchUpJob::Update(bool quiet) {
  if (!active_ || copy_ || !quiet || waits_for_donor_) return;
  // Bytes of a copy that was abandoned may still land.
  for (std::uint32_t t = 0; t <= context_.config.state_tensors; ++t) {
    if (buffers_.InUse({BufferKind::kState, t, {}})) return;
  }
  const auto lacking = std::find_if(versions_.begin(), versions_.end(), [&](const auto& version) {
    return !version || version->value < next_.value;
  });
  if (lacking == versions_.end()) return;
  const MemberId* const donor = NextDonor();
  if (donor == nullptr) return;
  LOCKSTEP_CHECK(*donor != context_.config.self, "this worker copies from itself");
  copy_ = Copy{
      *donor, static_cast<std::uint32_t>(lacking - versions_.begin()), next_.value, {}, {}, 0, 0};
  context_.Say(copy_->from, StateWant{copy_->bucket, copy_->version});
}

// In turn, so that each one's link and processor have a share of the copy.
const MemberId* CatchUpJob::NextDonor() {
  for (std::size_t i = 0; i < donors_.size(); ++i) {
    const MemberId& donor = donors_[turn_++ % donors_.size()];
    if (peers_.Up(donor)) return &donor;
  }
  return nullptr;
}

void CatchUpJob::CheckInvariants() const {
  LOCKSTEP_CHECK(!copy_ || active_, "a bucket is copied for a worker that is level");
  LOCKSTEP_CHECK(!copy_ || copy_->bucket < versions_.size(), "bucket {} is copied", copy_->bucket);
  LOCKSTEP_CHECK(!copy_ || copy_->tag || copy_->missing == 0,
                 "a copy is fetched that the donor has not announced");
  LOCKSTEP_CHECK(!copy_ || !copy_->tag || copy_->missing > 0, "a copy is there and not taken");
  LOCKSTEP_CHECK(!copy_ || copy_->version >= next_.value,
                 "a bucket is copied at version {}, whose sums from {} on are gone", copy_->version,
                 next_);
  if (!active_) return;
  LOCKSTEP_CHECK(next_ >= open_round_, "it worked in rounds before {}, from which on it copied",
                 open_round_);
  for (const auto& version : versions_) {
    LOCKSTEP_CHECK(!version || version->value >= next_.value,
                   "a bucket is at version {} and misses the sums before round {}", version->value,
                   next_);
  }
}

}  // namespace lockstep::worker
