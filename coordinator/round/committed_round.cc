#include "coordinator/round/committed_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "coordinator/round/not_finite.h"

namespace lockstep::coordinator {
namespace {

constexpr int kUnits = 10;  // that may pass, as without a finished unit
// After the first that has applied it, whatever that took.
constexpr Duration kLeastAway = std::chrono::milliseconds(250);
// The most further attempts at a round that fails though all members live.
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
void CommittedRound::BeginAttempt(msg::Commit commit, bool copies, const StateReplicas& replicas) {
  LOCKSTEP_CHECK(!commit.parts.empty() && job_->members.CountPresent() >= job_->min_workers(),
                 "I5: round {} is committed over nothing or without a quorum", commit.round);
  LOCKSTEP_CHECK(!history_.attempts.empty() && history_.attempts.back().attempt == commit.attempt,
                 "round {}: attempt {} has no reason", commit.round, commit.attempt);
  commit_ = std::move(commit);
  slots_.assign(job_->members.slots(), {});
  committed_at_ = moved_at_ = job_->now();
  applied_at_.reset();
  first_applied_at_.reset();
  publication_ = Publication(job_, commit_);
  barrier_.reset();
  if (!commit_.owners.holders.empty()) barrier_.emplace(job_, commit_, copies);
  state_replicas_ = &replicas;
  not_finite_.clear();
  answers_missing_ = 0;
  sum_holders_.clear();
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
  LOCKSTEP_CHECK((phase == Phase::kFromHolders) == !sum_holders_.empty(),
                 "round {}: {} holders in phase {}", round(), sum_holders_.size(),
                 static_cast<int>(phase));
  phase_ = phase;
}

// Only live members are awaited: a member that catches up or is behind gets the round by copying.
bool CommittedRound::MustApply(const Member& member) const {
  if (!member.live() || member.next > commit_.round) return false;
  return std::ranges::binary_search(commit_.members, member.id);
}

// A pass over the members, so only when one comes or goes.
CommittedRound::LiveCounts CommittedRound::Recount() const {
  LiveCounts counts;
  for (const Member& member : job_->members.all()) {
    counts.to_apply += MustApply(member) ? 1 : 0;
    counts.past += member.live() && member.next > round() ? 1 : 0;
  }
  return counts;
}

// Of a large job a few of them say enough.
std::string CommittedRound::Waiting() const {
  constexpr std::uint32_t kNamed = 8;
  std::string names;
  std::uint32_t count = 0;
  for (const Member& member : job_->members.all()) {
    if (!MustApply(member)) continue;
    if (++count <= kNamed) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", member.id.worker);
    }
  }
  if (count == 0) return "";
  const std::string more = count > kNamed ? fmt::format(" and {} more", count - kNamed) : "";
  return fmt::format("waiting for worker{} {}{} to apply round {}", count == 1 ? "" : "s", names,
                     more, round());
}

// Recounted whenever somebody becomes live or is not any more; Applied counts on.
void CommittedRound::CountToApply() {
  const LiveCounts counts = Recount();
  to_apply_ = counts.to_apply;
  past_ = counts.past;
  if (to_apply_ == 0 && !applied_at_) applied_at_ = job_->now();
}

// Being live is not enough: who was out meanwhile, perhaps under the same incarnation, has
// forgotten its contribution.
bool CommittedRound::HasLost(const MemberId& id) const {
  const Member* member = job_->members.Find(id);
  return member == nullptr || !member->live() || Contains(been_out_, id);
}

bool CommittedRound::HasLost(const CommittedPart& part) const {
  if (HasLost(part.member)) return true;
  return std::ranges::any_of(not_finite_, [&](std::size_t i) {
    return commit_.parts[i].member == part.member && commit_.parts[i].part == part.part;
  });
}

std::string CommittedRound::NotFinite() const {
  std::string text;
  for (const std::size_t i : not_finite_) {
    const CommittedPart& part = commit_.parts[i];
    const SealedPart* sealed = work_.Part(part.member.worker, part.part);
    text += fmt::format("{}{}", text.empty() ? "" : "; ",
                        NotFiniteText(*job_, work_, part.member.worker, sealed->units));
  }
  return text;
}

// Units of a member that is out are computed again anyway.
void CommittedRound::LeaveOutNotFinite() {
  for (const std::size_t i : not_finite_) {
    const CommittedPart& part = commit_.parts[i];
    if (!HasLost(part.member)) work_.Skip(part.member.worker, part.part);
  }
}

// --- what members say

// A message about an older attempt is stale. There can be none about a later one, since only a
// commit announces it.
Status CommittedRound::OnPublished(Member& from, const msg::Published& message) {
  if (message.attempt > commit_.attempt) return Violation("published an attempt to come");
  if (message.attempt < commit_.attempt) return {};
  const Result<Publication::Heard> heard = publication_.OnPublished(from.id, message);
  if (!heard.ok()) return heard.error();
  const bool first = *heard == Publication::Heard::kFirst;
  if (first) moved_at_ = job_->now();
  // A stand-in's time says nothing about owners.
  if (message.stands_in_for || *heard == Publication::Heard::kKnown) return {};
  if (first) from.owner_trial.OnPublished();
  job_->bounds.NotePublication(job_->now() - committed_at_);
  return {};
}

// Every worker that makes the shard finds the same value and does not publish. So nobody can hold
// all sums, and the members only have to promise that. The account changes with the next attempt
// only: until then the parts are those of this one.
Status CommittedRound::OnNotFinite(const Member& from, const msg::NotFinite& message) {
  if (message.attempt > commit_.attempt) return Violation("looked at an attempt to come");
  if (message.attempt < commit_.attempt || phase_ == Phase::kStalled) return {};
  if (!SumHolders().empty() || phase_ == Phase::kFromHolders || (barrier_ && barrier_->decided())) {
    return Violation("found what others hold not finite");
  }
  std::string why;
  for (const std::uint64_t i : message.parts) {
    if (i >= commit_.parts.size()) return Violation("looked at a part that there is not");
    const CommittedPart& part = commit_.parts[i];
    const auto at = std::ranges::lower_bound(not_finite_, i);
    if (at != not_finite_.end() && *at == i) continue;
    const SealedPart* sealed = work_.Part(part.member.worker, part.part);
    why = NotFiniteText(*job_, work_, part.member.worker, sealed->units);
    if (!MayLeaveOut(job_, why, from.id.worker)) return {};
    not_finite_.insert(at, i);
  }
  if (why.empty()) return {};
  if (std::ranges::all_of(commit_.parts,
                          [&](const CommittedPart& part) { return HasLost(part); })) {
    job_->Fail(why + ", and so is every other contribution to the round");
    return {};
  }
  if (barrier_) {
    TryAgain(why);
  } else {
    BeginFailover(why);
  }
  return {};
}

// A member that has applied this attempt holds its sums, which ends a fail-over at once. A member
// that has applied an older one was not live when that was given up, so it was not asked. Nobody
// else has its parameters (I1), so it catches up.
Result<bool> CommittedRound::OnApplied(Member& from, const msg::Applied& message) {
  Slot& slot = SlotOf(from.id);
  if (message.attempt > commit_.attempt) return Violation("applied an attempt to come");
  if (message.attempt < commit_.attempt) {
    job_->PutInDoubt(from, fmt::format("it has applied attempt {} at round {}, which was replaced",
                                       message.attempt, message.round));
    return false;
  }
  if (slot.answer == Answer::kNo) {
    return Violation("applied an attempt that it said it does not hold");
  }
  if (slot.applied || from.next > message.round) return false;
  slot.applied = true;
  moved_at_ = job_->now();
  if (!first_applied_at_) first_applied_at_ = job_->now();
  if (to_apply_ > 0) --to_apply_;
  if (to_apply_ == 0) {
    applied_at_ = job_->now();
    job_->bounds.NoteApplication(job_->now() - committed_at_);
  }
  from.next = message.round.Next();
  ++past_;
  if (phase_ == Phase::kFencing) TakeFromHolders();
  return true;
}

// A "no" is a promise (I1): the member will not apply this attempt unless TakeSums says so. It
// stands until then; see SendToHolder.
Status CommittedRound::OnHoldAnswer(const Member& from, const msg::HoldAnswer& message) {
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

Result<bool> CommittedRound::OnHeld(const Member& from, const msg::Held& message) {
  if (message.attempt > commit_.attempt) return Violation("holds an attempt to come");
  if (message.attempt < commit_.attempt || phase_ != Phase::kPublishing) return false;
  if (!barrier_) return Violation("holds what everybody holds");
  const Result<bool> all = barrier_->OnHeld(from.id);
  if (!all) return all;
  moved_at_ = job_->now();
  if (!*all) return false;
  job_->Send(Exchanging(), msg::Decide{round(), commit_.attempt});
  return true;
}

std::vector<MemberId> CommittedRound::Exchanging() const {
  std::vector<MemberId> members;
  for (const MemberId& id : commit_.members) {
    const Member* member = job_->members.Find(id);
    if (member != nullptr && member->exchanging()) members.push_back(id);
  }
  return members;
}

// Nobody has changed anything yet, so nobody has to be asked (I1).
void CommittedRound::TryAgain(const std::string& why) {
  if (closed() || failing_over()) return;
  failover_reason_ = why;
  job_->Log(LogLevel::kWarning, "round {} attempt {}: {}", round(), commit_.attempt, why);
  Enter(Phase::kStalled);
}

void CommittedRound::JudgeReplicas() {
  const Barrier::Decision decision = barrier_->OnDeadline();
  for (const WorkerId worker : decision.ping) job_->Ping(worker);
  TellSilent(decision.silent);
  if (decision.blamed.empty()) return PutSilentContributorsBehind(decision.silent);
  for (const WorkerId worker : decision.blamed) {
    job_->members.at(worker).owner_trial.Fail(round());
  }
  TryAgain(fmt::format("worker {} did not take its shards in time", decision.blamed.front()));
}

// New owners may lack what a stopped contributor has not sent them: the round is made without its
// part, which costs no more than that is computed again. This does not happen where nobody else has
// the parameters or the state's last copy: both are awaited.
void CommittedRound::PutSilentContributorsBehind(const std::vector<WorkerId>& silent) {
  if (commit_.attempt == Attempt(0) || publication_.complete()) return;
  std::vector<MemberId> members;
  for (const WorkerId worker : silent) members.push_back(job_->members.at(worker).id);
  if (state_replicas_ == nullptr || !state_replicas_->AllBeside(members)) return;
  for (const MemberId& id : members) {
    Member* member = job_->members.Find(id);
    if (member == nullptr || !member->live() ||
        !Contains(commit_.parts, id, &CommittedPart::member) || job_->members.CountLive() <= 1) {
      continue;
    }
    std::string why = fmt::format("it is silent, and its part of round {} is waited for", round());
    job_->Log(LogLevel::kWarning, "worker {} is behind: {}", id.worker, why);
    job_->PutBehind(*member, std::move(why));
  }
}

// They may have said that they have the new parameters, and have stopped since: as they are
// connected, others would wait for them. Other members have the same parameters.
void CommittedRound::PassOverSilentReplicas() {
  const Barrier::Decision decision = barrier_->OnFetchDeadline();
  for (const WorkerId worker : decision.ping) job_->Ping(worker);
  TellSilent(decision.silent);
}

// Peers notice a closed connection themselves.
void CommittedRound::TellSilent(const std::vector<WorkerId>& silent) {
  const std::vector<MemberId> to = Exchanging();
  for (const WorkerId worker : silent) {
    const auto owner = std::ranges::find(to, worker, &MemberId::worker);
    const auto by =
        std::ranges::find_if(to, [&](const MemberId& id) { return !Contains(silent, id.worker); });
    if (owner == to.end() || by == to.end()) continue;
    job_->Log(LogLevel::kDebug, "round {}: worker {} is silent, others fetch from another worker",
              round(), worker);
    job_->Send(to, msg::Hedge{job_->start.term, round(), commit_.attempt, *owner, *by});
  }
}

// The loss of a member matters by its role in this round. It may hold the sums that others take, or
// own a shard that not all have. In a further attempt it may be a contributor whose parts new
// owners lack; in ring and tree it passes sums on. Anybody else is only not waited for any more.
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
  const bool owned = publication_.Owns(member);
  // Others have its shard.
  const Publication::StandIn* stand_in = publication_.StandInFor(member);
  const bool stood_in =
      stand_in != nullptr && stand_in->published && !Contains(been_out_, stand_in->by);
  publication_.OnOut(member);
  if (barrier_) {
    const bool gives =
        !publication_.complete() && Contains(commit_.parts, member, &CommittedPart::member);
    if (!barrier_->decided() && (gives || barrier_->Holds(member))) {
      TryAgain(fmt::format("worker {} is out: {}", worker, why));
    }
    return;
  }
  if (Contains(sum_holders_, member)) {
    sum_holders_.clear();
    Enter(Phase::kPublishing);
    BeginFailover(fmt::format("worker {}, which held the sums, is out: {}", worker, why));
  } else if (owned && !stood_in && sum_holders_.empty()) {
    BeginFailover(fmt::format("worker {}, an owner, is out: {}", worker, why));
  } else if (sum_holders_.empty() && Contains(commit_.parts, member, &CommittedPart::member)) {
    if (!commit_.owners.direct()) {
      BeginFailover(fmt::format("worker {}, which passes sums on, is out: {}", worker, why));
    } else if (commit_.attempt.value > 0 && !publication_.complete()) {
      // Unlike those of the first attempt, the new owners may not have had its pieces yet.
      BeginFailover(fmt::format("worker {}, a contributor, is out: {}", worker, why));
    }
  }
}

// --- deadlines

// The time without a publication or application that the round may have.
Duration CommittedRound::ApplyPatience() const {
  // The sums are as many bytes over the same links as the contributions were: what these took,
  // those may take, also in the first round.
  return std::max(job_->bounds.LastRound(), 2 * delivery_);
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

// The time after which neither units nor links explain the lack of progress.
Time CommittedRound::HopelessFrom(Duration runs) const {
  return moved_at_ + std::max({job_->bounds.Stuck(), ApplyPatience(), runs});
}

// The time when members without the round are late: others have it, or all could have it. `runs`:
// how long they may be in runs that they cannot leave.
Time CommittedRound::LateFrom(bool last, Duration runs) const {
  const bool applied = past_ > 0;  // who lacks the round can copy it
  if (last && applied) return moved_at_ + ApplyPatience();
  if (!last && first_applied_at_ && (applied || phase_ == Phase::kPublishing)) {
    // The first of them tells how long it takes at least; the others share its links.
    return std::max(*first_applied_at_, moved_at_) +
           std::max({ApplyPatience(), 2 * (*first_applied_at_ - committed_at_), runs});
  }
  // Until all sums are there the owners are awaited.
  return publication_.complete() || phase_ == Phase::kFromHolders ? HopelessFrom(runs) : kNever;
}

// A look at all runs costs a pass, so it comes only when nothing else excuses the delay.
Time CommittedRound::LookAtLate(bool last) const {
  const Time soonest = LateFrom(last, {});
  return soonest > job_->now() ? soonest : LateFrom(last, UnitPatience());
}

// A member that is away may need its parameters unchanged until it is back. Then it copies what it
// has missed; nobody waits for that, once another one has shown how long applying takes.
Time CommittedRound::AwayDeadline() const {
  if (job_->members.CountAway() == 0 || barrier_ || past_ == 0 || !first_applied_at_) return kNever;
  const auto late = static_cast<std::uint32_t>(std::ranges::count_if(
      job_->members.all(), [this](const Member& m) { return m.away() && MustApply(m); }));
  // Past are also those that are on their way out.
  if (late == 0 || job_->members.CountLive() <= late || Recount().past == 0) return kNever;
  return *first_applied_at_ + std::max(kLeastAway, 2 * (*first_applied_at_ - committed_at_));
}

void CommittedRound::PutAwayBehind() {
  for (Member& member : job_->members.all()) {
    if (!member.away() || !MustApply(member)) continue;
    job_->Log(LogLevel::kInfo, "worker {} is away ({}) and copies what it misses when it is back",
              member.id.worker, member.absence->reason);
    job_->PutBehind(member, "it is away: " + member.absence->reason);
  }
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
  if (undecided()) return barrier_->Deadline();
  if (to_apply_ == 0) return kNever;
  // With replicas, a late member delays only itself.
  if (barrier_) return std::min(barrier_->Deadline(), last ? LookAtLate(last) : kNever);
  const Time late = std::min(AwayDeadline(), LookAtLate(last));
  if (phase_ == Phase::kFromHolders) return late;
  return std::min({publication_.Deadline(), publication_.StandInFrom(), late});
}

// Slow members are not waited for without end (I6).
CommittedRound::Outcome CommittedRound::Check(bool last) {
  switch (phase_) {
    case Phase::kClosed:
      return Outcome::kGoesOn;
    case Phase::kStalled:  // somebody has come, perhaps one that has the round
      return barrier_ ? Outcome::kNobodyHolds : ResolveFailover();
    case Phase::kFencing:
      return answers_missing_ == 0 || job_->now() >= fence_until_ ? ResolveFailover()
                                                                  : Outcome::kGoesOn;
    case Phase::kPublishing:
    case Phase::kFromHolders:
      break;
  }
  if (undecided()) {
    if (job_->now() >= barrier_->Deadline()) JudgeReplicas();
    return failing_over() ? Outcome::kNobodyHolds : Outcome::kGoesOn;
  }
  if (to_apply_ == 0) return Outcome::kApplied;
  if (barrier_ && job_->now() >= barrier_->Deadline()) PassOverSilentReplicas();
  if (barrier_ && !last) return Outcome::kGoesOn;
  if (job_->now() >= AwayDeadline()) {
    PutAwayBehind();
    return Outcome::kGoesOn;
  }
  if (job_->now() >= LookAtLate(last)) {
    GiveUpOnLate(last);
    return Outcome::kGoesOn;
  }
  if (phase_ != Phase::kPublishing || barrier_) return Outcome::kGoesOn;
  if (job_->now() >= publication_.StandInFrom()) OrderStandIns();
  if (job_->now() >= publication_.Deadline()) JudgeOwners();
  return Outcome::kGoesOn;
}

// Where another member has the round, a late one copies it. In the last round no later commit would
// tell it that it is late. Where nobody has it, nothing is known to be missing, and still there is
// no progress. Then a member that turns out to hold the sums helps the others, or another attempt
// is made. Holders that do not even apply what they hold are of no use.
void CommittedRound::GiveUpOnLate(bool last) {
  if (Recount().past > 0) {  // also without those who are on their way out
    for (Member& member : job_->members.all()) {
      if (!MustApply(member)) continue;
      if (last && !member.away()) {
        job_->Evict(member, "it did not apply the last round in time");
      } else {
        std::string why =
            fmt::format("it has not applied round {}, which others have, in time", round());
        job_->Log(LogLevel::kWarning, "worker {} is behind: {}", member.id.worker, why);
        job_->PutBehind(member, std::move(why));
      }
    }
    return;
  }
  if (phase_ == Phase::kPublishing && !barrier_ && TryOnceMore()) {
    return BeginFailover("nobody has applied it, though all sums are published");
  }
  EvictStuck("applied");
}

// Bounds the further attempts that may come to nothing though all members live. Without a bound
// they could go on for ever (I6).
bool CommittedRound::TryOnceMore() { return hopeless_attempts_++ < kHopelessAttempts; }

// Nothing moves, and nothing else is left to try. While others take the sums from holders only
// those are out, and the others go on.
void CommittedRound::EvictStuck(const char* what) {
  for (Member& member : job_->members.all()) {
    if (!MustApply(member) || (!sum_holders_.empty() && !Contains(sum_holders_, member.id)))
      continue;
    job_->Evict(member, fmt::format("nobody has {} round {} for {:.1f} s", what, round(),
                                    Seconds(job_->now() - moved_at_)));
  }
}

bool CommittedRound::OthersCouldOwn() const {
  return std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    return member.live() && std::ranges::binary_search(commit_.members, member.id) &&
           !publication_.Owns(member.id);
  });
}

