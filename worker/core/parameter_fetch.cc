#include "worker/core/parameter_fetch.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "worker/core/protocol_check.h"

namespace lockstep::worker {

namespace {

constexpr std::uint32_t kParametersKind = static_cast<std::uint32_t>(PieceKind::kParameters);

bool OfParameters(const Want& want) { return want.piece.kind == kParametersKind; }

}  // namespace

// --- who has what

Status ParameterFetch::OnReady(const MemberId& peer, const ParametersReady& ready) {
  const bool ascending =
      std::ranges::adjacent_find(ready.shards, std::greater_equal()) == ready.shards.end();
  if (ready.buffer >= kSumBuffers || ready.generation == 0 || ready.version >= kMaxRounds ||
      !ascending || (!ready.shards.empty() && ready.shards.back() >= context_.config.shards)) {
    return Error{ErrorCode::kInvalid, "it published parameters that cannot be"};
  }
  const auto known = heard_.find(peer);
  if (known == heard_.end() || known->second.version <= ready.version) heard_[peer] = ready;
  return {};
}

const ParametersReady* ParameterFetch::Heard(const MemberId& holder) const {
  const auto at = heard_.find(holder);
  return at == heard_.end() ? nullptr : &at->second;
}

void ParameterFetch::Forget(const MemberId& holder, RoundId version) {
  const auto at = heard_.find(holder);
  if (at != heard_.end() && at->second.version == version.value) heard_.erase(at);
}

void ParameterFetch::PassOver(const MemberId& holder, RoundId version) {
  Silent& silent = silent_[holder];
  silent.upto = version;
  ++silent.times;
  if (!op_ || emitted_ || version_.next > version) return;
  FloatSet elsewhere;
  for (std::uint32_t s = 0; s < context_.config.shards; ++s) {
    if (SourceOf(s, version_.next.value) == holder) continue;
    for (const Slice& slice : context_.shards[s]) elsewhere.Merge(slice.range);
  }
  const auto unwanted = [&](const Want& want) {
    return OfParameters(want) && want.peer == holder && elsewhere.Covers(want.to.range);
  };
  for (const Want& want : fetcher_.Cancel(unwanted)) asked_.Remove(want.to.range);
}

std::uint32_t ParameterFetch::Silence(const MemberId& holder, RoundId version) const {
  const auto at = silent_.find(holder);
  return at == silent_.end() || version > at->second.upto ? 0 : at->second.times;
}

// What lies in the memory of one that is gone is as good, while it is mapped.
void ParameterFetch::OnPeerDown(const MemberId& peer) {
  if (!peers_.Mapped(peer)) heard_.erase(peer);
  silent_.erase(peer);
}

std::optional<MemberId> ParameterFetch::SourceOf(std::uint32_t shard, std::uint64_t version) const {
  std::optional<MemberId> mapped;
  std::optional<MemberId> reached;
  std::uint32_t silence = 0;
  for (const auto& [holder, ready] : heard_) {
    if (ready.version != version || !std::ranges::binary_search(ready.shards, shard)) continue;
    if (holder == context_.config.self) return holder;
    if (peers_.Mapped(holder)) {
      mapped = holder;
    } else if (peers_.Up(holder)) {
      const std::uint32_t times = Silence(holder, RoundId(version));
      if (reached && times >= silence) continue;
      reached = holder;
      silence = times;
    }
  }
  return mapped ? mapped : reached;
}

std::optional<ParameterFetch::Version> ParameterFetch::Newest(
    RoundId least, const std::function<bool(const Version&)>& known) const {
  std::optional<Version> newest;
  for (const auto& [holder, ready] : heard_) {
    const Version version{RoundId(ready.version), ready.attempt};
    if (version.next < least || (newest && version.next <= newest->next)) continue;
    bool all = known(version);
    for (std::uint32_t s = 0; s < context_.config.shards && all; ++s) {
      all = SourceOf(s, ready.version).has_value();
    }
    if (all) newest = version;
  }
  return newest;
}

// --- taking a version

void ParameterFetch::Begin(const Version& version, std::uint64_t op) {
  LOCKSTEP_CHECK(!op_ && asked_.empty(), "I4: parameters are taken while others may land");
  std::erase_if(heard_, [&](const auto& entry) {
    return entry.first != context_.config.self && !peers_.Up(entry.first) &&
           !peers_.Mapped(entry.first);
  });
  std::erase_if(silent_, [&](const auto& entry) { return entry.second.upto < version.next; });
  version_ = version;
  op_ = op;
  emitted_ = giving_up_ = false;
  have_ = {};
}

bool ParameterFetch::Stuck() const {
  if (!op_ || emitted_) return false;
  for (std::uint32_t s = 0; s < context_.config.shards; ++s) {
    if (SourceOf(s, version_.next.value)) continue;
    for (const Slice& slice : context_.shards[s]) {
      if (!have_.Covers(slice.range)) return true;
    }
  }
  return false;
}

bool ParameterFetch::GiveUp() {
  LOCKSTEP_CHECK(op_ && !emitted_, "parameters that are being copied are given up");
  giving_up_ = true;
  for (const Want& want : fetcher_.Cancel(OfParameters)) asked_.Remove(want.to.range);
  if (!asked_.empty()) return false;
  op_.reset();
  return true;
}

// What is mapped is copied last, in one pass, when all that is fetched has come: a source may be
// lost until then, and another one be taken.
void ParameterFetch::Update() {
  if (!op_ || emitted_ || giving_up_) return;
  bool fetching = false;
  for (std::uint32_t s = 0; s < context_.config.shards; ++s) {
    const std::optional<MemberId> from = SourceOf(s, version_.next.value);
    if (from && InPlace(*from)) continue;
    PieceName name;
    name.kind = kParametersKind;
    name.round = version_.next.value;
    name.attempt = version_.attempt.value;
    for (const Slice& slice : context_.shards[s]) {
      if (have_.Covers(slice.range)) continue;
      fetching = true;
      if (!from) continue;
      for (const FloatRange& lacking : have_.Missing(slice.range)) {
        for (const FloatRange& range : asked_.Missing(lacking)) {
          asked_.Merge(range);
          fetcher_.Add(*from, name, {{BufferKind::kState, 0, {}}, range}, range.first);
        }
      }
    }
  }
  if (!fetching && asked_.empty()) Emit();
}

void ParameterFetch::Emit() {
  action::TakeParameters take;
  take.op = *op_;
  take.round = RoundId(version_.next.value - 1);
  take.attempt = version_.attempt;
  take.digest_bucket =
      static_cast<std::uint32_t>(take.round.value % context_.layout.bucket_count());
  std::vector<BufferId> uses = {{BufferKind::kState, 0, {}}};
  for (std::uint32_t s = 0; s < context_.config.shards; ++s) {
    const std::optional<MemberId> from = SourceOf(s, version_.next.value);
    if (!from || !InPlace(*from)) continue;
    const ParametersReady& ready = heard_.at(*from);
    Source source{{BufferKind::kSum, ready.buffer, {}}, std::nullopt, ready.generation};
    if (*from == context_.config.self) {
      uses.push_back(source.buffer);
    } else {
      source.peer = *from;
    }
    for (const Slice& slice : context_.shards[s]) {
      if (!have_.Covers(slice.range)) take.from.push_back({source, slice.range});
    }
  }
  emitted_ = true;
  buffers_.BeginOp(take.op, std::move(uses));
  context_.Emit(std::move(take));
}

// A holder that has it no longer has a newer version, or will say what it has; one that went may be
// replaced.
void ParameterFetch::OnFetchDone(const Fetcher::Done& done) {
  asked_.Remove(done.want.to.range);
  if (done.ok) {
    have_.Merge(done.want.to.range);
  } else if (done.status == FetchStatus::kGone) {
    Forget(done.want.peer, RoundId(done.want.piece.round));
  }
  if (op_ && catch_up_) context_.Tell(msg::Copied{catch_up_->order, have_.positions()});
}

void ParameterFetch::OnDropped(const Want& want) {
  if (OfParameters(want)) asked_.Remove(want.to.range);
}

bool ParameterFetch::OnTaken(const event::OpDone& done) {
  LOCKSTEP_CHECK(op_ == done.op && emitted_, "parameters were taken that are not");
  op_.reset();
  if (!done.torn) return true;
  // Its memory has something else by now: it will say what.
  std::erase_if(heard_, [&](const auto& entry) {
    return entry.first != context_.config.self && entry.second.version == version_.next.value;
  });
  return false;
}

// --- catching up

void ParameterFetch::BeginCatchUp(const msg::CatchUp& order) {
  order_ = order.order;
  catch_up_ = CatchUp{order.open_round, order.open_round, order.order};
}

void ParameterFetch::CheckInvariants() const {
  LOCKSTEP_CHECK(op_ || asked_.empty(), "I4: parameters may land that nobody waits for");
  LOCKSTEP_CHECK(!emitted_ || asked_.empty(), "I4: parameters may land behind the last copy");
}

}  // namespace lockstep::worker
