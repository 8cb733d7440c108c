#include "worker/core/own_work.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace lockstep::worker {

// Units are in one of three places: given and not begun (the round's GivenUnits), in the queue
// (begun, or about to be), or with somebody else. Each function below moves them from one to
// another; none leaves them in two (I2).
GivenUnits* OwnWork::Given(RoundId round) {
  Round* known = rounds_.Find(round);
  return known != nullptr && known->given && !known->given->fenced ? &*known->given : nullptr;
}

// Whoever carries work on is given nothing new in that round, so such a plan changes nothing here.
void OwnWork::OnPlan(const Plan& plan) {
  const auto mine = std::ranges::find(plan.assignments, context_.config.self, &Assignment::member);
  const bool has_work = Given(plan.round) != nullptr || WorksOn(plan.round);
  if (plan.carries && mine == plan.assignments.end() && has_work) return;
  Forget(plan.round);
  GivenUnits given;
  given.epoch = plan.epoch;
  // Which parameters it is computed with; carried over, the round changes and this does not.
  given.base = plan.round;
  given.relaxed = plan.relaxed;
  given.local_rate = plan.local_rate;
  given.position = plan.position;
  // It catches up, and has sealed some before: owners may have receipted those by their numbers.
  given.first_part = PartIndex(rounds_.At(plan.round).parts_used);
  if (mine != plan.assignments.end()) {
    given.units = mine->units;
    given.runs = mine->runs;
    given.audits_first = std::ranges::any_of(plan.audits, [&](const Audit& audit) {
      return audit.subject == context_.config.self && !mine->units.empty() &&
             audit.unit == mine->units.front();
    });
  } else if (plan.local_rate != 0) {
    given.runs.units = 1;  // of units that come later: each is a local step
  }
  for (const Audit& audit : plan.audits) {
    if (std::ranges::find(audit.by, context_.config.self) == audit.by.end()) continue;
    given.audit = audit.unit;
    break;
  }
  LOCKSTEP_CHECK(given.units.size() <= queue_.capacity(), "I7: {} units in a plan of at most {}",
                 given.units.size(), queue_.capacity());
  rounds_.At(plan.round).given = std::move(given);
}

// What is sealed stays while the round may have another attempt, which sums the same parts.
void OwnWork::OnCommit(const msg::Commit& commit) {
  if (!commit.next || !commit.next->carries) {
    Stop(commit.round.Next());  // what an attempt before had carried on is void as well
  } else if (!CarryOver(commit)) {
    Stop(commit.round);
  }
  // The rounds before are closed: no attempt at them will be made.
  for (Contribution& c : contributions_) {
    if (c.round < commit.round) c.dropped = true;
  }
}

void OwnWork::OnApplied(RoundId round, std::span<const CommittedPart> parts) {
  for (Contribution& c : contributions_) {
    if (c.round <= round) c.dropped = true;
  }
  std::size_t known = 0;
  for (const Open& open : open_) {
    const bool counts =
        open.round == round && std::ranges::any_of(parts, [&](const CommittedPart& part) {
          return part.member == context_.config.self && part.part == open.part.part;
        });
    if (!counts) continue;
    ++known;
    applied_.push_back(open.part);
    told_in_ = 0;
  }
  const auto own = std::ranges::count(parts, context_.config.self, &CommittedPart::member);
  // A part that was sealed under the coordinator before: the compute thread cannot tell which.
  if (own > static_cast<std::ptrdiff_t>(known)) {
    was_copied_ = true;
    told_in_ = 0;
  }
  std::erase_if(open_, [&](const Open& open) { return open.round <= round; });
}

void OwnWork::OnCopied() {
  open_.clear();
  applied_.clear();
  was_copied_ = true;
  told_in_ = 0;
}

// Relaxed rounds: a worker that is in no part of the commit goes on with what it has, as work of
// the next round. Its contributions move too, and are announced anew, for owners keep parts by
// round.
bool OwnWork::CarryOver(const msg::Commit& commit) {
  const bool counted = std::ranges::any_of(
      commit.parts, [&](const CommittedPart& part) { return part.member == context_.config.self; });
  const RoundId next = commit.round.Next();
  if (counted) return false;
  if (const GivenUnits* given = Given(commit.round); given != nullptr && !given->units.empty()) {
    rounds_.At(next).given = *given;
    DropGiven(commit.round);
    return true;
  }
  if (!WorksOn(commit.round) || !work_->relaxed || queue_.size() == 0) return false;
  // The compute thread is not told: it adds to the same buffers under the same id of work.
  work_->round = next;
  rounds_.At(next).parts_used = work_->parts_told;
  DropGiven(commit.round);
  for (Contribution& c : contributions_) {
    if (c.work != work_->id || c.round != commit.round) continue;
    c.round = next;
    c.all_told.reset();
  }
  return true;
}

