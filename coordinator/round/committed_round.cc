#include "coordinator/round/committed_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

constexpr int kUnits = 10;  // that may pass, as without a finished unit
constexpr std::uint32_t kHopelessAttempts = 3;

template <class Range, class Value, class Projection = std::identity>
bool Contains(const Range& range, const Value& value, Projection projection = {}) {
  return std::ranges::find(range, value, projection) != std::ranges::end(range);
}

}  // namespace

CommittedRound::CommittedRound(Job* job, RoundWork work, Sampler before, History history)
    : job_(job), work_(std::move(work)), before_(std::move(before)), history_(std::move(history)) {}

// Here the invariants of a commit are held: a quorum (I5), delivered parts in the order of
// summation (I3), samples that add up (I2).
void CommittedRound::BeginAttempt(msg::Commit commit) {
  LOCKSTEP_CHECK(!commit.parts.empty() && job_->members.CountLive() >= job_->min_workers,
                 "I5: round {} is committed over nothing or without a quorum", commit.round);
  LOCKSTEP_CHECK(!history_.attempts.empty() && history_.attempts.back().attempt == commit.attempt,
                 "round {}: attempt {} has no reason", commit.round, commit.attempt);
  commit_ = std::move(commit);
  slots_.assign(job_->members.slots(), {});
  committed_at_ = moved_at_ = published_from_ = job_->now;
  applied_at_.reset();
  first_applied_at_.reset();
  unpublished_ = static_cast<std::uint32_t>(commit_.owners.owners.size());
  patience_ = job_->bounds.Publication();
  pinged_at_.reset();
  extensions_ = 0;
  stand_ins_.clear();
  answers_missing_ = 0;
  holders_.clear();
  phase_ = Phase::kPublishing;
  std::uint64_t samples = 0;
  for (std::size_t i = 0; i < commit_.parts.size(); ++i) {
    const CommittedPart& part = commit_.parts[i];
    const SealedPart* sealed = work_.Part(part.member.worker, part.part);
    LOCKSTEP_CHECK(sealed != nullptr && sealed->delivered_at,
                   "round {} is committed over part {} of worker {}, which is not delivered",
                   commit_.round, part.part, part.member.worker);
    LOCKSTEP_CHECK(
        i == 0 || std::pair(commit_.parts[i - 1].member.worker, commit_.parts[i - 1].part) <
                      std::pair(part.member.worker, part.part),
        "I3: the parts of round {} are not in the order of summation", commit_.round);
    samples += part.samples;
    delivery_ = std::max(delivery_, *sealed->delivered_at - sealed->ready_at);
  }
  LOCKSTEP_CHECK(samples == commit_.samples, "I2: round {} says {} samples and has {}",
                 commit_.round, commit_.samples, samples);
  for (const OwnerShare& share : commit_.owners.owners) {
    LOCKSTEP_CHECK(std::ranges::binary_search(commit_.members, share.owner),
                   "round {}: worker {} owns and takes no part", commit_.round, share.owner.worker);
  }
  CountToApply();
}

// Every change of phase comes through here, but for a new attempt and Close.
void CommittedRound::Enter(Phase phase) {
  LOCKSTEP_CHECK(phase_ != Phase::kClosed, "round {} is closed", round());
  LOCKSTEP_CHECK((phase == Phase::kFromHolders) == !holders_.empty(),
                 "round {}: {} holders in phase {}", round(), holders_.size(),
                 static_cast<int>(phase));
  phase_ = phase;
}

// Only live members are waited for: who catches up gets the round by copying, who is behind is on
// its way to that.
bool CommittedRound::MustApply(const Member& member) const {
  if (!member.live() || member.next > commit_.round) return false;
  return std::ranges::binary_search(commit_.members, member.id);
}

std::uint32_t CommittedRound::RecountToApply() const {
  std::uint32_t count = 0;
  for (const Member& member : job_->members.all()) count += MustApply(member) ? 1 : 0;
  return count;
}

// Recounted whenever somebody becomes live or is not any more; Applied counts down.
void CommittedRound::CountToApply() {
  to_apply_ = RecountToApply();
  if (to_apply_ == 0 && !applied_at_) applied_at_ = job_->now;
}

