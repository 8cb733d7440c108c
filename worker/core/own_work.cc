#include "worker/core/own_work.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace lockstep::worker {

void OwnWork::OnPlan(const Plan& plan) {
  kinds_[plan.round] = {plan.relaxed, plan.local_rate, plan.attempt};
  const auto mine = std::ranges::find(plan.assignments, context_.config.self, &Assignment::member);
  const bool has_work =
      pending_.contains(plan.round) || (work_ && work_->round == plan.round && !work_->is_void);
  if (plan.carries && mine == plan.assignments.end() && has_work) return;
  Forget(plan.round);
  Pending& pending = pending_[plan.round];
  pending.epoch = plan.epoch;
  pending.base = plan.round;
  pending.plan = plan.attempt;
  pending.kind = kinds_[plan.round];
  if (mine != plan.assignments.end()) pending.units = mine->units;
  LOCKSTEP_CHECK(pending.units.size() <= queue_.capacity(), "{} units in a plan of at most {}",
                 pending.units.size(), queue_.capacity());
}

void OwnWork::CarryOver(const Commit& commit) {
  const bool counted = std::ranges::any_of(
      commit.parts, [&](const CommittedPart& part) { return part.member == context_.config.self; });
  auto pending = pending_.extract(commit.round);
  const bool begun = work_ && work_->round == commit.round && !work_->is_void &&
                     work_->kind.relaxed && queue_.size() > 0;
  const bool waits = !pending.empty() && !pending.mapped().units.empty();
  if (counted || (!begun && !waits)) {
    Stop(commit.round);
    return;
  }
  const RoundId next = commit.round.Next();
  fenced_.erase(fenced_.begin(), fenced_.upper_bound(commit.round));
  if (waits) {
    pending.key() = next;
    pending.mapped().plan = commit.next->attempt;
    pending_.insert(std::move(pending));
    return;
  }
  work_->round = next;
  work_->plan = commit.next->attempt;
  for (Contribution& c : contributions_) {
    if (c.work != work_->id || c.round != commit.round) continue;
    c.round = next;
    c.plan = work_->plan;
    c.all_told.reset();
  }
}

