#include "worker/core/buffer_leases.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace lockstep::worker {

namespace {

std::uint32_t PoolSize(BufferKind kind) {
  switch (kind) {
    case BufferKind::kContribution:
      return kContributionBuffers;
    case BufferKind::kSum:
    case BufferKind::kTaken:
      return kSumBuffers;
    case BufferKind::kStateOut:
      return kStateOutBuffers;
    case BufferKind::kStaging:
    case BufferKind::kState:
      break;
  }
  LOCKSTEP_CHECK(false, "not a pool");
  return 0;
}

}  // namespace

std::uint64_t ShapeOf(std::span<const Slice> slices) {
  std::uint64_t shape = slices.size();
  for (const Slice& slice : slices) {
    shape = Mix64(Mix64(shape ^ slice.range.first) ^ slice.range.count);
  }
  return std::max<std::uint64_t>(shape, 1);
}

// A send under way cannot be called back, so a peer that stopped reading pins a buffer for good.
// There are spare ones; when the last is needed, the connection goes rather than the round (I6).
std::optional<BufferId> Buffers::Take(BufferKind kind) {
  std::optional<BufferId> held_by_send;
  for (std::uint32_t i = 0; i < PoolSize(kind); ++i) {
    const BufferId buffer{kind, i, {}};
    if (taken_.contains(buffer)) continue;
    if (!InUse(buffer)) {
      LOCKSTEP_CHECK(taken_.insert(buffer).second, "I4: a buffer was taken twice");
      return buffer;
    }
    if (!held_by_send && ServedOf(buffer)) held_by_send = buffer;
  }
  if (held_by_send) {
    std::set<MemberId> holders;
    for (const auto& [cookie, served] : serves_) {
      if (served.from.buffer == *held_by_send) holders.insert(served.peer);
    }
    for (const MemberId& peer : holders) {
      if (!closing_.insert(peer).second) continue;
      context_.Emit(
          action::ClosePeer{peer, "it does not read what it asked for, and its buffer is needed"});
    }
  }
  return std::nullopt;
}

// Free to be taken once nothing uses it any more; until then Take passes it by.
void Buffers::Release(const BufferId& buffer) {
  LOCKSTEP_CHECK(taken_.erase(buffer) == 1, "released a buffer that was not taken");
}

// Pages take memory from when they are first written. Whoever's share has changed would keep those
// of the old share beside those of the new one, round by round more of them.
void Buffers::Fit(const BufferId& buffer, std::uint64_t shape, std::span<const FloatRange> kept) {
  LOCKSTEP_CHECK(!InUse(buffer), "I4: a buffer is given back that is in use");
  const auto [at, untouched] = fits_.try_emplace(buffer, shape);
  if (untouched || at->second == shape) return;
  context_.Emit(action::GiveBack{buffer, {kept.begin(), kept.end()}});
  at->second = shape;
}

// Of a pool, or what a holder has of the optimizer's state (holdings.h): staging and parameters
// change under whoever reads them.
std::uint64_t Buffers::Serve(const MemberId& peer, const BufferRange& from) {
  const BufferId& buffer = from.buffer;
  const bool state = buffer.kind == BufferKind::kState && buffer.index > 0;
  LOCKSTEP_CHECK(
      state || (buffer.kind != BufferKind::kStaging && buffer.kind != BufferKind::kState),
      "I4: {} is served out of a buffer that is not for sending", Name(peer));
  LOCKSTEP_CHECK(state || Taken(buffer), "I4: {} is served out of a buffer that is free",
                 Name(peer));
  serves_[next_cookie_] = {peer, from, context_.now};
  return next_cookie_++;
}

// Sent, refused, or ended with its connection: all the same here.
Buffers::Served Buffers::Unserve(std::uint64_t cookie) {
  const auto at = serves_.find(cookie);
  LOCKSTEP_CHECK(at != serves_.end(), "served twice: {}", cookie);
  const Served ended = at->second;
  serves_.erase(at);
  const bool more = std::any_of(serves_.begin(), serves_.end(),
                                [&](const auto& s) { return s.second.peer == ended.peer; });
  if (!more) closing_.erase(ended.peer);
  return ended;
}

// Several pieces land in one buffer; it is in use until the last of them has, or never will.
void Buffers::EndFetch(const BufferId& into) {
  const auto at = fetches_.find(into);
  LOCKSTEP_CHECK(at != fetches_.end(), "a fetch ended that had not begun");
  if (--at->second == 0) fetches_.erase(at);
}

// Held until the operation has ended, also when its result is wanted no longer: its thread reads
// and writes whatever is decided here.
void Buffers::BeginOp(std::uint64_t op, std::vector<BufferId> uses) {
  for (const BufferId& buffer : uses) {
    const bool pooled = buffer.kind != BufferKind::kStaging && buffer.kind != BufferKind::kState;
    LOCKSTEP_CHECK(!pooled || Taken(buffer), "I4: operation {} uses a buffer that is free", op);
  }
  const auto [at, is_new] = ops_.try_emplace(op);
  LOCKSTEP_CHECK(is_new, "operation {} began twice", op);
  at->second = std::move(uses);
}

void Buffers::EndOp(std::uint64_t op) {
  LOCKSTEP_CHECK(ops_.erase(op) == 1, "operation {} ended twice", op);
}

// Taken or not: what was given back may still be read.
bool Buffers::InUse(const BufferId& buffer) const {
  if (fetches_.contains(buffer) || ServedOf(buffer)) return true;
  return std::any_of(ops_.begin(), ops_.end(), [&](const auto& op) {
    return std::find(op.second.begin(), op.second.end(), buffer) != op.second.end();
  });
}

bool Buffers::ServedOf(const BufferId& buffer) const {
  return std::any_of(serves_.begin(), serves_.end(),
                     [&](const auto& s) { return s.second.from.buffer == buffer; });
}

void Buffers::CheckInvariants() const {
  LOCKSTEP_CHECK(taken_.size() <= kContributionBuffers + 2 * kSumBuffers + kStateOutBuffers,
                 "I7: {} buffers are taken", taken_.size());
  for (const BufferId& buffer : taken_) {
    LOCKSTEP_CHECK(buffer.index < PoolSize(buffer.kind), "I7: buffer {} of {} is taken",
                   buffer.index, PoolSize(buffer.kind));
  }
  for (const auto& [buffer, fetches] : fetches_) {
    LOCKSTEP_CHECK(fetches > 0, "a buffer that nothing is fetched into waits for a fetch");
    LOCKSTEP_CHECK(buffer.kind != BufferKind::kContribution && buffer.kind != BufferKind::kStateOut,
                   "I4: a fetch lands in what is served");
  }
}

}  // namespace lockstep::worker