// Being live is not enough: who was out meanwhile, perhaps under the same incarnation, has
// forgotten its contribution.
bool CommittedRound::HasLost(const MemberId& id) const {
  const Member* member = job_->members.Find(id);
  return member == nullptr || !member->live() || Contains(been_out_, id);
}

// --- what members say

// Of an older attempt it is stale. Of a later one it cannot be: only a commit says which there are.
Status CommittedRound::On(Member& from, const msg::Published& message) {
  if (message.attempt > commit_.attempt) return Violation("published an attempt to come");
  if (message.attempt < commit_.attempt) return {};
  if (message.stands_in_for) return OnStoodIn(from, *message.stands_in_for);
  const auto& owners = commit_.owners.owners;
  const auto owner = std::ranges::lower_bound(owners, from.id, {}, &OwnerShare::owner);
  if (owner == owners.end() || owner->owner != from.id)
    return Violation("published sums it does not own");
  std::optional<Duration>& slot = SlotOf(from.id).published;
  if (slot && *slot != Duration::max()) return {};
  const Duration took = job_->now - committed_at_;
  if (!slot) from.owner_trial.OnPublished();
  NotePublished(slot, took);
  job_->bounds.NotePublication(took);
  return {};
}

void CommittedRound::NotePublished(std::optional<Duration>& slot, Duration took) {
  if (!slot) {
    LOCKSTEP_CHECK(unpublished_ > 0, "round {}: more owners publish than there are", round());
    moved_at_ = job_->now;
    if (--unpublished_ == 0) {
      pinged_at_.reset();
      published_from_ = job_->now;
      patience_ = job_->bounds.Serving();
    }
  }
  slot = took;
}

void CommittedRound::PublicationTimes(std::vector<MemberId>* owners,
                                      std::vector<Duration>* took) const {
  for (const OwnerShare& share : commit_.owners.owners) {
    const std::optional<Duration>& after = SlotOf(share.owner).published;
    if (!after || *after == Duration::max()) continue;  // it is out
    owners->push_back(share.owner);
    took->push_back(*after);
  }
}

// Whoever has applied this attempt holds its sums, which ends a fail-over at once. Whoever has
// applied an older one was not asked before it was given up, as it was not live then, and has
// parameters that nobody else has (I1): it catches up.
Result<bool> CommittedRound::On(Member& from, const msg::Applied& message) {
  Slot& slot = SlotOf(from.id);
  if (message.attempt > commit_.attempt) return Violation("applied an attempt to come");
  if (message.attempt < commit_.attempt) {
    job_->PutBehind(from, fmt::format("it has applied attempt {} at round {}, which was replaced",
                                      message.attempt, message.round));
    return false;
  }
  if (slot.answer == Answer::kNo) {
    return Violation("applied an attempt that it said it does not hold");
  }
  if (slot.applied || from.next > message.round) return false;
  slot.applied = true;
  moved_at_ = job_->now;
  if (!first_applied_at_) first_applied_at_ = job_->now;
  if (to_apply_ > 0) --to_apply_;
  if (to_apply_ == 0) {
    applied_at_ = job_->now;
    job_->bounds.NoteApplication(job_->now - committed_at_);
  }
  from.next = message.round.Next();
  if (phase_ == Phase::kFencing) TakeFromHolders();
  return true;
}

// A "no" is a promise (I1): the member will not apply this attempt unless TakeSums says so. It
// stands until then; see SendToHolder.
Status CommittedRound::On(const Member& from, const msg::HoldAnswer& message) {
  if (message.attempt > commit_.attempt) return Violation("answered for an attempt to come");
  if (message.attempt < commit_.attempt) return {};
  Slot& slot = SlotOf(from.id);
  // Asked once more since, or stale.
  if (slot.answer != Answer::kWaiting || message.order != slot.order) return {};
  LOCKSTEP_CHECK(answers_missing_ > 0, "round {}: an answer too many", round());
  --answers_missing_;
  slot.answer = message.holds_all ? Answer::kYes : Answer::kNo;
  if (phase_ == Phase::kFencing && message.holds_all) TakeFromHolders();
  return {};
}

