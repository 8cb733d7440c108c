// After the commit: an owner is lost or does not publish. Either somebody holds all sums of the
// attempt, then that is the truth and the others fetch it there; or, after everybody has promised
// not to apply it, the next attempt is made.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {

using Asked = ProvisionalRound::Asked;

namespace {

constexpr int kUnits = 10;  // that may pass, as without a finished unit

}  // namespace

bool Pipeline::MustApply(const Member& member) const {
  if (!member.live() || member.next > provisional_->commit.round) return false;
  const auto& members = provisional_->commit.members;
  return std::binary_search(members.begin(), members.end(), member.id);
}

void Pipeline::CountToApply() {
  ProvisionalRound& round = *provisional_;
  round.to_apply = 0;
  for (const Member& member : job_->members.all()) round.to_apply += MustApply(member) ? 1 : 0;
  if (round.to_apply == 0 && !round.applied_at) round.applied_at = job_->now;
}

// At half of the deadline those concerned are asked for a sign of life. However late that look was:
// who was asked has the other half of the time to answer.
Time Pipeline::PublicationCheck() const {
  const ProvisionalRound& round = *provisional_;
  if (!round.pinged_at) return round.published_from + round.patience / 2;
  return std::max(round.published_from + round.patience, *round.pinged_at + round.patience / 2);
}

// How long nobody may publish or apply the round. The sums are as many bytes over the same links as
// the contributions were: what these took, those may take, also in the first round.
Duration Pipeline::ApplyPatience() const {
  return std::max(job_->bounds.LastRound(), 2 * provisional_->delivery);
}

Time Pipeline::NextProvisionalCheck() const {
  if (!provisional_ || provisional_->closed) return kNever;
  const ProvisionalRound& round = *provisional_;
  if (round.stalled) return kNever;  // goes on when somebody comes
  if (round.fencing) return round.fence_until;
  if (round.to_apply == 0) return kNever;
  Time next = kNever;
  if (round.unpublished > 0 && round.holders.empty()) {
    next = PublicationCheck();
  }
  if (!open_) next = std::min(next, round.moved_at + ApplyPatience());
  return std::min(next, LateFrom());
}

// When those who have not applied the round, while others have, are late.
Time Pipeline::LateFrom() const {
  const ProvisionalRound& round = *provisional_;
  if (!open_ || !round.first_applied_at) return kNever;
  // The first of them tells how long it takes at least; the others share its links.
  Duration patience = std::max(ApplyPatience(), 2 * (*round.first_applied_at - round.committed_at));
  // A unit that is under way is finished first.
  for (const Member& member : job_->members.all()) {
    if (MustApply(member)) patience = std::max(patience, kUnits * member.unit_times.mean);
  }
  return std::max(*round.first_applied_at, round.moved_at) + patience;
}

void Pipeline::CheckProvisional() {
  if (!provisional_ || provisional_->closed) return;
  ProvisionalRound& round = *provisional_;
  if (round.stalled) {
    if (HasQuorum()) ResolveFailover();  // somebody has come, perhaps one that has the round
    return;
  }
  if (round.fencing) {
    if (round.answers_missing == 0 || job_->now >= round.fence_until) ResolveFailover();
    return;
  }
  if (round.to_apply == 0) {
    if (!open_) {
      CloseProvisional();
      done_ = true;
    }
    return;
  }
  if (!open_ && job_->now >= round.moved_at + ApplyPatience()) {
    for (Member& member : job_->members.all()) {
      if (MustApply(member)) job_->Expel(member, "it did not apply the last round in time");
    }
    return;
  }
  if (job_->now >= LateFrom()) {
    for (Member& member : job_->members.all()) {
      if (!MustApply(member)) continue;
      job_->PutBehind(member, fmt::format("it has not applied round {}, which others have, in time",
                                          round.commit.round));
    }
    return;
  }
  if (round.unpublished > 0 && round.holders.empty()) CheckPublication();
}

void Pipeline::CheckPublication() {
  ProvisionalRound& round = *provisional_;
  if (job_->now < PublicationCheck()) return;
  std::vector<WorkerId> missing;
  std::size_t published = 0;
  for (const OwnerShare& share : round.commit.owners.owners) {
    const bool done = round.published[share.owner.worker.value].has_value();
    published += done ? 1 : 0;
    if (!done) missing.push_back(share.owner.worker);
  }
  if (!round.pinged_at) {
    round.pinged_at = job_->now;
    PingAll(missing);
    return;
  }
  std::erase_if(missing, [&](WorkerId worker) { return HeardSince(worker, *round.pinged_at); });
  // Alive and late is given more time, then others do it, if there are others that could; or if a
  // contributor is out, from which nobody can get what was not read in time.
  const bool late = missing.empty();
  const bool without =
      std::any_of(round.commit.parts.begin(), round.commit.parts.end(),
                  [&](const CommittedPart& part) { return HasLost(round, part.member); });
  if (late && (++round.extensions < 3 || (published == 0 && !without))) {
    round.pinged_at.reset();
    round.published_from = job_->now;
    round.patience = std::min(round.patience * 2, std::max(job_->timeout, round.patience));
    return;
  }
  WorkerId first = late ? WorkerId(0) : missing.front();
  for (const OwnerShare& share : round.commit.owners.owners) {
    const WorkerId worker = share.owner.worker;
    if (round.published[worker.value]) continue;
    const bool blamed = late || std::find(missing.begin(), missing.end(), worker) != missing.end();
    if (!blamed) continue;
    job_->members.at(worker).owner_on_trial = round.commit.round;
    if (late) first = worker;
  }
  BeginFailover(fmt::format("worker {} did not publish its sums in time", first));
}