// Void by order: the units were given away, because this worker did not answer in time. The parts
// that it sealed are used up, since the coordinator may have heard of them: a new beginning takes
// the next part.
void OwnWork::OnFence(const msg::FenceRound& fence) {
  const RoundId round = fence.round;
  std::optional<GivenUnits> again;
  if (const GivenUnits* given = Given(round)) {
    again = *given;
    again->units.clear();
    again->audit.reset();
    again->audits_first = false;
  } else if (work_ && work_->round == round) {
    again = GivenUnits{.epoch = work_->epoch,
                       .units = {},
                       .first_part = PartIndex(work_->parts_told),
                       .base = work_->base,
                       .relaxed = work_->relaxed,
                       .local_rate = work_->local_rate,
                       .position = work_->position,
                       .runs = work_->runs,
                       .audit = {}};
  }
  Forget(round);
  if (!again) return;
  again->fenced = true;
  if (Round* known = rounds_.Find(round)) known->given = std::move(again);
  context_.Tell(msg::Revoked{round, 0, fence.order, true});
}

// Answered at once with what is given back, all that is not begun from `from` on; also in the
// middle of a slow unit, because the queue's tail is ours. Only then may the units be given away
// (I2).
void OwnWork::OnRevoke(const msg::Revoke& revoke) {
  if (GivenUnits* given = Given(revoke.round)) {
    // Nothing of it has begun, so all that is asked for comes back.
    std::vector<Unit>& units = given->units;
    units.resize(std::min<std::size_t>(units.size(), revoke.from));
    given->audits_first = given->audits_first && !units.empty();
    context_.Tell(
        msg::Revoked{revoke.round, static_cast<std::uint32_t>(units.size()), revoke.order, false});
  } else if (WorksOn(revoke.round)) {
    context_.Tell(msg::Revoked{revoke.round, queue_.RevokeFrom(revoke.from), revoke.order, false});
  }
}

// Units of another worker. They go behind what is there, into the part that is open; where no part
// is open any more they go back by the same answer that gives units back.
void OwnWork::OnAssign(const msg::Assign& assign) {
  if (Round* known = rounds_.Find(assign.round); known != nullptr && known->given) {
    GivenUnits& given = *known->given;
    // The coordinator has heard the answer to its fence: this is the new beginning.
    given.fenced = false;
    if (given.first_part.value >= kMaxParts ||
        given.units.size() + assign.units.size() > queue_.capacity()) {
      context_.Tell(msg::Revoked{assign.round, static_cast<std::uint32_t>(given.units.size()),
                                 assign.order, false});
    } else {
      given.units.insert(given.units.end(), assign.units.begin(), assign.units.end());
    }
    return;
  }
  if (!WorksOn(assign.round)) return;
  if (queue_.Append(assign.units)) {
    context_.Emit(action::WakeCompute{});
  } else {
    // Both parts are being sealed: all of them go back.
    context_.Tell(msg::Revoked{assign.round, queue_.size(), assign.order, false});
  }
}

// The round's own work once all before it are applied, unless it is committed by then. Relaxed work
// needs no more than the parameters of the round in which it was given, or later ones.
GivenUnits* OwnWork::Next(RoundId level, bool committed, RoundId& round) {
  round = level;
  if (GivenUnits* given = committed ? nullptr : Given(level)) return given;
  for (auto at = rounds_.all().rbegin(); at != rounds_.all().rend(); ++at) {
    GivenUnits* last = Given(at->first);
    if (last == nullptr) continue;
    round = at->first;
    return last->relaxed && last->base <= level ? last : nullptr;
  }
  return nullptr;
}