// What the loss of a member means depends on what it was to this round: a holder that others take
// the sums from, an owner that may not have published to all, or, in a further attempt, a
// contributor whose parts the new owners may still lack. Anybody else is only not waited for any
// more.
void CommittedRound::OnOut(const MemberId& member, const std::string& why) {
  const WorkerId worker = member.worker;
  Slot& slot = SlotOf(member);
  been_out_.push_back(member);
  slot.applied = false;
  if (slot.answer == Answer::kWaiting) {
    LOCKSTEP_CHECK(answers_missing_ > 0, "round {}: an answer is awaited that is not counted",
                   round());
    --answers_missing_;
  }
  slot.answer = Answer::kUnasked;
  CountToApply();
  const bool owned = Contains(commit_.owners.owners, member, &OwnerShare::owner);
  // Its shard can be had elsewhere.
  const bool stood_in = std::ranges::any_of(stand_ins_, [&](const StandIn& stand_in) {
    return stand_in.owner == member && stand_in.published && !Contains(been_out_, stand_in.by);
  });
  if (owned && !slot.published) {
    slot.published = Duration::max();
    LOCKSTEP_CHECK(unpublished_ > 0, "round {}: more owners are out than there are", round());
    --unpublished_;
  }
  if (Contains(holders_, member)) {
    holders_.clear();
    Enter(Phase::kPublishing);
    BeginFailover(fmt::format("worker {}, which held the sums, is out: {}", worker, why));
  } else if (owned && !stood_in && holders_.empty()) {
    BeginFailover(fmt::format("worker {}, an owner, is out: {}", worker, why));
  } else if (commit_.attempt.value > 0 && unpublished_ > 0 && holders_.empty()) {
    // Unlike those of the first attempt, the new owners may not have had its pieces yet.
    if (Contains(commit_.parts, member, &CommittedPart::member)) {
      BeginFailover(fmt::format("worker {}, a contributor, is out: {}", worker, why));
    }
  }
}

// --- deadlines

// How long nobody may publish or apply the round.
Duration CommittedRound::ApplyPatience() const {
  // The sums are as many bytes over the same links as the contributions were: what these took,
  // those may take, also in the first round.
  return std::max(job_->bounds.LastRound(), 2 * delivery_);
}

// At half of the deadline those concerned are asked for a sign of life. However late that look was:
// who was asked has the other half of the time to answer.
Time CommittedRound::OwnersDeadline() const {
  if (!pinged_at_) return published_from_ + patience_ / 2;
  return std::max(published_from_ + patience_, *pinged_at_ + patience_ / 2);
}

// A run that is under way is finished before the round is applied.
Duration CommittedRound::UnitPatience() const {
  Duration patience{};
  for (const Member& member : job_->members.all()) {
    if (MustApply(member)) {
      patience = std::max(patience, (kUnits + member.longest_run - 1) * member.unit_times.mean);
    }
  }
  return patience;
}

// When nothing has happened for so long that neither units nor links can be why.
Time CommittedRound::HopelessFrom() const {
  return moved_at_ + std::max({job_->bounds.Stuck(), ApplyPatience(), UnitPatience()});
}

// So that who lacks the round can copy it.
bool CommittedRound::IsAppliedByLive() const {
  return std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    return member.live() && member.next > round();
  });
}

// When those who have not applied the round are late: others have, or all could have.
Time CommittedRound::LateFrom(bool last) const {
  const bool applied = IsAppliedByLive();
  if (last && applied) return moved_at_ + ApplyPatience();
  if (!last && first_applied_at_ && (applied || phase_ == Phase::kPublishing)) {
    // The first of them tells how long it takes at least; the others share its links.
    return std::max(*first_applied_at_, moved_at_) +
           std::max({ApplyPatience(), 2 * (*first_applied_at_ - committed_at_), UnitPatience()});
  }
  // Until all sums are there it is the owners that are waited for.
  return unpublished_ == 0 || phase_ == Phase::kFromHolders ? HopelessFrom() : kNever;
}

// Without a member that has to apply the round there is nothing to wait for.
Time CommittedRound::NextDeadline(bool last) const {
  switch (phase_) {
    case Phase::kClosed:
    case Phase::kStalled:  // goes on when somebody comes
      return kNever;
    case Phase::kFencing:
      return fence_until_;
    case Phase::kPublishing:
    case Phase::kFromHolders:
      break;
  }
  if (to_apply_ == 0) return kNever;
  const Time owners = phase_ == Phase::kPublishing ? OwnersDeadline() : kNever;
  return std::min({owners, HedgeFrom(), LateFrom(last)});
}

