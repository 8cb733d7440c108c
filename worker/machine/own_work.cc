#include "worker/machine/own_work.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

void OwnWork::OnPlan(const Plan& plan) {
  Forget(plan.round);
  Pending& pending = pending_[plan.round];
  pending.epoch = plan.epoch;
  for (const Assignment& assignment : plan.assignments) {
    if (assignment.member == context_.config.self) pending.units = assignment.units;
  }
  LOCKSTEP_CHECK(pending.units.size() <= queue_.capacity(), "{} units in a plan of at most {}",
                 pending.units.size(), queue_.capacity());
}

void OwnWork::OnReopened(RoundId round, Epoch epoch) {
  const std::uint8_t used = work_ && work_->round == round ? work_->parts_told : 0;
  Forget(round);
  pending_[round] = Pending{epoch, {}, PartIndex(used)};
}

void OwnWork::OnFence(RoundId round) {
  std::optional<Pending> again;
  if (const auto at = pending_.find(round); at != pending_.end()) {
    again = Pending{at->second.epoch, {}, at->second.first_part};
  } else if (work_ && work_->round == round) {
    again = Pending{work_->epoch, {}, PartIndex(work_->parts_told)};
  }
  Forget(round);
  if (!again) return;
  fenced_[round] = *again;
  context_.Tell(Revoked{round, 0, 0, true});
}

void OwnWork::OnRevoke(const Revoke& revoke) {
  if (const auto at = pending_.find(revoke.round); at != pending_.end()) {
    std::vector<Unit>& units = at->second.units;
    units.resize(std::min<std::size_t>(units.size(), revoke.from));
    context_.Tell(
        Revoked{revoke.round, static_cast<std::uint32_t>(units.size()), revoke.order, false});
  } else if (work_ && work_->round == revoke.round && !work_->is_void) {
    context_.Tell(Revoked{revoke.round, queue_.RevokeFrom(revoke.from), revoke.order, false});
  }
}

void OwnWork::OnAssign(const Assign& assign) {
  if (auto fenced = fenced_.extract(assign.round)) pending_.insert(std::move(fenced));
  if (const auto at = pending_.find(assign.round); at != pending_.end()) {
    std::vector<Unit>& units = at->second.units;
    if (at->second.first_part.value >= kMaxParts ||
        units.size() + assign.units.size() > queue_.capacity()) {
      context_.Tell(
          Revoked{assign.round, static_cast<std::uint32_t>(units.size()), assign.order, false});
    } else {
      units.insert(units.end(), assign.units.begin(), assign.units.end());
    }
    return;
  }
  if (!work_ || work_->round != assign.round || work_->is_void) return;
  if (queue_.Append(assign.units)) {
    context_.Emit(action::WakeCompute{});
  } else {
    // Both parts are being sealed: all of them go back.
    context_.Tell(Revoked{assign.round, queue_.size(), assign.order, false});
  }
}

void OwnWork::BeginIfPossible(RoundId round) {
  const auto at = pending_.find(round);
  if (at == pending_.end() || Busy()) return;
  const auto first = buffers_.Take(BufferKind::kContribution);
  if (!first) return;
  const auto second = buffers_.Take(BufferKind::kContribution);
  if (!second) {
    buffers_.Release(*first);
    return;
  }
  if (work_) queue_.MakeVoid();
  const PartIndex first_part = at->second.first_part;
  work_ = Work{next_work_++, round, at->second.epoch, 0, first_part.value, first_part.value, false};
  const std::array<BufferId, kMaxParts> parts = {*first, *second};
  for (std::uint8_t p = 0; p < kMaxParts; ++p) {
    Contribution c;
    c.work = work_->id;
    c.round = round;
    c.part = PartIndex(p);
    c.tag = context_.NewGeneration();
    c.buffer = parts[p];
    context_.Emit(action::OpenBlock{c.buffer, c.tag});
    contributions_.push_back(std::move(c));
  }
  queue_.Reset(work_->id, at->second.units, first_part);
  context_.Emit(action::StartWork{work_->id, round, at->second.epoch, parts});
  progress_due_ = context_.now + context_.config.progress_interval;
  pending_.erase(pending_.begin(), pending_.upper_bound(round));
}

void OwnWork::OnUnitDone(const event::UnitDone& done) {
  if (!work_ || done.work != work_->id) return;
  ++work_->units_done;
  LOCKSTEP_CHECK(work_->units_done <= queue_.taken(), "more units done than taken");
  Contribution* c = Find(done.work, done.part);
  if (work_->is_void || c == nullptr) return;
  c->samples += done.samples;
  c->loss_sum += done.loss_sum;
  c->units.push_back(done.timing);
  TellProgress();
}

void OwnWork::OnBucketsFinal(const event::BucketsFinal& final) {
  Contribution* c = Find(final.work, final.part);
  if (c == nullptr || c->dropped || c->sealed) return;
  LOCKSTEP_CHECK(final.buckets >= c->buckets && final.buckets <= context_.layout.bucket_count(),
                 "watermark {} after {}", final.buckets, c->buckets);
  c->buckets = final.buckets;
  c->all_told.reset();
}

