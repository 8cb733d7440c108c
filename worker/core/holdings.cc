#include "worker/core/holdings.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/sometimes.h"
#include "worker/core/round_sums.h"

namespace lockstep::worker {

namespace {

constexpr std::uint32_t kHeldKind = static_cast<std::uint32_t>(PieceKind::kHeldState);

bool Has(const std::vector<std::uint32_t>& shards, std::uint32_t shard) {
  return std::ranges::binary_search(shards, shard);
}

}  // namespace

FloatSet Holdings::SetOf(const std::vector<std::uint32_t>& shards) const {
  FloatSet set;
  for (const std::uint32_t shard : shards) {
    for (const Slice& slice : context_.shards[shard]) {
      set.Merge(slice.range);
    }
  }
  return set;
}

std::vector<FloatRange> Holdings::RangesOf(const std::vector<std::uint32_t>& shards) const {
  return SetOf(shards).Ranges();
}

void Holdings::Set(Generation& generation, std::vector<std::uint32_t> shards) const {
  generation.ranges = SetOf(shards);
  generation.shards = std::move(shards);
}

void Holdings::OnStart(const Plan& plan, bool held) {
  started_at_ = plan.round;
  const std::vector<std::uint32_t> shards =
      held ? context_.config.held_shards : HeldBy(plan.owners, context_.config.self);
  std::vector<std::uint32_t> others;
  for (std::uint32_t s = 0; s < context_.config.shards; ++s) {
    if (!Has(shards, s)) others.push_back(s);
  }
  if (!others.empty()) context_.Emit(action::DropHeldState{RangesOf(others)});
  if (shards.empty()) return;
  const std::optional<BufferId> buffer = buffers_.Take(BufferKind::kSum);
  LOCKSTEP_CHECK(buffer, "no buffer is free at the start");
  next_ = Generation{plan.round, Attempt(0), *buffer, context_.NewGeneration(), {}, {}};
  Set(*next_, shards);
  context_.Emit(action::OpenBlock{*buffer, next_->generation});
  action::CopySums copy;
  copy.op = context_.NewOp();
  copy.to = *buffer;
  const BufferId parameters{BufferKind::kState, 0, {}};
  for (const FloatRange& range : RangesOf(shards)) {
    copy.from.push_back({{parameters, std::nullopt, 0}, range});
  }
  op_ = copy.op;
  buffers_.BeginOp(copy.op, {parameters, *buffer});
  context_.Emit(std::move(copy));
}

bool Holdings::OnDecide(const msg::Decide& decide) {
  const RoundSums* sums = rounds_.SumsOf(decide.round);
  const bool known = sums != nullptr && sums->commit().attempt == decide.attempt;
  if (known && told_ != std::pair(decide.round, decide.attempt) &&
      !HeldBy(sums->commit().owners, context_.config.self).empty()) {
    return false;
  }
  // Of what this worker does not follow, or what its coordinator should not say.
  if (!known && (sums != nullptr || decide.round >= rounds_.expected())) return true;
  decided_ = decide;
  acted_ = false;
  return true;
}

// A holder that has said Held applies what was decided by that, also where it was not told so.
void Holdings::BeginDetach(const std::optional<HeldParameters>& decided) {
  detaching_ = true;
  if (gather_ && !gather_->copying) EndGather();
  if (!decided || !decided->attempt || !told_ || decided->term != context_.config.term) return;
  const auto [round, attempt] = *told_;
  if (decided->next != round.Next() || *decided->attempt != attempt) return;
  if (decided_ && decided_->round >= round) return;
  Sometimes<"replicas: a holder hears of a decision from the next coordinator">();
  decided_ = msg::Decide{round, attempt};
  acted_ = false;
}

bool Holdings::Detached(bool whole) {
  if (op_) return false;
  if (whole || !version() || put_back_) return true;
  put_back_ = true;
  const BufferId parameters{BufferKind::kState, 0, {}};
  action::CopySums copy;
  copy.op = context_.NewOp();
  copy.to = parameters;
  for (const FloatRange& range : RangesOf(newest_->shards)) {
    copy.from.push_back({{newest_->buffer, std::nullopt, newest_->generation}, range});
  }
  op_ = copy.op;
  buffers_.BeginOp(copy.op, {newest_->buffer, parameters});
  context_.Emit(std::move(copy));
  return false;
}

std::optional<RoundId> Holdings::version() const {
  return newest_ && !newest_->shards.empty() ? std::optional(newest_->version) : std::nullopt;
}

void Holdings::Describe(action::Detached* to) const {
  if (!version()) return;
  const bool began = started_at_ == newest_->version;
  to->held = HeldParameters{context_.config.term, newest_->version,
                            began ? std::nullopt : std::optional(newest_->attempt)};
  to->shards = newest_->shards;
}

void Holdings::Release(std::optional<Generation>& generation) {
  if (generation) buffers_.Release(generation->buffer);
  generation.reset();
}

// What is under way may land until it has ended (ShardCopy).
void Holdings::GiveUp(const std::function<bool(std::uint32_t shard)>& unwanted) {
  for (auto& [shard, copy] : copies_) {
    if (unwanted(shard)) copy.failed = true;
  }
  for (const Want& want : fetcher_.Cancel(
           [&](const Want& w) { return w.piece.kind == kHeldKind && unwanted(w.piece.owner); })) {
    EndOf(want, false);
  }
}

void Holdings::GiveUpCopies(const std::vector<std::uint32_t>& but) {
  GiveUp([&](std::uint32_t shard) { return !Has(but, shard); });
}

void Holdings::Drop() {
  GiveUpCopies({});
  abandoned_ = op_.has_value();
  EndGather();
  if (newest_ && !op_) context_.Emit(action::DropHeldState{RangesOf(newest_->shards)});
  Release(before_);
  Release(newest_);
  decided_.reset();
  told_.reset();
  parameter_fetch_.ForgetOwn();
}

// --- what is said of it

std::optional<ParametersReady> Holdings::Announcement() const {
  if (!newest_ || newest_->shards.empty()) return std::nullopt;
  return ParametersReady{newest_->version.value, newest_->attempt, newest_->buffer.index,
                         newest_->generation, newest_->shards};
}

// To all that are reached: whoever comes later hears it then.
void Holdings::Announce() {
  const std::optional<ParametersReady> ready = Announcement();
  if (!ready) return;
  parameter_fetch_.OnOwn(*ready);
  peers_.ForEachUp([&](const MemberId& peer) { context_.Say(peer, *ready); });
}

void Holdings::OnPeerUp(const MemberId& peer) {
  if (const auto ready = Announcement()) context_.Say(peer, *ready);
}

// The state is served while it stands still: the round that it is before is not decided. Of one
// shard at a time, which is all that lies together.
std::optional<BufferRange> Holdings::FindPiece(const PieceName& piece) const {
  const FloatRange range{piece.offset / sizeof(float), piece.bytes / sizeof(float)};
  const RoundId version(piece.round);
  if (piece.kind == kHeldKind) {
    // An operation that makes no version only reads.
    if (!newest_ || newest_->version != version || newest_->generation != piece.attempt || next_ ||
        !Has(newest_->shards, piece.owner) || !SetOf({piece.owner}).Covers(range) ||
        piece.part > context_.config.state_tensors) {
      return std::nullopt;
    }
    if (piece.part == 0) return BufferRange{newest_->buffer, range};
    return BufferRange{{BufferKind::kState, piece.part, {}}, range};
  }
  for (const auto* generation : {&newest_, &before_}) {
    if (*generation && (*generation)->version == version && (*generation)->ranges.Covers(range)) {
      return BufferRange{(*generation)->buffer, range};
    }
  }
  return std::nullopt;
}

// --- a round

void Holdings::Update() {
  for (auto at = copies_.begin(); at != copies_.end();) {
    if (!at->second.failed || at->second.to_come > 0) {
      ++at;
      continue;
    }
    // What has come of it is of no use.
    context_.Emit(action::DropHeldState{RangesOf({at->first})});
    at = copies_.erase(at);
  }
  if (put_back_) return;
  TryUpdate();
  if (detaching_) return;
  TryGather();
  TryHold();
}

// A holder that was given up for another, as it took too long, is asked by nobody to wait any more.
void Holdings::TryGather() {
  if (!gather_ || gather_->copying) return;
  const RoundId now = newest_ ? newest_->version : next_ ? next_->version : gather_->version;
  const bool decided = decided_ && decided_->round >= gather_->version;
  if (decided || now > gather_->version) return EndGather();
  if (op_ || now < gather_->version) return;
  std::vector<std::uint32_t> all(context_.config.shards);
  std::iota(all.begin(), all.end(), 0u);
  if (!CopyShards(all, gather_->version)) return;
  gather_->copying = true;
  op_ = gather_->op;
  std::vector<BufferId> uses = {newest_->buffer};
  for (std::uint32_t t = 1; t <= context_.config.state_tensors; ++t) {
    uses.push_back({BufferKind::kState, t, {}});
  }
  buffers_.BeginOp(gather_->op, std::move(uses));
  context_.Emit(
      action::TakeSnapshot{gather_->op, action::SnapshotKind::kCheckpoint, newest_->buffer});
}

void Holdings::EndGather() {
  if (gather_ && !gather_->copying) {
    failed_gather_ = gather_->op;
    GiveUpCopies({});
  }
  gather_.reset();
}

// What is held beside these is given back.
void Holdings::DropAllBut(const std::vector<std::uint32_t>& shards) {
  std::vector<std::uint32_t> gone;
  std::ranges::set_difference(newest_->shards, shards, std::back_inserter(gone));
  if (!gone.empty()) context_.Emit(action::DropHeldState{RangesOf(gone)});
}

// The last one that was committed, until it is decided.
void Holdings::TryHold() {
  if (rounds_.expected().value == 0) return;
  const RoundId round(rounds_.expected().value - 1);
  RoundSums* sums = rounds_.SumsOf(round);
  if (sums == nullptr) return;
  const msg::Commit& commit = sums->commit();
  const std::pair attempt(commit.round, commit.attempt);
  if (told_ == attempt || (decided_ && decided_->round >= round)) return;
  const std::vector<std::uint32_t> shards = HeldBy(commit.owners, context_.config.self);
  if (gather_ && gather_->version == round) return;
  const bool here = CopyShards(shards, commit.round);
  if (shards.empty() || !sums->InOwnBuffer() || !here) return;
  told_ = attempt;
  context_.Tell(msg::Held{commit.round, commit.attempt});
}

bool Holdings::HoldsNothingNow(const MemberId& member) const {
  if (rounds_.expected().value == 0) return false;
  const RoundSums* sums = rounds_.SumsOf(RoundId(rounds_.expected().value - 1));
  return sums != nullptr && HeldBy(sums->commit().owners, member).empty();
}

// Whoever has said that it has the shard at this version has it until the round is decided, which
// waits for this worker. One that is stopped has it too, and is connected, and does not answer:
// then all are told, or it holds nothing any more, as it was given up before the commit.
std::optional<MemberId> Holdings::DonorOf(std::uint32_t shard, RoundId version) const {
  std::optional<MemberId> donor;
  std::pair<std::uint32_t, bool> least;
  parameter_fetch_.ForEachHeard([&](const MemberId& holder, const ParametersReady& ready) {
    if (ready.version != version.value || !peers_.Up(holder) || !Has(ready.shards, shard)) return;
    const std::pair doubt(parameter_fetch_.Silence(holder, version), HoldsNothingNow(holder));
    if (donor && doubt >= least) return;
    donor = holder;
    least = doubt;
  });
  return donor;
}

bool Holdings::GiveUpDonor(std::uint32_t shard, ShardCopy& copy) {
  const std::uint32_t silence = parameter_fetch_.Silence(copy.donor, copy.version);
  if (silence > 0 && !copy.failed) {
    const std::optional<MemberId> donor = DonorOf(shard, copy.version);
    if (donor && parameter_fetch_.Silence(*donor, copy.version) < silence) {
      GiveUp([&](std::uint32_t s) { return s == shard; });
    }
  }
  return copy.failed && copy.to_come == 0;
}

bool Holdings::CopyShards(const std::vector<std::uint32_t>& shards, RoundId version) {
  if (op_ || (newest_ && newest_->version != version)) return false;
  bool all = true;
  for (const std::uint32_t shard : shards) {
    if (newest_ && Has(newest_->shards, shard)) continue;
    all = false;
    if (const auto copy = copies_.find(shard); copy != copies_.end()) {
      if (!GiveUpDonor(shard, copy->second)) continue;
      context_.Emit(action::DropHeldState{RangesOf({shard})});
      copies_.erase(copy);
    }
    const std::optional<MemberId> donor = DonorOf(shard, version);
    if (!donor) continue;
    if (!newest_) {
      // What it held lately, and not any more.
      Release(before_);
      parameter_fetch_.ForgetOwn();
      const std::optional<BufferId> buffer = buffers_.Take(BufferKind::kSum);
      if (!buffer) return false;
      const Attempt attempt = parameter_fetch_.Heard(*donor)->attempt;
      newest_ = Generation{version, attempt, *buffer, context_.NewGeneration(), {}, {}};
      context_.Emit(action::OpenBlock{*buffer, newest_->generation});
    }
    BeginCopy(shard, *donor, version);
  }
  // What another attempt wanted here and this one does not.
  GiveUpCopies(shards);
  return all;
}

void Holdings::BeginCopy(std::uint32_t shard, const MemberId& donor, RoundId version) {
  ShardCopy& copy = copies_[shard] = {
      .version = version, .donor = donor, .generation = parameter_fetch_.Heard(donor)->generation};
  Fetch(shard, copy, 1, context_.config.state_tensors + 1);
  if (copy.to_come == 0) GoOn(shard);
}

void Holdings::Fetch(std::uint32_t shard, ShardCopy& copy, std::uint32_t first_part,
                     std::uint32_t end_part) {
  PieceName name;
  name.kind = kHeldKind;
  name.round = copy.version.value;
  name.attempt = copy.generation;
  name.owner = shard;
  const std::vector<FloatRange> ranges = RangesOf({shard});
  for (std::uint32_t part = first_part; part < end_part; ++part) {
    name.part = part;
    const BufferId to = part == 0 ? newest_->buffer : BufferId{BufferKind::kState, part, {}};
    for (const FloatRange& range : ranges) {
      copy.to_come += range.count;
      fetcher_.Add(copy.donor, name, {to, range}, range.first);
    }
  }
}

// Who has it no longer has begun anew, and will say what it has then.
void Holdings::OnFetchDone(const Fetcher::Done& done) {
  if (done.status == FetchStatus::kGone) {
    parameter_fetch_.Forget(done.want.peer, RoundId(done.want.piece.round));
  }
  EndOf(done.want, done.ok);
}

void Holdings::OnDropped(const Want& want) {
  if (want.piece.kind == kHeldKind) EndOf(want, false);
}

void Holdings::EndOf(const Want& want, bool ok) {
  const std::uint32_t shard = want.piece.owner;
  const auto at = copies_.find(shard);
  LOCKSTEP_CHECK(at != copies_.end() && at->second.to_come >= want.to.range.count,
                 "I4: a piece of shard {} has come that nobody waits for", shard);
  ShardCopy& copy = at->second;
  copy.to_come -= want.to.range.count;
  copy.failed = copy.failed || !ok;
  if (ok) TellCopied(want.to.range.count);
  if (copy.to_come == 0 && !copy.failed) GoOn(shard);
}

// All that was asked for is here: asks for what comes behind it, or notes that the shard is held.
void Holdings::GoOn(std::uint32_t shard) {
  ShardCopy& copy = copies_.at(shard);
  LOCKSTEP_CHECK(newest_ && newest_->version == copy.version && !op_,
                 "I1: shard {} was copied at version {}", shard, copy.version);
  if (!std::exchange(copy.state_here, true)) {
    Fetch(shard, copy, 0, 1);
    if (copy.to_come > 0) return;
  }
  std::vector<std::uint32_t> shards = newest_->shards;
  shards.insert(std::ranges::lower_bound(shards, shard), shard);
  Set(*newest_, std::move(shards));
  copies_.erase(shard);
  // Others may have to copy it from here; but for a checkpoint it is not kept.
  if (!gather_) Announce();
}

// Who copies for long is waited for as long as it gets on.
void Holdings::TellCopied(std::uint64_t floats) {
  copied_ += floats;
  untold_ += floats;
  if (untold_ < kToldFloats) return;
  untold_ = 0;
  context_.Tell(msg::Copied{0, copied_});
}

// The scalars are the coordinator's, and the operations for each number are those of any other
// holder (I1).
void Holdings::TryUpdate() {
  if (!decided_ || acted_ || op_) return;
  RoundSums* sums = rounds_.SumsOf(decided_->round);
  if (sums == nullptr || sums->commit().attempt != decided_->attempt) return;
  acted_ = true;
  const msg::Commit& commit = sums->commit();
  std::vector<std::uint32_t> shards = HeldBy(commit.owners, context_.config.self);
  if (shards.empty()) {
    // Others may have gone on, and this worker have taken the parameters after the round, before it
    // was told: what it gathers of that version stays.
    if (!gather_ || gather_->version <= commit.round) EndGather();
    if (!newest_ || newest_->version <= commit.round) GiveUpCopies({});
    if (newest_ && newest_->version <= commit.round) {
      context_.Emit(action::DropHeldState{RangesOf(newest_->shards)});
      Release(before_);
      before_ = std::exchange(newest_, std::nullopt);
    } else if (before_ && before_->version < commit.round) {
      Release(before_);
      parameter_fetch_.ForgetOwn();
    }
    return;
  }
  LOCKSTEP_CHECK(told_ == std::pair(commit.round, commit.attempt),
                 "I1: round {} is decided, and this worker does not hold its shards", commit.round);
  LOCKSTEP_CHECK(newest_ && newest_->version == commit.round,
                 "I1: round {} is applied to state of version {}", commit.round,
                 newest_ ? newest_->version : RoundId(0));
  action::UpdateHeld update;
  update.op = context_.NewOp();
  update.round = commit.round;
  update.attempt = commit.attempt;
  update.ranges = RangesOf(shards);
  update.from = newest_->buffer;
  update.sums = sums->HandOver();
  update.scale = commit.scale;
  update.learning_rate = commit.learning_rate;
  update.fraction = commit.fraction;
  update.clip = context_.config.clip;
  update.steps = commit.steps;
  next_ = Generation{
      commit.round.Next(), commit.attempt, update.sums, context_.NewGeneration(), {}, {}};
  Set(*next_, std::move(shards));
  context_.Emit(action::OpenBlock{update.sums, next_->generation});
  op_ = update.op;
  std::vector<BufferId> uses = {update.from, update.sums};
  for (std::uint32_t t = 1; t <= context_.config.state_tensors; ++t) {
    uses.push_back({BufferKind::kState, t, {}});
  }
  buffers_.BeginOp(update.op, std::move(uses));
  context_.Emit(std::move(update));
}

bool Holdings::OnOpDone(const event::OpDone& done) {
  if (op_ != done.op) return false;
  LOCKSTEP_CHECK(!done.torn, "this worker's own state has changed under an operation");
  op_.reset();
  if (put_back_) return true;
  const std::optional<Gathering> gathered = next_ ? std::nullopt : std::exchange(gather_, {});
  if (std::exchange(abandoned_, false)) {
    std::vector<std::uint32_t> all(context_.config.shards);
    std::iota(all.begin(), all.end(), 0u);
    context_.Emit(action::DropHeldState{RangesOf(all)});
    Release(next_);
    return true;
  }
  if (!next_) {
    // A snapshot of what was gathered. The holders of the round before go on to hold that.
    const RoundSums* sums = rounds_.SumsOf(RoundId(gathered->version.value - 1));
    std::vector<std::uint32_t> kept;
    if (sums != nullptr) kept = HeldBy(sums->commit().owners, context_.config.self);
    DropAllBut(kept);
    Set(*newest_, std::move(kept));
    return true;
  }
  if (newest_) DropAllBut(next_->shards);
  Release(before_);
  copied_ = untold_ = 0;
  before_ = std::exchange(newest_, std::exchange(next_, std::nullopt));
  Announce();
  return true;
}

std::string Holdings::Missing() const {
  std::string text;
  for (const auto& [shard, copy] : copies_) {
    text += fmt::format("{}shard {} from {}", text.empty() ? "" : ", ", shard, Name(copy.donor));
  }
  return text;
}

void Holdings::CheckInvariants() const {
  LOCKSTEP_CHECK(op_ || !next_, "a version is made by no operation");
  LOCKSTEP_CHECK(!abandoned_ || op_, "no operation is abandoned");
  for (const auto* generation : {&newest_, &before_, &next_}) {
    LOCKSTEP_CHECK(!*generation || buffers_.Taken((*generation)->buffer),
                   "I4: version {} lies in a free buffer", (*generation)->version);
  }
  LOCKSTEP_CHECK(!newest_ || !before_ || before_->version < newest_->version,
                 "I1: version {} is before version {}", before_->version, newest_->version);
}

}  // namespace lockstep::worker