// Both parts get their buffers at once, so that units that are assigned later find one.
void OwnWork::BeginIfPossible(RoundId level, bool committed) {
  if (Busy() || copy_op_) return;
  RoundId round;
  const GivenUnits* given = Next(level, committed, round);
  if (given == nullptr) return;
  if (given->relaxed) {
    if (given->units.empty()) return;
    if (!copied_ || copy_for_ != given->base) {
      if (work_) queue_.MakeVoid();  // nothing is computed while the copy changes
      // Relaxed work reads parameters while later rounds are applied, so it reads a copy.
      copy_for_ = given->base;
      copied_ = false;
      copy_op_ = context_.NewOp();
      context_.Emit(action::TakeSnapshot{*copy_op_, action::SnapshotKind::kCompute});
      return;
    }
  }
  const auto first = buffers_.Take(BufferKind::kContribution);
  if (!first) return;
  const auto second = buffers_.Take(BufferKind::kContribution);
  if (!second) {
    buffers_.Release(*first);
    return;
  }
  Begin(round, *given, {*first, *second});
  for (auto& [id, known] : rounds_.all()) {
    if (id <= round && Given(id) != nullptr) known.given.reset();
  }
}

void OwnWork::Begin(RoundId round, const GivenUnits& given,
                    const std::array<BufferId, kMaxParts>& parts) {
  LOCKSTEP_CHECK(parts[0] != parts[1], "I4: two parts of round {} in one buffer", round);
  LOCKSTEP_CHECK(!Busy(), "I4: work on round {} begins under a unit of round {}", round,
                 work_->round);
  LOCKSTEP_CHECK(!given.relaxed || copied_, "work of round {} begins without its copy", round);
  LOCKSTEP_CHECK(given.first_part.value <= kMaxParts, "round {} begins at part {}", round,
                 given.first_part);
  if (work_) queue_.MakeVoid();
  copied_ = false;
  work_ = Work{.id = next_work_++,
               .round = round,
               .epoch = given.epoch,
               .base = given.base,
               .relaxed = given.relaxed,
               .local_rate = given.local_rate,
               .position = given.position,
               .runs = given.runs,
               .parts_sealed = given.first_part.value,
               .parts_told = given.first_part.value};
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
  queue_.SetCosts(costs_.Of(given.epoch));
  queue_.Reset(work_->id, given.units, given.first_part, given.runs, given.audit,
               given.audits_first);
  context_.Emit(action::StartWork{work_->id, round, work_->epoch, parts, work_->relaxed,
                                  work_->local_rate, work_->position, applied_, was_copied_,
                                  peers_.AnyNotMapped()});
  if (told_in_ == 0) told_in_ = work_->id;
  progress_due_ = context_.now + context_.config.progress_interval;
}

bool OwnWork::OnOpDone(const event::OpDone& done) {
  if (copy_op_ != done.op) return false;
  copy_op_.reset();
  copied_ = copy_for_.has_value();
  return true;
}

// Also a run of void work is reported, so that Busy ends; it is in no contribution.
void OwnWork::OnRunDone(const event::RunDone& done) {
  std::int64_t took_ns = 0;
  for (const UnitTiming& unit : done.units) took_ns += unit.end_ns - unit.start_ns;
  msg::Reading reading = done.reading;
  if (reading.waited_ns) {  // a part of that
    reading.waited_ns = std::min(*reading.waited_ns, static_cast<std::uint64_t>(took_ns));
  }
  runs_.samples += done.samples;
  runs_.took_ns += took_ns;
  runs_.reading.Add(reading);
  if (!work_ || done.work != work_->id) return;
  work_->units_done += static_cast<std::uint32_t>(done.units.size());
  LOCKSTEP_CHECK(work_->units_done <= queue_.taken(), "more units done than taken");
  Contribution* c = Find(done.work, done.part);
  if (work_->is_void || c == nullptr) return;
  LOCKSTEP_CHECK(!c->sealed, "I2: a unit of round {} ends behind the seal of part {}", c->round,
                 c->part);
  c->samples += done.samples;
  c->divisor += done.divisor.value_or(done.samples);
  c->loss_sum += done.loss_sum;
  c->units.insert(c->units.end(), done.units.begin(), done.units.end());
  c->runs.push_back(done.units.size());
  Merge(done.metrics, &c->metrics);
  c->reading.Add(reading);
  TellProgress();
}

// Also one of void work is reported, so that Busy ends.
void OwnWork::OnUnitAudited(const event::UnitAudited& audited) {
  if (!work_ || audited.work != work_->id) return;
  if (!audited.counts) {
    LOCKSTEP_CHECK(queue_.audit_taken() && !work_->audit_done, "an audit was done twice");
    work_->audit_done = true;
  }
  if (work_->is_void || !audited.gradient) return;
  const event::AuditedGradient& gradient = *audited.gradient;
  context_.Tell(msg::Audited{work_->round, *rounds_.PlanOf(work_->round), audited.unit,
                             gradient.bits, gradient.squares, gradient.sketch,
                             gradient.arithmetic});
}