// Slow members are not waited for without end (I6).
CommittedRound::Outcome CommittedRound::Check(bool last) {
  switch (phase_) {
    case Phase::kClosed:
      return Outcome::kGoesOn;
    case Phase::kStalled:  // somebody has come, perhaps one that has the round
      return ResolveFailover();
    case Phase::kFencing:
      return answers_missing_ == 0 || job_->now >= fence_until_ ? ResolveFailover()
                                                                : Outcome::kGoesOn;
    case Phase::kPublishing:
    case Phase::kFromHolders:
      break;
  }
  if (to_apply_ == 0) return Outcome::kApplied;
  if (job_->now >= LateFrom(last)) {
    GiveUpOnLate(last);
    return Outcome::kGoesOn;
  }
  if (job_->now >= HedgeFrom()) Hedge();
  if (phase_ == Phase::kPublishing && job_->now >= OwnersDeadline()) {
    unpublished_ > 0 ? CheckPublication() : CheckServing();
  }
  return Outcome::kGoesOn;
}

// Where somebody has the round, who is late copies it; but in the last round no later commit would
// tell it that it is late. Where nobody has it, nothing that is known of is missing, and still it
// goes no further: whoever turns out to hold the sums helps the others, or another attempt is made.
// Holders that do not even apply what they hold are of no use.
void CommittedRound::GiveUpOnLate(bool last) {
  if (IsAppliedByLive()) {
    for (Member& member : job_->members.all()) {
      if (!MustApply(member)) continue;
      if (last) {
        job_->Evict(member, "it did not apply the last round in time");
      } else {
        job_->PutBehind(
            member,
            fmt::format("it has not applied round {}, which others have, in time", round()));
      }
    }
    return;
  }
  if (phase_ == Phase::kPublishing && TryOnceMore()) {
    return BeginFailover("nobody has applied it, though all sums are published");
  }
  EvictStuck("applied");
}

// Whether a further attempt may help: so many came to nothing though everybody lived. Without a
// bound they could go on for ever (I6).
bool CommittedRound::TryOnceMore() { return hopeless_attempts_++ < kHopelessAttempts; }

// Nothing moves, and nothing else is left to try. While others take the sums from holders only
// those are out, and the others go on.
void CommittedRound::EvictStuck(const char* what) {
  for (Member& member : job_->members.all()) {
    if (!MustApply(member) || (!holders_.empty() && !Contains(holders_, member.id))) continue;
    job_->Evict(member, fmt::format("nobody has {} round {} for {:.1f} s", what, round(),
                                    Seconds(job_->now - moved_at_)));
  }
}

bool CommittedRound::OthersCouldOwn() const {
  return std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    return member.live() && std::ranges::binary_search(commit_.members, member.id) &&
           !Contains(commit_.owners.owners, member.id, &OwnerShare::owner);
  });
}

// An owner that is silent is blamed; owners that live and are late get more time twice, then others
// do it if that helps: who fails as an owner is on trial (OwnerTrial). Where not one of them has
// published it is slow for all, for a while; then others try, and where there are none no attempt
// would come to an end.
void CommittedRound::CheckPublication() {
  LOCKSTEP_CHECK(unpublished_ > 0, "round {} is published", round());
  std::vector<WorkerId> missing;
  std::size_t published = 0;
  for (const OwnerShare& share : commit_.owners.owners) {
    const bool done = SlotOf(share.owner).published.has_value();
    published += done ? 1 : 0;
    if (!done) missing.push_back(share.owner.worker);
  }
  if (!pinged_at_) {
    pinged_at_ = job_->now;
    for (const WorkerId worker : missing) job_->Ping(worker);
    return;
  }
  std::erase_if(missing, [&](WorkerId worker) { return job_->HeardSince(worker, *pinged_at_); });
  // Alive and late is given more time, then others do it, if there are others that could; or if a
  // contributor is out, from which nobody can get what was not read in time.
  const bool late = missing.empty();
  const bool without = std::ranges::any_of(
      commit_.parts, [&](const CommittedPart& part) { return HasLost(part.member); });
  const bool none = late && published == 0 && !without;
  const bool hopeless = none && job_->now >= HopelessFrom();
  if (hopeless && (!OthersCouldOwn() || !TryOnceMore())) return EvictStuck("published sums of");
  if (late && (++extensions_ < 3 || (none && !hopeless))) return GiveOwnersMoreTime();
  WorkerId first = late ? WorkerId(0) : missing.front();
  for (const OwnerShare& share : commit_.owners.owners) {
    const WorkerId worker = share.owner.worker;
    if (SlotOf(share.owner).published) continue;
    if (!late && !Contains(missing, worker)) continue;
    job_->members.at(worker).owner_trial.Fail(round());
    if (late) first = worker;
  }
  BeginFailover(fmt::format("worker {} did not publish its sums in time", first));
}

