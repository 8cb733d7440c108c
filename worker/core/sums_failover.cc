// Sums when something fails: attempts that are fenced, sums that are taken from a holder, and sums
// that cannot be had any more.
#include <algorithm>
#include <utility>

#include "worker/core/sums.h"

namespace lockstep::worker {

void Sums::OnTakeSums(const TakeSums& take) {
  Entry* known = FindEntry(take.commit.round);
  if (known == nullptr || known->commit.attempt != take.commit.attempt) return;
  Entry& entry = *known;
  entry.fenced = false;
  entry.gone.reset();
  if (take.holder == context_.config.self) return;
  entry.holder = take.holder;
  entry.holder_asked = false;
  entry.holder_ready = false;
  // From now on the holder is asked for all that is missing, the own shard too.
  if (entry.own == Own::kWaiting) entry.own = Own::kVoid;
  for (Shard& shard : entry.shards) shard.requested = false;
  const auto dropped = fetcher_.Cancel([&](const Want& want) {
    return want.piece.kind == static_cast<std::uint32_t>(PieceKind::kSum) &&
           want.piece.round == take.commit.round.value && want.peer != take.holder;
  });
  for (const Want& want : dropped) OnDropped(want);
}

void Sums::OnTornApply(RoundId round) {
  Entry* entry = FindEntry(round);
  if (entry == nullptr) return;
  entry->applied = false;
  entry->all_held = false;
  entry->gone = "its mapped sums changed";
  for (Shard& shard : entry->shards) shard.mapped.reset();
}

void Sums::OnFenceAttempt(const FenceAttempt& fence) {
  if (fence.term != context_.config.term) return;
  Entry* entry = FindEntry(fence.round);
  if (entry == nullptr || entry->commit.attempt != fence.attempt) {
    context_.Tell(HoldAnswer{fence.term, fence.round, fence.attempt, false, fence.order});
    return;
  }
  entry->asked_to_hold = fence;
  TryAnswerHold(*entry);
}

// "Yes" promises that others can fetch everything from here, so what is only read through the
// mapping is copied first. "No" promises not to apply.
void Sums::TryAnswerHold(Entry& entry) {
  const bool holds = entry.applied || HoldsAll(entry);
  if (holds && !Localize(entry)) return;
  if (!holds) entry.fenced = true;
  const FenceAttempt fence = *entry.asked_to_hold;
  entry.asked_to_hold.reset();
  context_.Tell(HoldAnswer{fence.term, fence.round, fence.attempt, holds, fence.order});
}

// True when all that is held lies in the own buffer; else it is being copied there.
bool Sums::Localize(Entry& entry) {
  if (entry.copy_op) return false;
  action::CopySums copy;
  for (const Shard& shard : entry.shards) {
    if (!shard.mapped || entry.gone) continue;
    for (const FloatRange& range : shard.ranges) copy.from.push_back({*shard.mapped, range});
  }
  if (copy.from.empty()) return true;
  if (!TakeBuffer(entry)) return false;
  copy.op = context_.NewOp();
  copy.to = *entry.buffer;
  buffers_.BeginOp(copy.op, {copy.to});
  entry.copy_op = copy.op;
  context_.Emit(std::move(copy));
  return false;
}

void Sums::AskHolder(Entry& entry) {
  if (!entry.holder || entry.holder_asked || HoldsAll(entry) || !peers_.Up(*entry.holder)) return;
  entry.holder_asked = true;
  context_.Say(*entry.holder,
               SumWant{context_.config.term, entry.commit.round, entry.commit.attempt});
}

void Sums::OnSumWant(const MemberId& peer, const SumWant& want) {
  Entry* entry = FindEntry(want.round);
  const bool has = want.term == context_.config.term && entry != nullptr &&
                   entry->commit.attempt == want.attempt && HoldsAll(*entry);
  if (has) {
    entry->wanted_by.insert(peer);
  } else {
    SumReady gone;
    gone.term = want.term;
    gone.round = want.round;
    gone.attempt = want.attempt;
    gone.generation = 1;
    gone.gone = true;
    context_.Say(peer, gone);
  }
}

void Sums::TryServeAll(Entry& entry) {
  if (entry.wanted_by.empty() || !Localize(entry)) return;
  for (const MemberId& peer : std::exchange(entry.wanted_by, {})) {
    SumReady ready = ReadyOf(entry);
    ready.gone = !HoldsAll(entry);
    context_.Say(peer, ready);
  }
}

bool Sums::HolderFailed(RoundId round) const {
  const auto at = entries_.find(round);
  return at != entries_.end() && at->second.holder && at->second.gone && !HoldsAll(at->second);
}

std::optional<std::string> Sums::Lost(RoundId round) const {
  const auto at = entries_.find(round);
  if (at == entries_.end()) return fmt::format("the commit of round {} did not come", round);
  const Entry& entry = at->second;
  if (HoldsAll(entry)) return std::nullopt;
  if (entry.gone) return *entry.gone;
  if (entry.fenced) return std::string("its attempt was fenced");
  for (const Shard& shard : entry.shards) {
    const MemberId& from = entry.holder ? *entry.holder : shard.owner;
    if (!Held(entry, shard) && from != context_.config.self && !peers_.Up(from)) {
      return fmt::format("{} is lost, which has its sums", Name(from));
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::worker