// The last unit's backward pass finishes bucket after bucket: owners may fetch those while it runs.
void OwnWork::OnBucketsFinal(const event::BucketsFinal& final) {
  Contribution* c = Find(final.work, final.part);
  if (c == nullptr || c->dropped || c->sealed) return;
  LOCKSTEP_CHECK(final.buckets >= c->buckets && final.buckets <= context_.layout.bucket_count(),
                 "watermark {} after {}", final.buckets, c->buckets);
  c->buckets = final.buckets;
  c->all_told.reset();
}

// The last word on a part. What is not finite is told, because the coordinator waits for it, and is
// never fetched.
void OwnWork::OnPartSealed(const event::PartSealed& sealed) {
  if (!work_ || sealed.work != work_->id) return;
  LOCKSTEP_CHECK(sealed.part.value < kMaxParts, "part {} was sealed", sealed.part);
  ++work_->parts_sealed;
  LOCKSTEP_CHECK(work_->parts_sealed <= queue_.seals_begun(), "sealed before the last unit");
  // The compute thread has heard of them, unless it was in this work when they came.
  if (told_in_ != 0 && sealed.work >= told_in_) {
    applied_.clear();
    was_copied_ = false;
  }
  Contribution* c = Find(sealed.work, sealed.part);
  if (c == nullptr || c->dropped) return;
  LOCKSTEP_CHECK(!c->sealed, "I2: part {} of round {} was sealed twice", c->part, c->round);
  LOCKSTEP_CHECK(!c->units.empty(), "I2: part {} of round {} is sealed without units", c->part,
                 c->round);
  c->buckets = context_.layout.bucket_count();
  c->sealed = true;
  std::erase_if(open_, [&](const Open& open) { return open.round < c->round; });
  open_.push_back({c->round, {c->work, c->part}});
  c->all_told.reset();
  ++work_->parts_told;
  rounds_.At(c->round).parts_used = work_->parts_told;
  if (!sealed.finite) c->loss_sum = std::numeric_limits<double>::quiet_NaN();
  c->dropped = !std::isfinite(c->loss_sum);  // it is in no commit, so nobody is to fetch it
  std::optional<std::uint64_t> divisor;
  if (c->divisor != c->samples) divisor = c->divisor;
  context_.Tell(msg::Sealed{c->round, c->part, c->samples, c->loss_sum, std::move(c->units),
                            sealed.sealed_ns, *rounds_.PlanOf(c->round), std::move(c->runs),
                            std::move(c->metrics), SentBefore(Time(Duration(sealed.sealed_ns)), *c),
                            divisor, c->reading, sealed.sampled_squares});
  for (auto& [owner, told] : c->told) told.sent.clear();
}

// How much of the exchange is hidden behind the compute thread is known here alone: what ends with
// the seal, and on whose clock. The connection is all that a piece is followed to: the kernel may
// have some of it yet. A peer that goes takes what it was sent along (OnPeerDown).
msg::SentBytes OwnWork::SentBefore(Time sealed, const Contribution& c) {
  msg::SentBytes sent;
  const OwnerMap* map = rounds_.OwnersOf(c.round);
  if (map == nullptr || !map->direct()) return sent;
  std::uint64_t floats = 0;
  Time since = kNever;
  for (const OwnerShare& share : map->owners) {
    if (share.owner == context_.config.self || peers_.Mapped(share.owner)) continue;
    for (const Slice& slice : rounds_.Shard(c.round, share.owner)) {
      floats += context_.layout.InContribution(slice.range).count;
    }
    const auto told = c.told.find(share.owner);
    if (told == c.told.end()) continue;
    for (const SentPiece& piece : told->second.sent) {
      if (piece.taken >= sealed) continue;
      sent.early += piece.bytes;
      since = std::min(since, piece.asked);
    }
  }
  sent.all = floats * context_.layout.number_bytes();
  // Under a map that was replaced meanwhile others had been sent something, too.
  sent.early = std::min(sent.early, sent.all);
  if (sent.early > 0) sent.since_ns = since.time_since_epoch().count();
  return sent;
}

// A peer may ask as often as it likes (I7): what is beyond the bound counts as the last one, later
// than it was, so never as too early.
void OwnWork::NoteSent(const SentPiece& piece, std::vector<SentPiece>* sent) {
  if (sent->size() < kMostSentPieces) {
    sent->push_back(piece);
    return;
  }
  sent->back().taken = piece.taken;
  sent->back().bytes += piece.bytes;
}