void Pipeline::BeginFailover(const std::string& why) {
  ProvisionalRound& round = *provisional_;
  if (round.closed || round.fencing || round.stalled || round.to_apply == 0) return;
  failover_why_ = why;
  job_->Log(LogLevel::kWarning, "round {} attempt {}: {}", round.commit.round, round.commit.attempt,
            why);
  if (TakeFromHolders()) return;
  round.answers_missing = 0;
  AskWhoHolds();
  round.fencing = true;
  round.fence_until = job_->now + job_->bounds.Answer();
}

// Whoever is live and may hold the attempt, or has it in its parameters. False: all have answered.
// A promise stands; what was answered is not asked again.
bool Pipeline::AskWhoHolds() {
  ProvisionalRound& round = *provisional_;
  const auto& members = round.commit.members;
  std::vector<MemberId> asked;
  for (const Member& member : job_->members.all()) {
    // Who has been out since the commit has none of its sums.
    const bool may_hold = std::ranges::binary_search(members, member.id) &&
                          std::ranges::find(round.been_out, member.id) == round.been_out.end();
    Asked& answer = round.asked[member.id.worker.value];
    if (!member.live() || answer != Asked::kUnasked) continue;
    if (!may_hold && member.next <= round.commit.round) continue;
    answer = Asked::kWaiting;
    round.asked_order[member.id.worker.value] = job_->orders + 1;
    ++round.answers_missing;
    asked.push_back(member.id);
  }
  if (asked.empty()) return false;
  job_->Send(asked, FenceAttempt{job_->start.term, round.commit.round, round.commit.attempt,
                                 ++job_->orders});
  return true;
}

// Who is known to hold all sums of the attempt.
std::vector<MemberId> Pipeline::Holders() const {
  std::vector<MemberId> holders;
  for (const Member& member : job_->members.all()) {
    const std::uint32_t slot = member.id.worker.value;
    if (member.live() &&
        (provisional_->applied[slot] || provisional_->asked[slot] == Asked::kYes)) {
      holders.push_back(member.id);
    }
  }
  return holders;
}

void Pipeline::SendToHolder(Member& member, const MemberId& holder) {
  ProvisionalRound& round = *provisional_;
  const std::uint32_t slot = member.id.worker.value;
  job_->Send(member, TakeSums{round.commit, holder});
  round.takes_from[slot] = holder;
  // With it no promise stands. Should the holder go, it is asked anew.
  if (round.asked[slot] == Asked::kWaiting) --round.answers_missing;
  if (round.asked[slot] != Asked::kYes) round.asked[slot] = Asked::kUnasked;
  if (std::find(round.holders.begin(), round.holders.end(), holder) == round.holders.end()) {
    round.holders.push_back(holder);
  }
}

// False: nobody is known to hold all sums of the attempt.
bool Pipeline::TakeFromHolders() {
  ProvisionalRound& round = *provisional_;
  const std::vector<MemberId> holders = Holders();
  if (holders.empty()) return false;
  round.fencing = round.stalled = false;
  round.holders.clear();
  for (const MemberId& id : round.commit.members) {
    Member* member = job_->members.Find(id);
    if (member == nullptr || !member->exchanging() || member->next > round.commit.round) continue;
    auto holder = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
      return h == id || !job_->members.Broken(h.worker, id.worker);
    });
    if (holder == holders.end()) {
      holder = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
        return job_->members.Mending(h.worker, id.worker);
      });
    }
    if (holder != holders.end()) {
      SendToHolder(*member, round.asked[id.worker.value] == Asked::kYes ? id : *holder);
    } else if (member->live()) {
      // Perhaps it reaches somebody who has applied them by then. Who is catching up anyway copies
      // the slices anew whose sums it does not get.
      job_->PutBehind(*member, "it reaches nobody that holds the sums");
    }
  }
  if (!round.holders.empty()) {
    job_->Log(LogLevel::kInfo, "round {} attempt {}: worker {} holds all sums", round.commit.round,
              round.commit.attempt, round.holders.front().worker);
  }
  return true;
}

