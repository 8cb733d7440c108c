#include "worker/core/sums.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

namespace {

constexpr std::uint32_t kSumKind = static_cast<std::uint32_t>(PieceKind::kSum);

bool Member(const Commit& commit, const MemberId& id) {
  return std::find(commit.members.begin(), commit.members.end(), id) != commit.members.end();
}

}  // namespace

bool Sums::OnCommit(const Commit& commit) {
  const auto at = entries_.find(commit.round);
  if (at != entries_.end()) {
    if (at->second.commit.attempt == commit.attempt) {
      at->second.commit.checkpoint_writer = commit.checkpoint_writer;
    }
    if (at->second.commit.attempt >= commit.attempt) return false;
    LOCKSTEP_CHECK(!at->second.applied, "round {} was applied and is tried again", commit.round);
    Erase(at);
  }
  Entry& entry = Create(commit);
  Shard* own = OwnShard(entry);
  if (own != nullptr) entry.own = Own::kWaiting;
  return true;
}

Sums::Entry& Sums::Create(const Commit& commit) {
  Entry& entry = entries_[commit.round];
  entry = Entry{};
  entry.commit = commit;
  entry.generation = context_.NewGeneration();
  for (const OwnerShare& share : commit.owners.owners) {
    Shard shard;
    shard.owner = share.owner;
    shard.slices = context_.layout.Shard(commit.owners, share.owner);
    for (const Slice& slice : shard.slices) {
      shard.ranges.push_back(slice.range);
      if (context_.config.clip > 0) shard.ranges.push_back(context_.layout.NormsOf(slice));
    }
    entry.shards.push_back(std::move(shard));
  }
  return entry;
}

void Sums::Erase(std::map<RoundId, Entry>::iterator at) {
  const RoundId round = at->first;
  fetcher_.Cancel([&](const Want& want) {
    return want.piece.kind == kSumKind && want.piece.round == round.value;
  });
  if (at->second.buffer) buffers_.Release(*at->second.buffer);
  entries_.erase(at);
}

void Sums::Drop(RoundId round) {
  const auto at = entries_.find(round);
  if (at != entries_.end()) Erase(at);
}

void Sums::DropFrom(RoundId round) {
  for (auto at = entries_.lower_bound(round); at != entries_.end();) Erase(at++);
}

void Sums::DropApplied(RoundId next, RoundId kept) {
  while (!entries_.empty() && entries_.begin()->first < std::min(next, kept)) {
    Erase(entries_.begin());
  }
  for (auto& [peer, rounds] : heard_) {
    for (auto& heard : rounds) {
      if (heard && heard->ready.round < std::min(next, kept)) heard.reset();
    }
  }
  std::erase_if(heard_, [](const auto& entry) {
    return std::none_of(entry.second.begin(), entry.second.end(),
                        [](const auto& heard) { return heard.has_value(); });
  });
}

Sums::Entry* Sums::FindEntry(RoundId round) {
  const auto at = entries_.find(round);
  return at == entries_.end() ? nullptr : &at->second;
}

const Commit* Sums::Find(RoundId round) const {
  const auto at = entries_.find(round);
  return at == entries_.end() ? nullptr : &at->second.commit;
}

Sums::Shard* Sums::OwnShard(Entry& entry) {
  for (Shard& shard : entry.shards) {
    if (shard.owner == context_.config.self) return &shard;
  }
  return nullptr;
}

bool Sums::Held(const Entry& entry, const Shard& shard) const {
  if (shard.mapped || shard.held) return true;
  shard.held = std::all_of(shard.ranges.begin(), shard.ranges.end(),
                           [&](const FloatRange& range) { return entry.have.Covers(range); });
  return shard.held;
}

bool Sums::HoldsAll(const Entry& entry) const {
  entry.all_held = entry.all_held || std::all_of(entry.shards.begin(), entry.shards.end(),
                                                 [&](const Shard& s) { return Held(entry, s); });
  return entry.all_held;
}

bool Sums::Fenced(RoundId round) const {
  const auto at = entries_.find(round);
  return at != entries_.end() && at->second.fenced;
}

bool Sums::MayApply(RoundId round) const {
  const auto at = entries_.find(round);
  return at != entries_.end() && !at->second.fenced && HoldsAll(at->second);
}