// Of what is sealed no account is kept.
void OwnWork::OnServed(const Buffers::Served& ended) {
  if (ended.from.buffer.kind != BufferKind::kContribution) return;
  for (Contribution& c : contributions_) {
    if (c.buffer != ended.from.buffer || c.sealed || c.dropped) continue;
    const auto told = c.told.find(ended.peer);
    if (told == c.told.end()) continue;
    NoteSent({ended.since, context_.now, ended.from.range.count * context_.layout.number_bytes()},
             &told->second.sent);
  }
}

// What it was told went to a connection that is no more.
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

void OwnWork::DropGiven(RoundId last) {
  for (auto& [id, known] : rounds_.all()) {
    if (id <= last) known.given.reset();
  }
}

// Frees the compute thread: it takes nothing more, and may leave off the unit that it is in. The
// parts that it was adding to count for nothing, as their seals would come after the decision.
void OwnWork::Stop(RoundId round) {
  copy_for_.reset();
  copied_ = false;
  DropGiven(round);
  if (!work_ || work_->round > round || work_->is_void) return;
  for (Contribution& c : contributions_) {
    if (c.work == work_->id && !c.sealed) c.dropped = true;
  }
  work_->is_void = true;
  queue_.MakeVoid();
  if (Busy()) context_.Emit(action::VoidWork{work_->id});
}

// Of this very round also the sealed parts.
void OwnWork::Forget(RoundId round) {
  if (Round* known = rounds_.Find(round)) known->given.reset();
  if (work_ && work_->round == round) Stop(round);
  for (Contribution& c : contributions_) {
    if (c.round == round) c.dropped = true;
  }
  std::erase_if(open_, [&](const Open& open) { return open.round == round; });
}

// Each contribution is announced to each owner of its round's map, again where the map has changed,
// and only what the owner does not know yet.
void OwnWork::Update() {
  std::erase_if(contributions_, [&](const Contribution& c) {
    // The compute thread may still be adding to it.
    if (!c.dropped || (work_ && c.work == work_->id && Busy())) return false;
    buffers_.Release(c.buffer);
    return true;
  });
  for (Contribution& c : contributions_) {
    const OwnerMap* map = rounds_.OwnersOf(c.round);
    if (c.dropped || c.buckets == 0 || map == nullptr || c.all_told == map->version) continue;
    // Nobody takes the part itself: sums are passed on, once the round is committed.
    if (!map->direct()) continue;
    bool all = true;
    for (const OwnerShare& share : map->owners) {
      if (share.owner != context_.config.self) all = Announce(c, share.owner) && all;
    }
    // So that nothing is looked through once all owners know all; a peer that goes resets it.
    if (all) c.all_told = map->version;
  }
}

// One watermark for each owner: "the first n buckets may be fetched", with the floats themselves if
// they are few. An owner of nothing in these buckets hears of them only when the part is sealed: it
// must give a receipt even for an empty shard.
bool OwnWork::Announce(Contribution& c, const MemberId& owner) {
  const auto at = c.told.find(owner);
  Told told = at == c.told.end() ? Told{} : at->second;
  LOCKSTEP_CHECK(told.buckets <= c.buckets, "I2: {} buckets were announced, {} are final",
                 told.buckets, c.buckets);
  const bool new_round = at != c.told.end() && told.round != c.round;
  if (!new_round && (told.sealed || (told.buckets == c.buckets && !c.sealed))) return true;
  if (!peers_.Up(owner)) return false;
  // Who maps reads the part as a whole, when it is in a commit.
  const bool mapped = peers_.Mapped(owner);
  if (mapped && !c.sealed) return false;
  PartReady ready{
      c.round, c.part, c.tag, c.buffer.index, c.buckets, c.sealed, *rounds_.PlanOf(c.round), {}};
  std::vector<BufferRange> payload;
  if (!mapped) {
    bool anything = false;
    for (const Slice& slice : rounds_.Shard(c.round, owner)) {
      if (slice.bucket < told.buckets || slice.bucket >= c.buckets) continue;
      anything = true;
      const FloatRange range = context_.layout.InContribution(slice.range);
      ready.inlined.ranges.push_back(range);
      payload.push_back({c.buffer, range});
    }
    if (!anything && !c.sealed && !new_round) return false;
    const std::uint64_t bytes = ready.inlined.Floats() * context_.layout.number_bytes();
    if (bytes > context_.config.inline_bytes ||
        told.inlined + bytes > context_.config.part_inline_bytes ||
        payload.size() > kMaxInlineRanges) {
      ready.inlined.ranges.clear();
      payload.clear();
    } else {
      told.inlined += bytes;
    }
    if (!c.sealed && !payload.empty()) NoteSent({context_.now, context_.now, bytes}, &told.sent);
  }
  c.told[owner] = {c.round, c.buckets, c.sealed, told.inlined, std::move(told.sent)};
  context_.Say(owner, ready, std::move(payload));
  return true;
}

