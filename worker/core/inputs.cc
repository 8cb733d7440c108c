#include "worker/core/inputs.h"

#include <algorithm>

#include "base/check.h"
#include "worker/core/round_sums.h"

namespace lockstep::worker {

namespace {

Error Impossible(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

bool OfContribution(const Want& want) {
  return want.piece.kind == static_cast<std::uint32_t>(PieceKind::kContribution);
}

}  // namespace

// What a peer says of itself may be wrong, and then only its own part suffers; but no position of
// it may lie outside a buffer.
Status Inputs::CheckPlausible(const PartReady& ready) const {
  const Layout& layout = context_.layout;
  if (ready.part.value >= kMaxParts || ready.buffer >= kContributionBuffers || ready.tag == 0 ||
      ready.buckets > layout.bucket_count() ||
      (ready.sealed && ready.buckets != layout.bucket_count())) {
    return Impossible(fmt::format("it announced what cannot be: round {}, part {}, {} buckets",
                                  ready.round, ready.part, ready.buckets));
  }
  for (const FloatRange& range : ready.inlined.ranges) {
    if (range.end() > layout.contribution_numbers()) {
      return Impossible("it sent gradients beyond the end of the model");
    }
  }
  return {};
}

// Announcements of one part grow: more buckets, then sealed, perhaps for a later round. Anything
// else is either a part that was not known, or an older word that crossed a newer one.
Status Inputs::OnPartReady(const MemberId& peer, const PartReady& ready,
                           std::span<const std::byte> floats) {
  if (Status plausible = CheckPlausible(ready); !plausible) return plausible;
  if (ready.round < rounds_.first_not_closed()) return {};
  const auto newer = FindOf(peer.worker, [&](const Input& input) {
    return peer.incarnation < input.member.incarnation ||
           (input.member == peer && input.ready.part == ready.part &&
            ((ready.tag == input.ready.tag && ready.round < input.ready.round) ||
             (ready.tag < input.ready.tag && ready.round == input.ready.round)));
  });
  if (newer != nullptr) return {};
  if (Entry* known = FindOf(peer.worker, [&](const Input& input) {
        return input.member == peer && input.ready.tag == ready.tag;
      })) {
    auto& [key, input] = *known;
    const PartReady& old = input.ready;
    if (ready.part != old.part || ready.buckets < old.buckets || (old.sealed && !ready.sealed) ||
        ready.buffer != old.buffer) {
      return Impossible("it took back what it had announced");
    }
    if (ready.round != old.round) input.receipted.reset();
    input.ready = ready;
    input.ready.inlined = {};
    Mark(key, input);
    StoreInlined(key, input, ready.inlined, floats);
    return {};
  }
  const Key key = KeyFor(peer, ready);
  const BufferId staging = Staging(key);
  // Where nothing was announced, nothing is fetched.
  if (inputs_.contains(key)) {
    fetcher_.Cancel([&](const Want& want) { return want.to.buffer == staging; });
  }
  Input& input = inputs_[key];
  input = Input{};
  dirty_.insert(key);
  input.member = peer;
  input.ready = ready;
  input.ready.inlined = {};
  input.blocked = buffers_.InUse(staging);
  StoreInlined(key, input, ready.inlined, floats);
  return {};
}

Inputs::Entry* Inputs::FindOf(WorkerId worker, const std::function<bool(const Input&)>& fits) {
  for (auto at = inputs_.lower_bound({worker, 0});
       at != inputs_.end() && at->first.worker == worker; ++at) {
    if (fits(at->second)) return &*at;
  }
  return nullptr;
}

// A worker announces at most two parts for each of the two rounds that are not closed, so four
// buffers do. The same one round after round as far as it goes, so that two of them are never
// touched; carried work keeps the buffer that it lies in.
Inputs::Key Inputs::KeyFor(const MemberId& peer, const PartReady& ready) {
  const auto usual = static_cast<std::uint32_t>(ready.part.value);
  // Who announces for a round has applied the one before, if it had a part in that. It holds the
  // attempt then, so no other is made (OwnWork::OnApplied).
  const auto free = [&](const Key& key) {
    const auto at = inputs_.find(key);
    if (at == inputs_.end()) return true;
    const Input& input = at->second;
    const PartReady& old = input.ready;
    return input.member != peer || old.round.value + 1 < ready.round.value ||
           (old.round < ready.round && old.part == ready.part) ||
           (old.round == ready.round && (old.part == ready.part || old.plan < ready.plan)) ||
           (old.round > ready.round && old.tag < ready.tag);  // that round is open again
  };
  if (free({peer.worker, usual})) return {peer.worker, usual};
  Key oldest{peer.worker, usual};
  for (std::uint32_t index = 0; index < 2 * kMaxParts; ++index) {
    const Key key{peer.worker, index};
    if (free(key)) return key;
    if (inputs_.at(key).ready.tag < inputs_.at(oldest).ready.tag) oldest = key;
  }
  return oldest;
}

// A small contribution needs no fetch: its floats come with the word that it is ready.
void Inputs::StoreInlined(const Key& key, Input& input, const InlineRanges& inlined,
                          std::span<const std::byte> floats) {
  // Without the space for them the same floats are fetched later.
  if (input.blocked) return;
  for (const FloatRange& range : inlined.ranges) {
    const std::size_t bytes = range.count * context_.layout.number_bytes();
    // What is held may be under a reduction, what is asked for may land at any time.
    if (range.count > 0 && !input.have.Intersects(range) && !input.asked.Intersects(range)) {
      context_.Emit(action::StoreInline{{Staging(key), range}, floats.first(bytes)});
      input.have.Merge(range);
    }
    floats = floats.subspan(bytes);
  }
}

// A fetch may end for a part that is no longer the one in its buffer: tag and member tell. While
// the buffer is blocked everything that lands is of the part before.
void Inputs::OnFetchDone(const Fetcher::Done& done) {
  const BufferId& buffer = done.want.to.buffer;
  const auto at = inputs_.find(Key{buffer.contributor, buffer.index});
  if (at == inputs_.end()) return;
  Input& input = at->second;
  Mark(at->first, input);
  if (input.member != done.want.peer || input.ready.tag != done.want.piece.attempt) return;
  if (input.blocked) return;
  LOCKSTEP_CHECK(input.asked.Covers(done.want.to.range),
                 "I4: a piece of {}'s round {} came that was not asked for", Name(input.member),
                 input.ready.round);
  input.asked.Remove(done.want.to.range);
  if (done.ok) input.have.Merge(done.want.to.range);
  if (done.status == FetchStatus::kGone) input.gone = true;
}

// It was queued and will not be fetched: the range is lacking again.
void Inputs::OnDropped(const Want& want) {
  if (!OfContribution(want)) return;
  const auto at = inputs_.find(Key{want.to.buffer.contributor, want.to.buffer.index});
  if (at == inputs_.end() || at->second.ready.tag != want.piece.attempt ||
      at->second.member != want.peer) {
    return;
  }
  at->second.asked.Remove(want.to.range);
  Mark(at->first, at->second);
}

// Pieces that were lost with its connection are asked for again.
void Inputs::OnPeerUp(const MemberId& peer) {
  for (auto& [key, input] : inputs_) {
    if (input.member == peer) Mark(key, input);
  }
}

// What is in no part of the commit is not worth the link; where work is carried on it is, for it
// will be in a commit to come.
void Inputs::OnCommit(const msg::Commit& commit) {
  carries_ = commit.next && commit.next->carries;
  if (!carries_) {
    const std::vector<Want> dropped = fetcher_.Cancel([&](const Want& want) {
      if (!OfContribution(want)) return false;
      const auto at = inputs_.find(Key{want.to.buffer.contributor, want.to.buffer.index});
      return at != inputs_.end() && at->second.ready.tag == want.piece.attempt &&
             at->second.ready.round == commit.round && !Wanted(at->second);
    });
    for (const Want& want : dropped) OnDropped(want);
  }
  MarkAll();
  DropClosed(commit.round);
}

// Their buffers are free for the next parts; a fetch that is under way may still land there, so
// who takes the buffer waits for it (`blocked`).
void Inputs::DropClosed(RoundId committed) {
  std::set<std::pair<BufferId, std::uint32_t>> gone;  // and the tags
  for (auto at = inputs_.begin(); at != inputs_.end();) {
    const auto& [key, input] = *at;
    // What is carried on may be announced for the open round any moment.
    const bool comes_again = carries_ && input.ready.round.Next() == committed && !Wanted(input);
    if (input.ready.round >= committed || comes_again) {
      ++at;
      continue;
    }
    gone.insert({Staging(key), input.ready.tag});
    dirty_.erase(key);
    at = inputs_.erase(at);
  }
  fetcher_.Cancel([&](const Want& want) {
    return OfContribution(want) && gone.contains({want.to.buffer, want.piece.attempt});
  });
}

// Looks at those parts that something has happened to: fetches what is missing of the own shard,
// and gives a receipt once all of it is here. One receipt for each part and map: under a new map
// the shard is another one.
void Inputs::Update() {
  std::map<RoundId, msg::Receipts> receipts;
  for (auto next = dirty_.begin(); next != dirty_.end();) {
    const Key key = *next;
    Input& input = inputs_.at(key);
    if (input.blocked && !buffers_.InUse(Staging(key))) {
      input.blocked = false;
      input.dirty = true;
    }
    if (input.blocked) {
      ++next;
      continue;
    }
    next = dirty_.erase(next);
    if (!input.dirty) continue;
    input.dirty = false;
    const RoundId round = input.ready.round;
    const OwnerMap* map = rounds_.OwnersOf(round);
    if (map == nullptr || !map->direct() || peers_.Mapped(input.member)) continue;
    const bool owner =
        std::any_of(map->owners.begin(), map->owners.end(),
                    [&](const OwnerShare& share) { return share.owner == context_.config.self; });
    if (!owner || !Wanted(input)) continue;
    FetchMissing(key, input);
    if (rounds_.SumsOf(round) != nullptr || !input.ready.sealed ||
        input.receipted == map->version || !HasShard(input)) {
      continue;
    }
    input.receipted = map->version;
    LOCKSTEP_CHECK(!input.blocked && input.ready.plan == rounds_.PlanOf(round),
                   "a receipt for a part of {} that is void", Name(input.member));
    msg::Receipts& batch = receipts[round];
    batch.round = round;
    batch.map_version = map->version;
    batch.parts.push_back({input.member, input.ready.part});
  }
  for (auto& [round, batch] : receipts) {
    std::sort(batch.parts.begin(), batch.parts.end(),
              [](const ReceivedPart& a, const ReceivedPart& b) {
                return std::pair(a.member, a.part) < std::pair(b.member, b.part);
              });
    context_.Tell(std::move(batch));
  }
}

// Only buckets that are final, only slices that are owned here, and nothing twice. The fetcher
// decides when.
void Inputs::FetchMissing(const Key& key, Input& input) {
  if (input.gone || !peers_.Up(input.member)) return;
  const RoundId round = input.ready.round;
  FetchMissing(key, input, rounds_.Shard(round, context_.config.self));
  if (const RoundSums* sums = rounds_.SumsOf(round)) FetchMissing(key, input, sums->stood_in_for());
}

// The slices of one shard take the memory of one shard, whichever it was before; what of them came
// with the word that they are ready is there already. A second shard beside the first one, of a
// later map or of an owner that is stood in for, is here for this part only.
void Inputs::FitStaging(const Key& key, Input& input, std::span<const Slice> slices) {
  const std::uint64_t shape = ShapeOf(slices);
  if (input.fits == shape) return;
  const BufferId staging = Staging(key);
  if (HasNoneBut(input, slices) && input.asked.empty() && !buffers_.InUse(staging)) {
    buffers_.Fit(staging, shape, input.have.Ranges());
  } else {
    buffers_.Spread(staging);
  }
  input.fits = shape;
}

void Inputs::FetchMissing(const Key& key, Input& input, std::span<const Slice> slices) {
  PieceName name;
  name.kind = static_cast<std::uint32_t>(PieceKind::kContribution);
  name.attempt = input.ready.tag;
  name.round = input.ready.round.value;
  name.part = input.ready.part.value;
  bool fitted = false;
  for (const Slice& slice : slices) {
    if (slice.bucket >= input.ready.buckets) continue;
    for (const FloatRange& lacking :
         input.have.Missing(context_.layout.InContribution(slice.range))) {
      for (const FloatRange& range : input.asked.Missing(lacking)) {
        if (!fitted) FitStaging(key, input, slices);
        fitted = true;
        input.asked.Merge(range);
        fetcher_.Add(input.member, name, {Staging(key), range}, range.first);
      }
    }
  }
}

// Of the plan that is followed now, and, once the round is committed, in the commit.
bool Inputs::Wanted(const Input& input) const {
  if (input.ready.plan != rounds_.PlanOf(input.ready.round)) return false;
  const RoundSums* sums = rounds_.SumsOf(input.ready.round);
  return sums == nullptr || sums->Commits(input.member, input.ready.part);
}

bool Inputs::HasShard(const Input& input) {
  return Has(input, rounds_.Shard(input.ready.round, context_.config.self));
}

bool Inputs::Has(const Input& input, std::span<const Slice> slices) const {
  return std::ranges::all_of(slices, [&](const Slice& slice) {
    return input.have.Covers(context_.layout.InContribution(slice.range));
  });
}

bool Inputs::HasNoneBut(const Input& input, std::span<const Slice> slices) const {
  if (input.have.empty()) return true;
  FloatSet of;
  for (const Slice& slice : slices) of.Merge(context_.layout.InContribution(slice.range));
  return std::ranges::all_of(input.have.Ranges(),
                             [&](const FloatRange& range) { return of.Covers(range); });
}

// In place if its worker is mapped, whose generation is checked after the pass (I4); else the
// staging buffer, once all of the slices are in it.
std::optional<Source> Inputs::Complete(RoundId round, const MemberId& member, PartIndex part,
                                       std::span<const Slice> slices) {
  const Entry* found = FindOf(member.worker, [&](const Input& input) {
    return input.member == member && input.ready.round == round && input.ready.part == part &&
           input.ready.sealed && input.ready.plan == rounds_.PlanOf(round);
  });
  if (found == nullptr) return std::nullopt;
  const auto& [key, input] = *found;
  if (peers_.Mapped(member)) {
    return Source{{BufferKind::kContribution, input.ready.buffer, {}}, member, input.ready.tag};
  }
  if (!Has(input, slices)) return std::nullopt;
  return Source{Staging(key), std::nullopt, 0};
}

void Inputs::Mark(const Key& key, Input& input) {
  input.dirty = true;
  dirty_.insert(key);
}

void Inputs::MarkAll() {
  for (auto& [key, input] : inputs_) Mark(key, input);
}

void Inputs::CheckInvariants() const {
  for (const auto& [key, input] : inputs_) {
    LOCKSTEP_CHECK(key.worker == input.member.worker && key.index < 2 * kMaxParts,
                   "I4: a part of worker {} in the staging buffer {} of worker {}",
                   input.member.worker, key.index, key.worker);
    LOCKSTEP_CHECK(!input.blocked || (input.have.empty() && input.asked.empty()),
                   "I4: worker {}'s staging buffer {} is written while it is used for another part",
                   key.worker, key.index);
    LOCKSTEP_CHECK(!input.dirty || dirty_.contains(key), "a part of worker {} is never looked at",
                   key.worker);
    LOCKSTEP_CHECK(!input.blocked || dirty_.contains(key), "a part of worker {} stays blocked",
                   key.worker);
    LOCKSTEP_CHECK(carries_ || input.ready.round >= rounds_.first_not_closed(),
                   "round {} is closed, a part of worker {} is kept", input.ready.round,
                   key.worker);
    LOCKSTEP_CHECK(!input.ready.sealed || input.ready.buckets == context_.layout.bucket_count(),
                   "worker {} sealed round {} at {} buckets", key.worker, input.ready.round,
                   input.ready.buckets);
  }
}

}  // namespace lockstep::worker