bool Sums::TakeBuffer(Entry& entry) {
  if (entry.buffer) return true;
  entry.buffer = buffers_.Take(BufferKind::kSum);
  if (!entry.buffer) return false;
  context_.Emit(action::OpenBlock{*entry.buffer, entry.generation});
  return true;
}

void Sums::Update() {
  for (auto& [round, entry] : entries_) {
    TryServeAll(entry);
    if (entry.fenced) continue;
    AskHolder(entry);
    if (!entry.all_held) {
      for (Shard& shard : entry.shards) {
        if (!Held(entry, shard)) Absorb(entry, shard);
      }
    }
    TryReduce(entry);
    if (entry.asked_to_hold) TryAnswerHold(entry);
  }
}

void Sums::TryReduce(Entry& entry) {
  if (entry.own != Own::kWaiting) return;
  const Shard& shard = *OwnShard(entry);
  if (shard.slices.empty()) {
    Publish(entry);
    return;
  }
  action::Reduce reduce;
  std::vector<BufferId> uses;
  for (const CommittedPart& part : entry.commit.parts) {
    std::optional<Source> source;
    if (part.member == context_.config.self) {
      if (const auto own = own_.Sealed(entry.commit.round, part.part)) {
        source = Source{*own, std::nullopt, 0};
      }
    } else {
      source = inputs_.Complete(entry.commit.round, part.member, part.part);
    }
    if (!source) return;
    if (!source->peer) uses.push_back(source->buffer);
    reduce.inputs.push_back({*source, part.weight});
  }
  if (!TakeBuffer(entry)) return;
  uses.push_back(*entry.buffer);
  reduce.op = context_.NewOp();
  reduce.round = entry.commit.round;
  reduce.attempt = entry.commit.attempt;
  reduce.slices = shard.slices;
  reduce.out = *entry.buffer;
  reduce.norms = context_.config.clip > 0;
  buffers_.BeginOp(reduce.op, std::move(uses));
  entry.op = reduce.op;
  entry.own = Own::kReducing;
  context_.Emit(std::move(reduce));
}

bool Sums::OnOpDone(const event::OpDone& done) {
  for (auto& [round, entry] : entries_) {
    if (entry.op == done.op) {
      entry.op.reset();
      if (done.torn) {
        // A contributor has gone on, so this attempt is history; the coordinator will say so.
        entry.own = Own::kVoid;
        context_.Log(fmt::format("round {}: an input changed under the reduction", round));
        return true;
      }
      Shard& shard = *OwnShard(entry);
      for (const FloatRange& range : shard.ranges) entry.have.Merge(range);
      Publish(entry);
      return true;
    }
    if (entry.copy_op == done.op) {
      entry.copy_op.reset();
      if (!done.torn) {
        for (Shard& shard : entry.shards) {
          if (!shard.mapped) continue;
          shard.mapped.reset();
          for (const FloatRange& range : shard.ranges) entry.have.Merge(range);
        }
      } else if (!entry.applied) {
        entry.all_held = false;
        for (Shard& shard : entry.shards) shard.mapped.reset();
        entry.gone = "its mapped sums changed";
      }
      return true;
    }
  }
  return false;
}

void Sums::Publish(Entry& entry) {
  entry.own = Own::kPublished;
  context_.Tell(Published{entry.commit.round, entry.commit.attempt});
  for (const MemberId& member : entry.commit.members) SaySumReady(entry, member);
}

SumReady Sums::ReadyOf(const Entry& entry) const {
  SumReady ready;
  ready.term = context_.config.term;
  ready.round = entry.commit.round;
  ready.attempt = entry.commit.attempt;
  ready.map_version = entry.commit.owners.version;
  ready.buffer = entry.buffer ? entry.buffer->index : 0;
  ready.generation = entry.generation;
  return ready;
}

void Sums::SaySumReady(const Entry& entry, const MemberId& to) {
  if (to == context_.config.self || !peers_.Up(to) || !entry.buffer) return;
  SumReady ready = ReadyOf(entry);
  std::vector<BufferRange> payload;
  if (!peers_.Mapped(to)) {
    for (const Shard& shard : entry.shards) {
      if (shard.owner == context_.config.self) ready.inlined.ranges = shard.ranges;
    }
    if (ready.inlined.Floats() * sizeof(float) > context_.config.inline_bytes ||
        ready.inlined.ranges.size() > kMaxInlineRanges) {
      ready.inlined.ranges.clear();
    }
    for (const FloatRange& range : ready.inlined.ranges) payload.push_back({*entry.buffer, range});
  }
  context_.Say(to, ready, std::move(payload));
}