void CommittedRound::GiveOwnersMoreTime() {
  pinged_at_.reset();
  published_from_ = job_->now;
  patience_ = std::min(patience_ * 2, std::max(job_->timeout, patience_));
}

// Nothing was heard of it since the ping.
bool CommittedRound::Silent(const MemberId& id) const {
  const Member* member = job_->members.Find(id);
  return member != nullptr && member->live() && !job_->HeardSince(id.worker, *pinged_at_);
}

// An owner that stops right after it has published serves nobody, and who waits for its bytes does
// so for as long as a connection may be silent. It is not waited for here: whoever has the sums by
// now gives them to the others, or another attempt is made without it.
void CommittedRound::CheckServing() {
  LOCKSTEP_CHECK(unpublished_ == 0, "round {} is not published", round());
  if (!pinged_at_) {
    pinged_at_ = job_->now;
    for (const Member& member : job_->members.all()) {
      const bool owns = Contains(commit_.owners.owners, member.id, &OwnerShare::owner);
      if (member.live() && (owns || MustApply(member))) job_->Ping(member.id.worker);
    }
    return;
  }
  const bool lacked = std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    return MustApply(member) && !Silent(member.id);
  });
  std::optional<WorkerId> silent;
  for (const OwnerShare& share : commit_.owners.owners) {
    if (!lacked || !Silent(share.owner)) continue;
    job_->members.at(share.owner.worker).owner_trial.Fail(round());
    silent = silent.value_or(share.owner.worker);
  }
  GiveOwnersMoreTime();
  if (!silent) return;
  BeginFailover(fmt::format("worker {}, an owner, is silent, and not all have its sums", *silent));
}

// --- standing in

// Which bits the sums have is fixed by the commit, whoever makes them. So nobody need be fenced for
// another one to make an owner's shard as well, and to be wrong about the owner costs a reduction
// and no more: it is tried long before the owner is blamed, as soon as others show how long it
// takes. After: J. Dean, L. Barroso, "The Tail at Scale", CACM 56 (2013), hedged requests.
Time CommittedRound::HedgeFrom() const {
  const auto patience = job_->bounds.Hedge();
  if (phase_ != Phase::kPublishing || unpublished_ == 0 || !patience) return kNever;
  const bool wanted = std::ranges::any_of(
      commit_.owners.owners, [&](const OwnerShare& share) { return WantsStandIn(share.owner); });
  return wanted && ChooseStandIn() ? committed_at_ + *patience : kNever;
}

bool CommittedRound::WantsStandIn(const MemberId& owner) const {
  return !SlotOf(owner).published && !Contains(stand_ins_, owner, &StandIn::owner);
}

// The one that published first, of those that reach everybody and do not stand in for another.
std::optional<MemberId> CommittedRound::ChooseStandIn() const {
  std::optional<MemberId> first;
  for (const auto& [id, weight] : commit_.owners.owners) {
    const Member* member = job_->members.Find(id);
    const std::optional<Duration>& published = SlotOf(id).published;
    if (member == nullptr || !member->live() || !published || *published == Duration::max() ||
        job_->members.BrokenEdges(id.worker) > 0 || Contains(stand_ins_, id, &StandIn::by)) {
      continue;
    }
    if (!first || *published < *SlotOf(*first).published) first = id;
  }
  return first;
}

