#include "coordinator/round/publication.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/routes.h"
#include "base/sometimes.h"

namespace lockstep::coordinator {
namespace {

// Owners that live and are late are given more time so often, less one.
constexpr std::uint32_t kExtensions = 3;

}  // namespace

Publication::Publication(const Job* job, const msg::Commit& commit)
    : job_(job), begun_(job->now()), from_(job->now()), patience_(job->bounds.Publication()) {
  for (const OwnerShare& share : commit.owners.owners) owners_.push_back({share.owner});
  awaited_ = static_cast<std::uint32_t>(owners_.size());
  if (!commit.owners.direct()) passing_ = ContributorsOf(commit);
  LOCKSTEP_CHECK(std::ranges::is_sorted(owners_, {}, &Owner::id),
                 "round {}: its owners are not ascending", commit.round);
}

const Publication::Owner* Publication::Find(const MemberId& owner) const {
  const auto at = std::ranges::lower_bound(owners_, owner, {}, &Owner::id);
  return at != owners_.end() && at->id == owner ? &*at : nullptr;
}

Publication::Owner* Publication::Find(const MemberId& owner) {
  return const_cast<Owner*>(std::as_const(*this).Find(owner));
}

const Publication::StandIn* Publication::StandInFor(const MemberId& owner) const {
  const Owner* at = Find(owner);
  return at != nullptr && at->stand_in ? &*at->stand_in : nullptr;
}

// The owners that did it themselves: one that was excused has no comparable time.
std::pair<std::vector<MemberId>, std::vector<Duration>> Publication::Times() const {
  std::pair<std::vector<MemberId>, std::vector<Duration>> times;
  for (const Owner& owner : owners_) {
    if (owner.state != State::kPublished) continue;
    times.first.push_back(owner.id);
    times.second.push_back(owner.after);
  }
  return times;
}

// Nobody waited for it, so it was not blamed; but an owner that is often replaced should not own.
std::vector<MemberId> Publication::Replaced() const {
  std::vector<MemberId> replaced;
  for (const Owner& owner : owners_) {
    if (owner.stand_in && owner.state == State::kExcused) replaced.push_back(owner.id);
  }
  return replaced;
}

// --- what is heard

// Both may publish, in any order: the first one counts for the round, and what the owner itself
// says counts for what is known of it, however late.
Result<Publication::Heard> Publication::OnPublished(const MemberId& from,
                                                    const msg::Published& message) {
  if (message.stands_in_for) {
    const auto owner = std::ranges::find_if(
        owners_, [&](const Owner& o) { return o.stand_in && o.stand_in->by == from; });
    if (owner == owners_.end() || owner->id.worker != *message.stands_in_for) {
      return Violation("published sums for an owner that it does not stand in for");
    }
    owner->stand_in->published = true;
    if (owner->state == State::kAwaited) Sometimes<"hedging: a stand-in's sums count">();
    return owner->state == State::kAwaited ? Take(*owner, State::kExcused) : Heard::kKnown;
  }
  Owner* owner = Find(from);
  if (owner == nullptr) return Violation("published sums it does not own");
  if (owner->state == State::kPublished) return Heard::kKnown;
  owner->after = job_->now() - begun_;
  published_.push_back(static_cast<std::size_t>(owner - owners_.data()));
  return Take(*owner, State::kPublished);
}

// From the last one on, serving of the sums is awaited, not their making.
Publication::Heard Publication::Take(Owner& owner, State state) {
  const bool first = owner.state == State::kAwaited;
  owner.state = state;
  if (!first) {
    Sometimes<"hedging: an owner publishes after others did it for it">();
    return Heard::kLate;
  }
  LOCKSTEP_CHECK(awaited_ > 0, "worker {} publishes and none is awaited", owner.id.worker);
  if (owner.stand_in) --stood_in_for_;
  if (--awaited_ == 0) {
    pinged_at_.reset();
    from_ = job_->now();
    patience_ = job_->bounds.Serving();
  }
  return Heard::kFirst;
}

// The round decides whether it can go on without it: it may have published, but not to all.
void Publication::OnOut(const MemberId& member) {
  Owner* owner = Find(member);
  if (owner == nullptr || owner->state != State::kAwaited) return;
  LOCKSTEP_CHECK(awaited_ > 0, "worker {} is out and none is awaited", member.worker);
  owner->state = State::kExcused;
  if (owner->stand_in) {
    Sometimes<"hedging: an owner goes while another stands in for it">();
    --stood_in_for_;
  }
  --awaited_;
}

// --- standing in

// A stand-in blames nobody, so it is tried long before, as soon as others show how long publishing
// takes. After: J. Dean, L. Barroso, "The Tail at Scale", CACM 56 (2013), hedged requests.
Time Publication::StandInFrom() const {
  if (awaited_ == stood_in_for_ || !passing_.empty()) return kNever;
  const auto patience = job_->bounds.Hedge(owners_.size());
  return patience && ChooseStandIn() != nullptr ? begun_ + *patience : kNever;
}

// The one that published first, of those that reach everybody and do not stand in for another.
const Publication::Owner* Publication::ChooseStandIn() const {
  for (const std::size_t at : published_) {
    const Owner& owner = owners_[at];
    if (!owner.stands_in && Live(owner.id) && job_->members.BrokenEdges(owner.id.worker) == 0) {
      return &owner;
    }
  }
  return nullptr;
}

std::vector<Publication::Order> Publication::TakeOrders() {
  std::vector<Order> orders;
  for (Owner& owner : owners_) {
    if (owner.state != State::kAwaited || owner.stand_in) continue;
    const Owner* chosen = ChooseStandIn();
    if (chosen == nullptr) break;
    const MemberId by = chosen->id;
    Find(by)->stands_in = true;
    owner.stand_in = StandIn{by};
    Sometimes<"hedging: a stand-in is asked">();
    ++stood_in_for_;
    orders.push_back({owner.id, by});
  }
  return orders;
}

// --- the deadline

// At half of it those concerned are asked for a sign of life. However late that look was: who was
// asked has the other half of the time to answer.
Time Publication::Deadline() const {
  if (!pinged_at_) return from_ + patience_ / 2;
  return std::max(from_ + patience_, *pinged_at_ + patience_ / 2);
}

Publication::Decision Publication::OnDeadline(const Round& round) {
  LOCKSTEP_CHECK(job_->now() >= Deadline(), "owners are judged before the deadline");
  if (complete()) return OnServingLate(round);
  return passing_.empty() ? OnAwaitedLate(round) : OnPassingLate();
}

// Nobody is blamed as an owner: the next attempt is direct, and silent members own nothing in it.
// While all live it may be slow; then the direct way is tried.
Publication::Decision Publication::OnPassingLate() {
  Decision decision;
  if (!pinged_at_) {
    pinged_at_ = job_->now();
    for (const MemberId& id : passing_) decision.ping.push_back(id.worker);
    return decision;
  }
  const auto silent =
      std::ranges::find_if(passing_, [&](const MemberId& id) { return Silent(id); });
  if (silent != passing_.end()) {
    Sometimes<"routes: one that passes sums on is silent">();
    decision.fail_over = fmt::format("worker {}, which passes sums on, is silent", silent->worker);
  } else if (++extensions_ < kExtensions) {
    GiveMoreTime();
  } else {
    Sometimes<"routes: sums that are passed on are late">();
    decision.fail_over = "sums that are passed on were not whole in time";
  }
  return decision;
}

// A silent owner is blamed. Owners that are alive and late get more time twice; then others take
// over if that helps, and the failed owner is on trial (OwnerTrial). If not one of them has
// published, it is slow for all, for a while. Then others try; where there are none, no attempt
// would come to an end.
Publication::Decision Publication::OnAwaitedLate(const Round& round) {
  Decision decision;
  std::vector<WorkerId> awaited;
  for (const Owner& owner : owners_) {
    if (owner.state == State::kAwaited) awaited.push_back(owner.id.worker);
  }
  if (!pinged_at_) {
    pinged_at_ = job_->now();
    decision.ping = std::move(awaited);
    return decision;
  }
  std::vector<WorkerId> silent = awaited;
  std::erase_if(silent, [&](WorkerId worker) { return job_->HeardSince(worker, *pinged_at_); });
  // Owners that are alive and late get more time; then others take over, if there are any that
  // could. The same holds if a contributor is out, because its unread parts are gone.
  const bool late = silent.empty();
  const bool none = late && awaited.size() == owners_.size() && !round.part_lost;
  decision.hopeless = none && job_->now() >= round.hopeless_from;
  decision.stuck = decision.hopeless && !round.may_try_again;
  if (decision.stuck) {
    Sometimes<"owners: nobody publishes, and no attempt is left">();
    return decision;
  }
  if (late && (++extensions_ < kExtensions || (none && !decision.hopeless))) {
    Sometimes<"owners: late ones get more time">();
    GiveMoreTime();
    return decision;
  }
  // All that are late, or only those that are silent: who answers while others do not is no worse
  // than its links.
  if (late) {
    Sometimes<"owners: a late one is blamed">();
  } else {
    Sometimes<"owners: a silent one is blamed">();
  }
  decision.blamed = late ? std::move(awaited) : std::move(silent);
  decision.fail_over =
      fmt::format("worker {} did not publish its sums in time", decision.blamed.front());
  return decision;
}

// An owner that stops right after it has published serves nobody, and who waits for its bytes does
// so for as long as a connection may be silent. It is not waited for here: whoever has the sums by
// now gives them to the others, or another attempt is made without it.
Publication::Decision Publication::OnServingLate(const Round& round) {
  Decision decision;
  if (!pinged_at_) {
    pinged_at_ = job_->now();
    for (const Member& member : job_->members.all()) {
      const bool lacks = std::ranges::find(round.lacking, member.id) != round.lacking.end();
      if (member.live() && (lacks || Serves(member.id))) {
        decision.ping.push_back(member.id.worker);
      }
    }
    return decision;
  }
  // If all members without the sums are silent as well, it may not be the owner's fault.
  const bool lacked =
      std::ranges::any_of(round.lacking, [&](const MemberId& id) { return !Silent(id); });
  for (const Owner& owner : owners_) {
    if (lacked && Silent(owner.id)) decision.blamed.push_back(owner.id.worker);
  }
  const auto silent =
      std::ranges::find_if(passing_, [&](const MemberId& id) { return lacked && Silent(id); });
  if (silent != passing_.end()) {
    Sometimes<"routes: one is silent, and not all have its sums">();
    decision.fail_over = fmt::format(
        "worker {}, which passes sums on, is silent, and not all have them", silent->worker);
  }
  GiveMoreTime();
  if (!decision.blamed.empty()) {
    Sometimes<"owners: one is silent after it has published">();
    decision.fail_over = fmt::format("worker {}, an owner, is silent, and not all have its sums",
                                     decision.blamed.front());
  }
  return decision;
}

// Others may take sums from it.
bool Publication::Serves(const MemberId& id) const {
  return Owns(id) || std::ranges::binary_search(passing_, id);
}

// Nothing was heard of it since the ping.
bool Publication::Silent(const MemberId& id) const {
  return Live(id) && !job_->HeardSince(id.worker, *pinged_at_);
}

// This very incarnation.
bool Publication::Live(const MemberId& id) const {
  const Member& member = job_->members.at(id.worker);
  return member.id == id && member.live();
}

void Publication::GiveMoreTime() {
  pinged_at_.reset();
  from_ = job_->now();
  patience_ = std::min(patience_ * 2, std::max(job_->timeout, patience_));
}

void Publication::CheckInvariants() const {
  std::uint32_t awaited = 0;
  std::uint32_t stood_in_for = 0;
  std::size_t published = 0;
  for (const Owner& owner : owners_) {
    awaited += owner.state == State::kAwaited ? 1 : 0;
    published += owner.state == State::kPublished ? 1 : 0;
    if (!owner.stand_in) continue;
    stood_in_for += owner.state == State::kAwaited ? 1 : 0;
    const Owner* by = Find(owner.stand_in->by);
    LOCKSTEP_CHECK(by != nullptr && by->state == State::kPublished && by->stands_in,
                   "worker {} stands in and has not published", owner.stand_in->by.worker);
    LOCKSTEP_CHECK(owner.state != State::kAwaited || !owner.stand_in->published,
                   "worker {} is awaited though another one has published its sums",
                   owner.id.worker);
    LOCKSTEP_CHECK(std::ranges::count_if(owners_,
                                         [&](const Owner& other) {
                                           return other.stand_in && other.stand_in->by == by->id;
                                         }) == 1,
                   "worker {} stands in for two owners", by->id.worker);
  }
  LOCKSTEP_CHECK(awaited == awaited_, "{} owners have not published, not {}", awaited, awaited_);
  LOCKSTEP_CHECK(stood_in_for == stood_in_for_ && published == published_.size(),
                 "{} owners are stood in for and {} have published, not {} and {}", stood_in_for,
                 published, stood_in_for_, published_.size());
}

}  // namespace lockstep::coordinator