// Everybody hears of it: who stands in has more to fetch, and the others take the sums from
// whichever of the two is first.
void CommittedRound::OrderStandIns() {
  for (const auto& [owner, by] : publication_.TakeOrders()) {
    job_->Log(LogLevel::kDebug, "round {} attempt {}: worker {} stands in for worker {}", round(),
              commit_.attempt, by.worker, owner.worker);
    job_->Send(Exchanging(), msg::Hedge{job_->start.term, round(), commit_.attempt, owner, by});
  }
}

// Gives Publication the state of the round, and carries out its decision.
void CommittedRound::JudgeOwners() {
  Publication::Round view;
  for (const Member& member : job_->members.all()) {
    if (MustApply(member)) view.lacking.push_back(member.id);
  }
  view.part_lost = std::ranges::any_of(
      commit_.parts, [&](const CommittedPart& part) { return HasLost(part.member); });
  view.hopeless_from = HopelessFrom(UnitPatience());
  view.may_try_again = hopeless_attempts_ < kHopelessAttempts && OthersCouldOwn();
  const Publication::Decision decision = publication_.OnDeadline(view);
  for (const WorkerId worker : decision.ping) job_->Ping(worker);
  for (const WorkerId worker : decision.blamed) {
    job_->members.at(worker).owner_trial.Fail(round());
  }
  if (decision.stuck) return EvictStuck("published sums of");
  if (decision.hopeless) ++hopeless_attempts_;
  if (!decision.fail_over.empty()) BeginFailover(decision.fail_over);
}