void CommittedRound::Hedge() {
  for (const auto& [owner, weight] : commit_.owners.owners) {
    if (!WantsStandIn(owner)) continue;
    const std::optional<MemberId> by = ChooseStandIn();
    if (!by) return;
    stand_ins_.push_back({owner, *by});
    job_->Log(LogLevel::kDebug, "round {} attempt {}: worker {} stands in for worker {}", round(),
              commit_.attempt, by->worker, owner.worker);
    std::vector<MemberId> to;
    for (const MemberId& id : commit_.members) {
      const Member* member = job_->members.Find(id);
      if (member != nullptr && member->exchanging()) to.push_back(id);
    }
    job_->Send(to, msg::Hedge{job_->start.term, round(), commit_.attempt, owner, *by});
  }
}

Status CommittedRound::OnStoodIn(const Member& from, WorkerId owner) {
  const auto stand_in = std::ranges::find(stand_ins_, from.id, &StandIn::by);
  if (stand_in == stand_ins_.end() || stand_in->owner.worker != owner) {
    return Violation("published sums for an owner that it does not stand in for");
  }
  stand_in->published = true;
  std::optional<Duration>& slot = SlotOf(stand_in->owner).published;
  if (!slot) NotePublished(slot, Duration::max());
  return {};
}

// --- the fail-over

// If somebody is known to hold all sums nobody has to be asked. Otherwise everybody is: only when
// all have promised not to apply this attempt may there be another one (I1).
void CommittedRound::BeginFailover(const std::string& why) {
  if (closed() || failing_over() || to_apply_ == 0) return;
  failover_reason_ = why;
  job_->Log(LogLevel::kWarning, "round {} attempt {}: {}", round(), commit_.attempt, why);
  if (TakeFromHolders()) return;
  AskWhoHolds();
  Enter(Phase::kFencing);
  fenced_at_ = job_->now;
  fence_until_ = job_->now + job_->bounds.Answer();
}

// Whoever is live and may hold the attempt, or has it in its parameters. False: all have answered.
// A promise stands; what was answered is not asked again.
bool CommittedRound::AskWhoHolds() {
  LOCKSTEP_CHECK(holders_.empty(), "round {}: who holds the sums is asked while worker {} does",
                 round(), holders_.front().worker);
  std::vector<MemberId> asked;
  for (const Member& member : job_->members.all()) {
    // Who has been out since the commit has none of its sums.
    const bool may_hold =
        std::ranges::binary_search(commit_.members, member.id) && !Contains(been_out_, member.id);
    Slot& slot = SlotOf(member.id);
    if (!member.live() || slot.answer != Answer::kUnasked) continue;
    if (!may_hold && member.next <= round()) continue;
    slot.answer = Answer::kWaiting;
    slot.order = job_->orders + 1;
    ++answers_missing_;
    asked.push_back(member.id);
  }
  if (asked.empty()) return false;
  job_->Send(asked, msg::FenceAttempt{job_->start.term, round(), commit_.attempt, ++job_->orders});
  return true;
}

// Who is known to hold all sums of the attempt.
// Also who applied it: an owner's sums are kept until the round is closed and one round longer.
std::vector<MemberId> CommittedRound::Holders() const {
  std::vector<MemberId> holders;
  for (const Member& member : job_->members.all()) {
    const Slot& slot = SlotOf(member.id);
    if (member.live() && (slot.applied || slot.answer == Answer::kYes)) {
      holders.push_back(member.id);
    }
  }
  return holders;
}

// The whole commit goes along, for who has missed it.
void CommittedRound::SendToHolder(Member& member, const MemberId& holder) {
  Slot& slot = SlotOf(member.id);
  LOCKSTEP_CHECK(member.next <= round(), "I1: worker {} is to take sums that it has applied",
                 member.id.worker);
  job_->Send(member, msg::TakeSums{commit_, holder});
  slot.takes_from = holder;
  // With it no promise stands. Should the holder go, it is asked anew.
  if (slot.answer == Answer::kWaiting) {
    LOCKSTEP_CHECK(answers_missing_ > 0, "round {}: an answer is awaited that is not counted",
                   round());
    --answers_missing_;
  }
  if (slot.answer != Answer::kYes) slot.answer = Answer::kUnasked;
  if (!Contains(holders_, holder)) holders_.push_back(holder);
}