void OwnWork::OnFence(const FenceRound& fence) {
  const RoundId round = fence.round;
  std::optional<Pending> again;
  if (const auto at = pending_.find(round); at != pending_.end()) {
    again = at->second;
    again->units.clear();
  } else if (work_ && work_->round == round) {
    again = Pending{work_->epoch, {},          PartIndex(work_->parts_told),
                    work_->base,  work_->kind, work_->plan};
  }
  Forget(round);
  if (!again) return;
  fenced_[round] = *again;
  context_.Tell(Revoked{round, 0, fence.order, true});
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

void OwnWork::BeginIfPossible(RoundId level, bool committed) {
  if (pending_.empty() || Busy() || copy_op_) return;
  auto at = committed ? pending_.end() : pending_.find(level);
  const auto last = std::prev(pending_.end());
  if (at == pending_.end() && last->second.kind.relaxed && last->second.base <= level) at = last;
  if (at == pending_.end()) return;
  if (at->second.kind.relaxed) {
    if (at->second.units.empty()) return;
    if (!copied_ || copy_for_ != at->second.base) {
      if (work_) queue_.MakeVoid();  // nothing is computed while the copy changes
      copy_for_ = at->second.base;
      copied_ = false;
      copy_op_ = context_.NewOp();
      context_.Emit(action::TakeSnapshot{*copy_op_, action::SnapshotKind::kCompute});
      return;
    }
  }
  const RoundId round = at->first;
  const auto first = buffers_.Take(BufferKind::kContribution);
  if (!first) return;
  const auto second = buffers_.Take(BufferKind::kContribution);
  if (!second) {
    buffers_.Release(*first);
    return;
  }
  if (work_) queue_.MakeVoid();
  const PartIndex first_part = at->second.first_part;
  copied_ = false;
  work_ = Work{};
  work_->id = next_work_++;
  work_->round = round;
  work_->epoch = at->second.epoch;
  work_->base = at->second.base;
  work_->kind = at->second.kind;
  work_->plan = at->second.plan;
  work_->parts_sealed = first_part.value;
  work_->parts_told = first_part.value;
  const std::array<BufferId, kMaxParts> parts = {*first, *second};
  for (std::uint8_t p = 0; p < kMaxParts; ++p) {
    Contribution c;
    c.work = work_->id;
    c.round = round;
    c.plan = work_->plan;
    c.part = PartIndex(p);
    c.tag = context_.NewGeneration();
    c.buffer = parts[p];
    context_.Emit(action::OpenBlock{c.buffer, c.tag});
    contributions_.push_back(std::move(c));
  }
  queue_.Reset(work_->id, at->second.units, first_part);
  context_.Emit(action::StartWork{work_->id, round, work_->epoch, parts, work_->kind.relaxed,
                                  work_->kind.local_rate});
  progress_due_ = context_.now + context_.config.progress_interval;
  pending_.erase(pending_.begin(), pending_.upper_bound(round));
}

bool OwnWork::OnOpDone(const event::OpDone& done) {
  if (copy_op_ != done.op) return false;
  copy_op_.reset();
  copied_ = copy_for_.has_value();
  return true;
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
  if (!sealed.finite) c->loss_sum = std::numeric_limits<double>::quiet_NaN();
  c->dropped = !std::isfinite(c->loss_sum);  // it is in no commit, so nobody is to fetch it
  context_.Tell(lockstep::Sealed{c->round, c->part, c->samples, c->loss_sum, std::move(c->units),
                                 sealed.sealed_ns, c->plan});
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
  copy_for_.reset();
  copied_ = false;
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
  kinds_.erase(kinds_.begin(), kinds_.lower_bound(round));
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
  const bool new_round = at != c.told.end() && told.round != c.round;
  if (!new_round && (told.sealed || (told.buckets == c.buckets && !c.sealed))) return true;
  if (!peers_.Up(owner)) return false;
  // Who maps reads the part as a whole, when it is in a commit.
  const bool mapped = peers_.Mapped(owner);
  if (mapped && !c.sealed) return false;
  PartReady ready{c.round, c.part, c.tag, c.buffer.index, c.buckets, c.sealed, c.plan, {}};
  std::vector<BufferRange> payload;
  if (!mapped) {
    bool anything = false;
    for (const Slice& slice : maps_.Shard(c.round, owner)) {
      if (slice.bucket < told.buckets || slice.bucket >= c.buckets) continue;
      anything = true;
      ready.inlined.ranges.push_back(slice.range);
      payload.push_back({c.buffer, slice.range});
    }
    if (!anything && !c.sealed && !new_round) return false;
    if (ready.inlined.Floats() * sizeof(float) > context_.config.inline_bytes ||
        payload.size() > kMaxInlineRanges) {
      ready.inlined.ranges.clear();
      payload.clear();
    }
  }
  c.told[owner] = {c.round, c.buckets, c.sealed};
  context_.Say(owner, ready, std::move(payload));
  return true;
}

void OwnWork::TellProgress() {
  context_.Tell(Progress{work_->round, work_->units_done, queue_.taken(), work_->plan});
  progress_due_ = context_.now + context_.config.progress_interval;
}

bool OwnWork::Busy() const {
  return work_ &&
         (queue_.taken() != work_->units_done || queue_.seals_begun() != work_->parts_sealed);
}

bool OwnWork::UsesParameters() const { return copy_op_ || (Busy() && !work_->kind.relaxed); }

bool OwnWork::Computing() const {
  return work_ && !work_->is_void && (Busy() || queue_.taken() != queue_.size());
}

std::optional<BufferId> OwnWork::Sealed(RoundId round, PartIndex part) const {
  for (const Contribution& c : contributions_) {
    if (c.round == round && c.part == part && c.sealed && !c.dropped) return c.buffer;
  }
  return std::nullopt;
}

std::optional<BufferRange> OwnWork::FindPiece(const PieceName& piece) const {
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