// A round with an open result is not closed: the fail-over is decided first.
void CommittedRound::Close() {
  LOCKSTEP_CHECK(!closed() && !failing_over() && !undecided(), "round {} is closed in phase {}",
                 round(), static_cast<int>(phase_));
  phase_ = Phase::kClosed;
  for (const MemberId& id : publication_.Replaced()) {
    Member* owner = job_->members.Find(id);
    if (owner != nullptr) owner->owner_trial.Fail(round());
  }
}

// The phase against the fields, the counts against the slots, and that nobody has applied
// what it has promised not to apply (I1).
void CommittedRound::CheckInvariants(bool settled) const {
  LOCKSTEP_CHECK(closed() || (phase_ == Phase::kFromHolders) == !sum_holders_.empty(),
                 "round {}: {} holders in phase {}", round(), sum_holders_.size(),
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
  publication_.CheckInvariants();
  if (!settled) return;
  const LiveCounts counts = Recount();
  LOCKSTEP_CHECK(counts.to_apply == to_apply_ && counts.past == past_,
                 "round {}: {} members are to apply it, not {}, and {} are past it, not {}",
                 round(), counts.to_apply, to_apply_, counts.past, past_);
  for (const MemberId& holder : sum_holders_) {
    const Member* member = job_->members.Find(holder);
    LOCKSTEP_CHECK(member != nullptr && member->live(),
                   "round {}: worker {} holds its sums and"
                   " is out",
                   round(), holder.worker);
  }
}

}  // namespace lockstep::coordinator