void Sums::OnPeerUp(const MemberId& peer) {
  for (auto& [round, entry] : entries_) {
    for (Shard& shard : entry.shards) shard.requested = false;
    if (entry.holder == peer) entry.holder_asked = entry.holder_ready = false;
    if (entry.own == Own::kPublished && Member(entry.commit, peer)) SaySumReady(entry, peer);
  }
}

Status Sums::OnSumReady(const MemberId& peer, const SumReady& ready,
                        std::span<const std::byte> floats) {
  if (ready.buffer >= kSumBuffers || ready.generation == 0) {
    return Error{ErrorCode::kInvalid, "it published a buffer that cannot be"};
  }
  for (const FloatRange& range : ready.inlined.ranges) {
    if (range.end() > context_.layout.sum_floats()) {
      return Error{ErrorCode::kInvalid, "it sent sums beyond the end of the model"};
    }
  }
  if (ready.term != context_.config.term) return {};
  Entry* entry = FindEntry(ready.round);
  if (entry != nullptr && entry->holder && entry->commit.attempt == ready.attempt) {
    if (entry->holder != peer) return {};
    entry->holder_ready = !ready.gone;
    if (ready.gone) entry->gone = fmt::format("{} has its sums no longer", Name(peer));
    return {};
  }
  if (ready.gone) return {};
  if (const Commit* commit = Find(ready.round); commit != nullptr) {
    const auto& owners = commit->owners.owners;
    const bool owner = std::any_of(owners.begin(), owners.end(),
                                   [&](const OwnerShare& s) { return s.owner == peer; });
    if (commit->attempt == ready.attempt && !owner) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("it published sums of round {}, of which it owns nothing", ready.round)};
    }
  }
  auto& slot = heard_[peer][ready.round.value % kSumBuffers];
  if (slot &&
      std::pair(slot->ready.round, slot->ready.attempt) > std::pair(ready.round, ready.attempt)) {
    return {};
  }
  slot = Heard{ready, {floats.begin(), floats.end()}};
  return {};
}

void Sums::Absorb(Entry& entry, Shard& shard) {
  if (shard.requested) return;
  if (shard.owner == context_.config.self && entry.own == Own::kReducing) return;
  if (entry.gone) return;
  if (entry.holder) {
    if (!entry.holder_ready || !peers_.Up(*entry.holder) || !TakeBuffer(entry)) return;
    shard.requested = true;
    FetchMissing(entry, shard, *entry.holder);
    return;
  }
  const auto at = heard_.find(shard.owner);
  if (at == heard_.end()) return;
  const auto& heard = at->second[entry.commit.round.value % kSumBuffers];
  if (!heard || heard->ready.round != entry.commit.round ||
      heard->ready.attempt != entry.commit.attempt ||
      heard->ready.map_version != entry.commit.owners.version) {
    return;
  }
  if (peers_.Mapped(shard.owner)) {
    shard.mapped =
        Source{{BufferKind::kSum, heard->ready.buffer, {}}, shard.owner, heard->ready.generation};
    return;
  }
  if (!TakeBuffer(entry)) return;
  if (StoreInlined(entry, shard, *heard) || !peers_.Up(shard.owner)) return;
  shard.requested = true;
  FetchMissing(entry, shard, shard.owner);
}

bool Sums::StoreInlined(Entry& entry, const Shard& shard, const Heard& heard) {
  if (heard.ready.inlined.ranges != shard.ranges) return false;
  std::span<const std::byte> floats = heard.floats;
  for (const FloatRange& range : shard.ranges) {
    const std::size_t bytes = range.count * sizeof(float);
    if (!entry.asked.Intersects(range)) {
      context_.Emit(action::StoreInline{{*entry.buffer, range}, floats.first(bytes)});
      entry.have.Merge(range);
    }
    floats = floats.subspan(bytes);
  }
  return Held(entry, shard);
}