void OwnWork::TellProgress() {
  context_.Tell(msg::Progress{work_->round, work_->units_done, queue_.taken(),
                              *rounds_.PlanOf(work_->round)});
  progress_due_ = context_.now + context_.config.progress_interval;
}

// By the counts of both sides: what was taken and not reported done, sealing begun and not
// reported.
bool OwnWork::Busy() const {
  return work_ &&
         (queue_.taken() != work_->units_done || queue_.seals_begun() != work_->parts_sealed ||
          queue_.audit_taken() != work_->audit_done);
}

bool OwnWork::UsesParameters() const { return copy_op_ || (Busy() && !work_->relaxed); }

bool OwnWork::Computing() const {
  return work_ && !work_->is_void && (Busy() || queue_.taken() != queue_.size());
}

// For this worker's own shard: what it computed itself is read where it lies.
std::optional<BufferId> OwnWork::Sealed(RoundId round, PartIndex part) const {
  for (const Contribution& c : contributions_) {
    if (c.round == round && c.part == part && c.sealed && !c.dropped) return c.buffer;
  }
  return std::nullopt;
}

// Pieces are named by tag, not by round: the name stays right when the work is carried over, and a
// late request for what the buffer held before finds nothing (I4).
std::optional<BufferRange> OwnWork::FindPiece(const PieceName& piece) const {
  const std::uint64_t number = context_.layout.number_bytes();
  const FloatRange range{piece.offset / number, piece.bytes / number};
  for (const Contribution& c : contributions_) {
    if (c.tag != piece.attempt || c.dropped) continue;
    for (std::uint32_t b = 0; b < c.buckets; ++b) {
      const FloatRange bucket = context_.layout.InContribution(context_.layout.bucket(b));
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

void OwnWork::CheckInvariants() const {
  LOCKSTEP_CHECK(contributions_.size() <= kContributionBuffers, "I7: {} contributions",
                 contributions_.size());
  for (const Contribution& c : contributions_) {
    LOCKSTEP_CHECK(buffers_.Taken(c.buffer), "I4: round {} is computed in a buffer that is free",
                   c.round);
    LOCKSTEP_CHECK(!c.sealed || c.buckets == context_.layout.bucket_count(),
                   "round {} is sealed at {} buckets", c.round, c.buckets);
    if (c.dropped) continue;
    LOCKSTEP_CHECK(c.round >= rounds_.first_not_closed(), "round {} is closed, its part is kept",
                   c.round);
    LOCKSTEP_CHECK(rounds_.PlanOf(c.round), "a part of round {} without its plan", c.round);
    LOCKSTEP_CHECK(c.sealed || (work_ && c.work == work_->id && !work_->is_void),
                   "I2: a part of round {} that nobody seals", c.round);
    for (const Contribution& other : contributions_) {
      LOCKSTEP_CHECK(&other == &c || other.buffer != c.buffer, "I4: two parts in one buffer");
    }
  }
  LOCKSTEP_CHECK(open_.size() <= 2 * kMaxParts && applied_.size() <= 2 * kMaxParts,
                 "I7: {} parts are open, {} applied", open_.size(), applied_.size());
  LOCKSTEP_CHECK(copy_for_ || !copied_, "a copy of the parameters for nobody");
  if (!work_) return;
  LOCKSTEP_CHECK(work_->units_done <= queue_.taken(), "I2: {} units done, {} taken",
                 work_->units_done, queue_.taken());
  LOCKSTEP_CHECK(work_->parts_sealed <= queue_.seals_begun(), "I2: more parts sealed than begun");
  LOCKSTEP_CHECK(work_->parts_told <= work_->parts_sealed, "I2: a part was told and not sealed");
  LOCKSTEP_CHECK(work_->base <= work_->round, "work of round {} was given in {}", work_->round,
                 work_->base);
  LOCKSTEP_CHECK(!work_->is_void || queue_.IsVoid(), "I2: units of void work are still taken");
  LOCKSTEP_CHECK(work_->is_void || rounds_.PlanOf(work_->round), "work on round {} without a plan",
                 work_->round);
}

}  // namespace lockstep::worker
