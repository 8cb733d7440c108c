// The fail-over of a committed round, for owners that are silent or lost, or a round that nobody
// applies. It finds a member that holds all sums and has the others take them there, or it leads to
// another attempt.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/sometimes.h"
#include "coordinator/round/broken_edges.h"
#include "coordinator/round/committed_round.h"

namespace lockstep::coordinator {
namespace {

bool IsOneOf(const std::vector<MemberId>& list, const MemberId& member) {
  return std::ranges::find(list, member) != list.end();
}

}  // namespace

// If somebody is known to hold all sums nobody has to be asked. Otherwise everybody is: only when
// all have promised not to apply this attempt may there be another one (I1).
void CommittedRound::BeginFailover(const std::string& why) {
  if (closed() || failing_over() || to_apply_ == 0) return;
  failover_reason_ = why;
  job_->Log(LogLevel::kWarning, "round {} attempt {}: {}", round(), commit_.attempt, why);
  Sometimes<"fail-over: begun">();
  if (TakeFromHolders()) return;
  AskWhoHolds();
  Enter(Phase::kFencing);
  fenced_at_ = job_->now();
  fence_until_ = job_->now() + job_->bounds.Answer();
}

// Asks each live member that may hold the attempt, or has it in its parameters. False: all have
// answered. A promise stands; what was answered is not asked again.
bool CommittedRound::AskWhoHolds() {
  LOCKSTEP_CHECK(sum_holders_.empty(),
                 "round {}: the holders of the sums are asked for while worker {} is one", round(),
                 sum_holders_.front().worker);
  std::vector<MemberId> asked;
  for (const Member& member : job_->members.all()) {
    // A member that was out since the commit has none of its sums.
    const bool may_hold =
        std::ranges::binary_search(commit_.members, member.id) && !IsOneOf(been_out_, member.id);
    if (!member.live() || SlotOf(member.id).answer != Answer::kUnasked) continue;
    if (!may_hold && member.next <= round()) continue;
    asked.push_back(member.id);
  }
  if (asked.empty()) return false;
  const std::uint32_t order = job_->NextOrder();
  for (const MemberId& id : asked) {
    SlotOf(id).answer = Answer::kWaiting;
    SlotOf(id).order = order;
    ++answers_missing_;
  }
  job_->Send(asked, msg::FenceAttempt{job_->start.term, round(), commit_.attempt, order});
  return true;
}

// Returns the members that are known to hold all sums of the attempt. Members that applied it hold
// the sums until the round is closed, and longer once they are named.
std::vector<MemberId> CommittedRound::SumHolders() const {
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
  // The order voids its promise. Should the holder go, it is asked anew.
  if (slot.answer == Answer::kWaiting) {
    LOCKSTEP_CHECK(answers_missing_ > 0, "round {}: an answer is awaited that is not counted",
                   round());
    --answers_missing_;
  }
  if (slot.answer != Answer::kYes) slot.answer = Answer::kUnasked;
  if (IsOneOf(sum_holders_, holder)) return;
  sum_holders_.push_back(holder);
  // It would drop others' sums when the round it has applied is closed.
  Member* named = job_->members.Find(holder);
  if (named != nullptr && named->next > round()) {
    job_->Send(*named, msg::TakeSums{commit_, holder});
  }
}

// False: nobody is known to hold all sums of the attempt. A member that holds the sums is the truth
// (I1). Each member is sent to a holder that it reaches; who reaches none cannot follow, and
// catches up from whoever has applied the round by then.
bool CommittedRound::TakeFromHolders() {
  const std::vector<MemberId> holders = SumHolders();
  if (holders.empty()) return false;
  sum_holders_.clear();
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
      if (holder != holders.end()) Sometimes<"fail-over: a holder over an edge that mends">();
    }
    if (holder != holders.end()) {
      SendToHolder(*member, SlotOf(id).answer == Answer::kYes ? id : *holder);
    } else if (member->live()) {
      Sometimes<"fail-over: a member reaches no holder">();
      // Perhaps it reaches somebody who has applied them by then. A member that is catching up
      // anyway copies the slices whose sums it misses.
      job_->PutBehind(*member, "it reaches nobody that holds the sums");
    }
  }
  Enter(sum_holders_.empty() ? Phase::kPublishing : Phase::kFromHolders);
  if (!sum_holders_.empty()) {
    Sometimes<"fail-over: a member holds all sums">();
    moved_at_ = job_->now();
    job_->Log(LogLevel::kInfo, "round {} attempt {}: worker {} holds all sums", round(),
              commit_.attempt, sum_holders_.front().worker);
  }
  return true;
}

void CommittedRound::AvoidBrokenEdges(const std::vector<MemberId>& members,
                                      const std::vector<std::uint32_t>& broken) {
  if (barrier_) return;  // who reaches not all is evicted
  if (phase_ == Phase::kFromHolders) return AvoidBrokenHolders();
  std::vector<MemberId> lacking;
  std::ranges::copy_if(members, std::back_inserter(lacking), [&](const MemberId& id) {
    return broken[id.worker.value] > 0 && MustApply(job_->members.at(id.worker));
  });
  if (const auto edge = BrokenOnTheWay(commit_, job_->members, lacking)) {
    BeginFailover(
        fmt::format("workers {} and {} cannot reach each other", edge->first, edge->second));
  }
}