void OwnWork::OnPartSealed(const event::PartSealed& sealed) {
  if (!work_ || sealed.work != work_->id) return;
  ++work_->parts_sealed;
  LOCKSTEP_CHECK(work_->parts_sealed <= queue_.seals_begun(), "sealed before the last unit");
  Contribution* c = Find(sealed.work, sealed.part);
  if (c == nullptr || c->dropped) return;
  c->buckets = context_.layout.bucket_count();
  c->sealed = true;
  c->all_told.reset();
  ++work_->parts_told;
  context_.Tell(lockstep::Sealed{c->round, c->part, c->samples, c->loss_sum, std::move(c->units),
                                 sealed.sealed_ns});
}

void OwnWork::OnPeerDown(const MemberId& peer) {
  for (Contribution& c : contributions_) {
    c.told.erase(peer);
    c.all_told.reset();
  }
}

void OwnWork::OnTimer() {
  if (next_timer() <= context_.now) TellProgress();
}

Time OwnWork::next_timer() const { return Busy() && !work_->is_void ? progress_due_ : kNever; }

void OwnWork::Stop(RoundId round) {
  pending_.erase(pending_.begin(), pending_.upper_bound(round));
  fenced_.erase(fenced_.begin(), fenced_.upper_bound(round));
  if (!work_ || work_->round > round || work_->is_void) return;
  for (Contribution& c : contributions_) {
    if (c.work == work_->id && !c.sealed) c.dropped = true;
  }
  work_->is_void = true;
  queue_.MakeVoid();
  if (Busy()) context_.Emit(action::VoidWork{work_->id});
}

void OwnWork::Forget(RoundId round) {
  pending_.erase(round);
  fenced_.erase(round);
  if (work_ && work_->round == round) Stop(round);
  for (Contribution& c : contributions_) {
    if (c.round == round) c.dropped = true;
  }
}

void OwnWork::ReleaseBefore(RoundId round) {
  for (Contribution& c : contributions_) {
    if (c.round < round) c.dropped = true;
  }
}

void OwnWork::Update() {
  std::erase_if(contributions_, [&](const Contribution& c) {
    // The compute thread may still be adding to it.
    if (!c.dropped || (work_ && c.work == work_->id && Busy())) return false;
    buffers_.Release(c.buffer);
    return true;
  });
  for (Contribution& c : contributions_) {
    const OwnerMap* map = maps_.Find(c.round);
    if (c.dropped || c.buckets == 0 || map == nullptr || c.all_told == map->version) continue;
    bool all = true;
    for (const OwnerShare& share : map->owners) {
      if (share.owner != context_.config.self) all = Announce(c, share.owner) && all;
    }
    if (all) c.all_told = map->version;
  }
}

bool OwnWork::Announce(Contribution& c, const MemberId& owner) {
  const auto at = c.told.find(owner);
  const Told told = at == c.told.end() ? Told{} : at->second;
  if (told.sealed || (told.buckets == c.buckets && !c.sealed)) return true;
  if (!peers_.Up(owner)) return false;
  // Who maps reads the part as a whole, when it is in a commit.
  const bool mapped = peers_.Mapped(owner);
  if (mapped && !c.sealed) return false;
  PartReady ready{c.round, c.part, c.tag, c.buffer.index, c.buckets, c.sealed, {}};
  std::vector<BufferRange> payload;
  if (!mapped) {
    bool anything = false;
    for (const Slice& slice : maps_.Shard(c.round, owner)) {
      if (slice.bucket < told.buckets || slice.bucket >= c.buckets) continue;
      anything = true;
      ready.inlined.ranges.push_back(slice.range);
      payload.push_back({c.buffer, slice.range});
    }
    if (!anything && !c.sealed) return false;
    if (ready.inlined.Floats() * sizeof(float) > context_.config.inline_bytes ||
        payload.size() > kMaxInlineRanges) {
      ready.inlined.ranges.clear();
      payload.clear();
    }
  }
  c.told[owner] = {c.buckets, c.sealed};
  context_.Say(owner, ready, std::move(payload));
  return true;
}

void OwnWork::TellProgress() {
  context_.Tell(Progress{work_->round, work_->units_done, queue_.taken()});
  progress_due_ = context_.now + context_.config.progress_interval;
}

bool OwnWork::Busy() const {
  return work_ &&
         (queue_.taken() != work_->units_done || queue_.seals_begun() != work_->parts_sealed);
}

bool OwnWork::Computing() const {
  return work_ && !work_->is_void && (Busy() || queue_.taken() != queue_.size());
}

std::optional<BufferId> OwnWork::Sealed(RoundId round, PartIndex part) const {
  for (const Contribution& c : contributions_) {
    if (c.round == round && c.part == part && c.sealed && !c.dropped) return c.buffer;
  }
  return std::nullopt;
}

std::optional<BufferRange> OwnWork::FindPiece(const Piece& piece) const {
  const FloatRange range{piece.offset / sizeof(float), piece.bytes / sizeof(float)};
  for (const Contribution& c : contributions_) {
    if (c.tag != piece.attempt || c.dropped) continue;
    for (std::uint32_t b = 0; b < c.buckets; ++b) {
      const FloatRange& bucket = context_.layout.bucket(b);
      if (bucket.first <= range.first && range.end() <= bucket.end()) {
        return BufferRange{c.buffer, range};
      }
    }
  }
  return std::nullopt;
}

OwnWork::Contribution* OwnWork::Find(std::uint32_t work, PartIndex part) {
  for (Contribution& c : contributions_) {
    if (c.work == work && c.part == part) return &c;
  }
  return nullptr;
}

}  // namespace lockstep::worker