// False: nobody is known to hold all sums of the attempt.
// Somebody that holds the sums is the truth (I1). Each member is sent to a holder that it reaches;
// who reaches none cannot follow, and catches up from whoever has applied the round by then.
bool CommittedRound::TakeFromHolders() {
  const std::vector<MemberId> holders = Holders();
  if (holders.empty()) return false;
  holders_.clear();
  for (const MemberId& id : commit_.members) {
    Member* member = job_->members.Find(id);
    if (member == nullptr || !member->exchanging() || member->next > round()) continue;
    auto holder = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
      return h == id || !job_->members.Broken(h.worker, id.worker);
    });
    if (holder == holders.end()) {
      holder = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
        return job_->members.Mending(h.worker, id.worker);
      });
    }
    if (holder != holders.end()) {
      SendToHolder(*member, SlotOf(id).answer == Answer::kYes ? id : *holder);
    } else if (member->live()) {
      // Perhaps it reaches somebody who has applied them by then. Who is catching up anyway copies
      // the slices anew whose sums it does not get.
      job_->PutBehind(*member, "it reaches nobody that holds the sums");
    }
  }
  Enter(holders_.empty() ? Phase::kPublishing : Phase::kFromHolders);
  if (!holders_.empty()) {
    moved_at_ = job_->now;
    job_->Log(LogLevel::kInfo, "round {} attempt {}: worker {} holds all sums", round(),
              commit_.attempt, holders_.front().worker);
  }
  return true;
}

void CommittedRound::AvoidBrokenEdges(const std::vector<MemberId>& members,
                                      const std::vector<std::uint32_t>& broken) {
  if (phase_ == Phase::kFromHolders) return AvoidBrokenHolders();
  for (const MemberId& id : members) {
    if (broken[id.worker.value] == 0 || !MustApply(job_->members.at(id.worker))) continue;
    for (const OwnerShare& share : commit_.owners.owners) {
      if (!job_->members.Broken(id.worker, share.owner.worker)) continue;
      return BeginFailover(
          fmt::format("workers {} and {} cannot reach each other", id.worker, share.owner.worker));
    }
  }
}

// A holder that was named may turn out not to be reached: the sums are taken from another one, or
// the parameters from whoever has applied them. The one that tries may never find out itself: what
// it asked of a stopped peer stays asked.
void CommittedRound::AvoidBrokenHolders() {
  const std::vector<MemberId> holders = Holders();
  for (const MemberId& id : commit_.members) {
    Member* member = job_->members.Find(id);
    const std::optional<MemberId> from = SlotOf(id).takes_from;
    if (member == nullptr || !MustApply(*member) || !from) continue;
    if (!job_->members.Broken(id.worker, from->worker)) continue;
    const auto other = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
      return !job_->members.Broken(h.worker, id.worker);
    });
    if (other != holders.end()) {
      SendToHolder(*member, *other);
    } else if (!job_->members.Mending(id.worker, from->worker) &&
               job_->HeardSinceEdgeBroke(id.worker) && job_->HeardSinceEdgeBroke(from->worker)) {
      job_->PutBehind(*member,
                      fmt::format("it cannot reach worker {}, which holds the sums", from->worker));
    }
  }
}

// A live member that is past the round has copied its parameters from one that had applied it. So
// the attempt is a part of the truth, whoever still has its sums: a further one would take it back.
// Who lacks it copies as well.
bool CommittedRound::IsInParameters() {
  LOCKSTEP_CHECK(failing_over(), "round {} does not fail over", round());
  const auto past = std::ranges::find_if(job_->members.all(), [&](const Member& member) {
    return member.live() && member.next > round();
  });
  if (past == job_->members.all().end()) return false;
  job_->Log(LogLevel::kInfo,
            "round {} attempt {}: nobody holds its sums, but worker {} has its parameters", round(),
            commit_.attempt, past->id.worker);
  Enter(Phase::kPublishing);
  for (Member& member : job_->members.all()) {
    if (MustApply(member)) job_->PutBehind(member, "nobody holds the sums any more");
  }
  CountToApply();
  return true;
}