void Sums::FetchMissing(Entry& entry, const Shard& shard, const MemberId& from) {
  PieceName name;
  name.kind = kSumKind;
  name.attempt = entry.commit.attempt.value;
  name.round = entry.commit.round.value;
  name.owner = shard.owner.worker.value;
  for (const FloatRange& whole : shard.ranges) {
    for (const FloatRange& lacking : entry.have.Missing(whole)) {
      for (const FloatRange& range : entry.asked.Missing(lacking)) {
        entry.asked.Merge(range);
        fetcher_.Add(from, name, {*entry.buffer, range}, range.first);
      }
    }
  }
}

void Sums::OnFetchDone(const Fetcher::Done& done) {
  Entry* entry = FindEntry(RoundId(done.want.piece.round));
  if (entry == nullptr || entry->commit.attempt.value != done.want.piece.attempt ||
      entry->buffer != done.want.to.buffer) {
    return;
  }
  entry->asked.Remove(done.want.to.range);
  if (done.ok) {
    entry->have.Merge(done.want.to.range);
    return;
  }
  if (done.cancelled) {
    for (Shard& shard : entry->shards) shard.requested = false;
  } else if (done.status == FetchStatus::kGone) {
    entry->gone = fmt::format("{} has its sums no longer", Name(done.want.peer));
  }
}

void Sums::OnDropped(const Want& want) {
  Entry* entry = FindEntry(RoundId(want.piece.round));
  if (entry == nullptr || entry->commit.attempt.value != want.piece.attempt) return;
  entry->asked.Remove(want.to.range);
}

action::Apply Sums::Apply(RoundId round, const std::function<bool(std::uint32_t)>& wanted) {
  Entry& entry = entries_.at(round);
  LOCKSTEP_CHECK(!entry.fenced && HoldsAll(entry), "round {} is not held", round);
  entry.applied = true;
  action::Apply apply;
  apply.op = context_.NewOp();
  apply.round = round;
  apply.attempt = entry.commit.attempt;
  std::vector<BufferId> uses;
  for (const Shard& shard : entry.shards) {
    if (shard.slices.empty()) continue;
    if (!shard.mapped) uses.push_back(*entry.buffer);
    const Source source =
        shard.mapped ? *shard.mapped : Source{*entry.buffer, std::nullopt, entry.generation};
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
  apply.scale = entry.commit.scale;
  apply.learning_rate = entry.commit.learning_rate;
  apply.fraction = entry.commit.fraction;
  apply.clip = context_.config.clip;
  apply.steps = entry.commit.steps;
  apply.digest_bucket = static_cast<std::uint32_t>(round.value % context_.layout.bucket_count());
  buffers_.BeginOp(apply.op, std::move(uses));
  return apply;
}

std::string Sums::Missing(RoundId round) const {
  const auto at = entries_.find(round);
  if (at == entries_.end()) return fmt::format("the commit of round {}", round);
  const Entry& entry = at->second;
  std::string text;
  for (const Shard& shard : entry.shards) {
    if (Held(entry, shard)) continue;
    text += text.empty()
                ? fmt::format("sums of round {} attempt {} from ", round, entry.commit.attempt)
                : std::string(", ");
    text += shard.owner == context_.config.self ? "itself" : Name(shard.owner);
    if (shard.requested) text += " (asked for)";
  }
  if (entry.holder) text += fmt::format(", held by {}", Name(*entry.holder));
  if (entry.fenced) text += ", fenced";
  if (entry.gone) text += ", " + *entry.gone;
  return text;
}

bool Sums::Reads(const MemberId& peer) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    const auto& shards = entry.second.shards;
    return std::any_of(shards.begin(), shards.end(), [&](const Shard& shard) {
      return shard.mapped && shard.mapped->peer == peer;
    });
  });
}

std::optional<BufferRange> Sums::FindPiece(const PieceName& piece) const {
  const auto at = entries_.find(RoundId(piece.round));
  if (at == entries_.end() || at->second.commit.attempt.value != piece.attempt ||
      !at->second.buffer) {
    return std::nullopt;
  }
  const FloatRange range{piece.offset / sizeof(float), piece.bytes / sizeof(float)};
  if (!at->second.have.Covers(range)) return std::nullopt;
  return BufferRange{*at->second.buffer, range};
}

}  // namespace lockstep::worker