// A holder that was named may turn out not to be reached: the sums are taken from another one, or
// the parameters from whoever has applied them. The one that tries may never find out itself: what
// it asked of a stopped peer stays asked.
void Pipeline::AvoidBrokenHolders() {
  ProvisionalRound& round = *provisional_;
  const std::vector<MemberId> holders = Holders();
  for (const MemberId& id : round.commit.members) {
    Member* member = job_->members.Find(id);
    const std::optional<MemberId> from = round.takes_from[id.worker.value];
    if (member == nullptr || !MustApply(*member) || !from) continue;
    if (!job_->members.Broken(id.worker, from->worker)) continue;
    const auto other = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
      return !job_->members.Broken(h.worker, id.worker);
    });
    if (other != holders.end()) {
      SendToHolder(*member, *other);
    } else if (!job_->members.Mending(id.worker, from->worker) && HeardSinceEdgeBroke(id.worker) &&
               HeardSinceEdgeBroke(from->worker)) {
      job_->PutBehind(*member,
                      fmt::format("it cannot reach worker {}, which holds the sums", from->worker));
    }
  }
}

// A live member that is past the round has copied its parameters from one that had applied it. So
// the attempt is a part of the truth, whoever still has its sums: a further one would take it back.
// Who lacks it copies as well.
bool Pipeline::StandsInParameters() {
  ProvisionalRound& round = *provisional_;
  const auto past = std::ranges::find_if(job_->members.all(), [&](const Member& member) {
    return member.live() && member.next > round.commit.round;
  });
  if (past == job_->members.all().end()) return false;
  job_->Log(LogLevel::kInfo,
            "round {} attempt {}: nobody holds its sums, but worker {} has its parameters",
            round.commit.round, round.commit.attempt, past->id.worker);
  round.fencing = round.stalled = false;
  for (Member& member : job_->members.all()) {
    if (MustApply(member)) job_->PutBehind(member, "nobody holds the sums any more");
  }
  CountToApply();
  return true;
}

void Pipeline::ResolveFailover() {
  ProvisionalRound& round = *provisional_;
  if (TakeFromHolders()) return;
  std::uint32_t answered = 0;
  for (const Asked asked : round.asked) answered += asked == Asked::kNo ? 1 : 0;
  if (answered == 0 && round.answers_missing > 0) {
    // Nobody is there to go on with; liveness will say who is lost.
    round.fence_until = job_->now + job_->bounds.Answer();
    return;
  }
  for (Member& member : job_->members.all()) {
    if (!member.live() || round.asked[member.id.worker.value] != Asked::kWaiting) continue;
    round.asked[member.id.worker.value] = Asked::kUnasked;
    job_->PutBehind(member, "it did not say in time whether it holds the sums");
  }
  round.answers_missing = 0;
  round.stalled = false;
  // Who has become level since the question was sent was not asked. What it says of its parameters
  // before its answer is heard before it is relied on.
  if (AskWhoHolds()) {
    round.fencing = true;
    round.fence_until = job_->now + job_->bounds.Answer();
    return;
  }
  if (StandsInParameters()) return;
  round.fencing = false;
  round.stalled = true;
  if (HasQuorum()) NextAttempt();
}

bool Pipeline::HasLost(const ProvisionalRound& round, const MemberId& id) const {
  const Member* member = job_->members.Find(id);
  return member == nullptr || !member->live() ||
         std::find(round.been_out.begin(), round.been_out.end(), id) != round.been_out.end();
}

void Pipeline::NextAttempt() {
  for (const Member& member : job_->members.all()) {
    LOCKSTEP_CHECK(!member.live() || member.next <= provisional_->commit.round,
                   "worker {} has round {}, which is to be tried again", member.id.worker,
                   provisional_->commit.round);
  }
  ProvisionalRound round = std::move(*provisional_);
  provisional_.reset();
  round.stalled = false;
  round.commit.attempt = round.commit.attempt.Next();
  round.attempts.push_back({round.commit.attempt, failover_why_});
  round.extensions = 0;
  votes_.Forget(round.commit.round);
  // New owners fetch pieces anew: only a live contributor can serve them.
  std::erase_if(round.parts, [this, &round](const policies::PartChoice& choice) {
    return HasLost(round, round.books.Share(choice.worker)->member);
  });
  if (round.parts.empty()) return ReopenRound(std::move(round));
  round.commit.owners =
      weights_.Choose(round.commit.owners.version + 1,
                      EligibleFor(round.commit.round.Next(), false), job_->members);
  job_->Log(LogLevel::kInfo, "round {}: attempt {} over {} parts", round.commit.round,
            round.commit.attempt, round.parts.size());
  MakeCommit(std::move(round), /*first=*/false);
}

// No contribution is left, so there is nothing to commit: the round is computed again, by whoever
// is live.
void Pipeline::ReopenRound(ProvisionalRound round) {
  job_->Log(LogLevel::kWarning, "round {}: no contribution is left, it is computed again",
            round.commit.round);
  *sampler_ = round.before_settle;
  --updates_;
  open_.emplace(std::move(round.books));
  open_plan_ = std::move(round.plan);
  open_->attempt = round.commit.attempt;
  open_->owners = round.commit.owners;
  std::vector<WorkerId> gone;
  for (const WorkerShare& share : open_->shares()) {
    if (HasLost(round, share.member)) gone.push_back(share.member.worker);
  }
  for (const WorkerId worker : gone) open_->Remove(worker);
  for (const Member& member : job_->members.all()) open_->NoteApplied(member, job_->now);
  earlier_attempts_ = std::move(round.attempts);
  PlanAnew();
}

}  // namespace lockstep::coordinator