// All have answered, or the time is over. A member that did not answer might hold the sums and
// apply them: it is put behind, so that it copies whatever becomes the truth. If not even one
// answered, it may well be the coordinator that is cut off, and nothing is decided.
CommittedRound::Outcome CommittedRound::ResolveFailover() {
  LOCKSTEP_CHECK(failing_over(), "round {} does not fail over", round());
  if (TakeFromHolders()) return Outcome::kGoesOn;
  const auto answered = std::ranges::count(slots_, Answer::kNo, &Slot::answer);
  if (answered == 0 && answers_missing_ > 0 && job_->now < fenced_at_ + job_->bounds.Stuck()) {
    // Nobody is there to go on with; liveness will say who is lost. Who is heard and does not
    // answer in all that time never will.
    fence_until_ = job_->now + job_->bounds.Answer();
    return Outcome::kGoesOn;
  }
  for (Member& member : job_->members.all()) {
    if (!member.live() || SlotOf(member.id).answer != Answer::kWaiting) continue;
    SlotOf(member.id).answer = Answer::kUnasked;
    --answers_missing_;
    job_->PutBehind(member, "it did not say in time whether it holds the sums");
  }
  // Who has become level since the question was sent was not asked. What it says of its parameters
  // before its answer is heard before it is relied on.
  if (AskWhoHolds()) {
    Enter(Phase::kFencing);
    fence_until_ = job_->now + job_->bounds.Answer();
    return Outcome::kGoesOn;
  }
  if (IsInParameters()) return Outcome::kGoesOn;
  for (const Member& member : job_->members.all()) {
    const bool may_hold =
        std::ranges::binary_search(commit_.members, member.id) && !Contains(been_out_, member.id);
    LOCKSTEP_CHECK(!member.live() || !may_hold || SlotOf(member.id).answer == Answer::kNo,
                   "I1: worker {} has not promised that it does not apply round {}",
                   member.id.worker, round());
  }
  Enter(Phase::kStalled);
  return Outcome::kNobodyHolds;
}

// Nobody closes a round whose result is open: a fail-over is decided first.
void CommittedRound::Close() {
  LOCKSTEP_CHECK(!closed() && !failing_over(), "round {} is closed in phase {}", round(),
                 static_cast<int>(phase_));
  phase_ = Phase::kClosed;
  for (const StandIn& stand_in : stand_ins_) {
    Member* owner = job_->members.Find(stand_in.owner);
    if (owner != nullptr && SlotOf(owner->id).published == Duration::max()) {
      owner->owner_trial.Fail(round());
    }
  }
}

void CommittedRound::CheckInvariants(bool settled) const {
  LOCKSTEP_CHECK(closed() || (phase_ == Phase::kFromHolders) == !holders_.empty(),
                 "round {}: {} holders in phase {}", round(), holders_.size(),
                 static_cast<int>(phase_));
  LOCKSTEP_CHECK(
      commit_.round == work_.round() && commit_.attempt == history_.attempts.back().attempt,
      "round {}: the commit is of attempt {}", round(), commit_.attempt);
  LOCKSTEP_CHECK(commit_.owners.version >= work_.owners().version,
                 "round {}: its owner map is older than that of its contributions", round());
  if (closed()) return;
  std::uint32_t waiting = 0;
  for (const Slot& slot : slots_) {
    waiting += slot.answer == Answer::kWaiting ? 1 : 0;
    LOCKSTEP_CHECK(!slot.applied || slot.answer != Answer::kNo,
                   "I1: an attempt of round {} was applied against a promise", round());
  }
  LOCKSTEP_CHECK(waiting == answers_missing_, "round {}: {} answers are awaited, {} are counted",
                 round(), waiting, answers_missing_);
  std::uint32_t unpublished = 0;
  for (const OwnerShare& share : commit_.owners.owners) {
    unpublished += SlotOf(share.owner).published ? 0 : 1;
  }
  LOCKSTEP_CHECK(unpublished == unpublished_, "round {}: {} owners have not published, not {}",
                 round(), unpublished, unpublished_);
  if (!settled) return;
  LOCKSTEP_CHECK(RecountToApply() == to_apply_, "round {}: {} members are to apply it, not {}",
                 round(), RecountToApply(), to_apply_);
  for (const MemberId& holder : holders_) {
    const Member* member = job_->members.Find(holder);
    LOCKSTEP_CHECK(member != nullptr && member->live(),
                   "round {}: worker {} holds its sums and"
                   " is out",
                   round(), holder.worker);
  }
}

}  // namespace lockstep::coordinator