// A holder that was named may turn out not to be reached: the sums are taken from another one, or
// the parameters from whoever has applied them. The one that tries may never find out itself: what
// it asked of a stopped peer stays asked.
void CommittedRound::AvoidBrokenHolders() {
  const std::vector<MemberId> holders = SumHolders();
  for (const MemberId& id : commit_.members) {
    Member* member = job_->members.Find(id);
    const std::optional<MemberId> from = SlotOf(id).takes_from;
    if (member == nullptr || !MustApply(*member) || !from) continue;
    if (!job_->members.Broken(id.worker, from->worker)) continue;
    const auto other = std::find_if(holders.begin(), holders.end(), [&](const MemberId& h) {
      return !job_->members.Broken(h.worker, id.worker);
    });
    if (other != holders.end()) {
      Sometimes<"fail-over: another holder, as an edge broke">();
      SendToHolder(*member, *other);
    } else if (!job_->members.Mending(id.worker, from->worker) &&
               job_->HeardSinceEdgeBroke(id.worker) && job_->HeardSinceEdgeBroke(from->worker)) {
      Sometimes<"fail-over: the only holder is not reached">();
      job_->PutBehind(*member,
                      fmt::format("it cannot reach worker {}, which holds the sums", from->worker));
    }
  }
}

// A live member that is past the round has copied its parameters from one that had applied it. So
// the attempt is a part of the truth: a further one would take it back. Members that lack it copy
// as well.
bool CommittedRound::IsInParameters() {
  LOCKSTEP_CHECK(failing_over(), "round {} does not fail over", round());
  const auto past = std::ranges::find_if(job_->members.all(), [&](const Member& member) {
    return member.live() && member.next > round();
  });
  if (past == job_->members.all().end()) return false;
  Sometimes<"fail-over: in somebody's parameters, and nobody holds the sums">();
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

// Without this the round would stay stalled, and who came would join at it: past it by what it
// copied, and without the plan of the round that is open.
void CommittedRound::OnReadmitted() {
  if (!failing_over()) return;
  Sometimes<"fail-over: settled by a member that was readmitted">();
  const bool stands = IsInParameters();
  LOCKSTEP_CHECK(stands, "I1: nobody is past round {}, and a member was readmitted for it",
                 round());
}

void CommittedRound::GiveUp(const std::string& why) {
  LOCKSTEP_CHECK(!closed() && sum_holders_.empty() && answers_missing_ == 0,
                 "round {} is given up while somebody may hold it", round());
  failover_reason_ = why;
  Sometimes<"fail-over: given up, as nobody live has the round">();
  job_->Log(LogLevel::kWarning, "round {} attempt {}: {}", round(), commit_.attempt, why);
  Enter(Phase::kStalled);
}

// All have answered, or the time is over. A member that did not answer might hold the sums and
// apply them: it is put behind, so that it copies whatever becomes the truth. If not even one
// answered, it may well be the coordinator that is cut off, and nothing is decided.
CommittedRound::Outcome CommittedRound::ResolveFailover() {
  LOCKSTEP_CHECK(failing_over(), "round {} does not fail over", round());
  if (TakeFromHolders()) return Outcome::kGoesOn;
  const auto answered = std::ranges::count(slots_, Answer::kNo, &Slot::answer);
  if (answered == 0 && answers_missing_ > 0 && job_->now() < fenced_at_ + job_->bounds.Stuck()) {
    Sometimes<"fail-over: nobody answers yet">();
    // No member is there to go on with; liveness will say who is lost. A member that is heard but
    // does not answer in all that time never will.
    fence_until_ = job_->now() + job_->bounds.Answer();
    return Outcome::kGoesOn;
  }
  for (Member& member : job_->members.all()) {
    if (!member.live() || SlotOf(member.id).answer != Answer::kWaiting) continue;
    SlotOf(member.id).answer = Answer::kUnasked;
    --answers_missing_;
    Sometimes<"fail-over: an answer is late">();
    job_->PutBehind(member, "it did not say in time whether it holds the sums");
  }
  // A member that became level after the question was sent was not asked. Its report about its
  // parameters comes before its answer, so it is heard before the answer counts.
  if (AskWhoHolds()) {
    Sometimes<"fail-over: a member that became level is asked">();
    Enter(Phase::kFencing);
    fence_until_ = job_->now() + job_->bounds.Answer();
    return Outcome::kGoesOn;
  }
  if (IsInParameters()) return Outcome::kGoesOn;
  for (const Member& member : job_->members.all()) {
    const bool may_hold =
        std::ranges::binary_search(commit_.members, member.id) && !IsOneOf(been_out_, member.id);
    LOCKSTEP_CHECK(!member.live() || !may_hold || SlotOf(member.id).answer == Answer::kNo,
                   "I1: worker {} has not promised that it does not apply round {}",
                   member.id.worker, round());
  }
  Sometimes<"fail-over: all have promised not to apply">();
  Enter(Phase::kStalled);
  return Outcome::kNobodyHolds;
}

}  // namespace lockstep::coordinator
