#include "coordinator/round/open_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "coordinator/round/broken_edges.h"
#include "coordinator/round/not_finite.h"
#include "coordinator/round/part_times.h"

namespace lockstep::coordinator {
namespace {

// For people.
std::string Names(const std::vector<WorkerId>& workers) {
  std::string names;
  for (const WorkerId worker : workers)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", worker);
  return names;
}

}  // namespace

// Every worker with units gets the usual time from now on to begin them.
OpenRound::OpenRound(Job* job, Planner* planner, PlannedRound planned)
    : job_(job),
      planner_(planner),
      work_(std::move(planned.plan), planned.exact, planned.costs, job->members, job->now()),
      stopped_before_(job->stopped()),
      moves_(job, &work_),
      receipts_(job) {
  for (const Assignment& assignment : work_.plan().assignments) {
    job_->members.at(assignment.member.worker).last_progress = job_->now();
  }
}

OpenRound::OpenRound(Job* job, Planner* planner, RoundWork work,
                     std::vector<AttemptRecord> attempts, std::uint32_t owners_version)
    : job_(job),
      planner_(planner),
      work_(std::move(work)),
      stopped_before_(job->stopped()),
      attempts_(std::move(attempts)),
      moves_(job, &work_),
      receipts_(job) {
  LOCKSTEP_CHECK(!attempts_.empty(), "round {} is open again and was never tried", round());
  for (const Member& member : job_->members.all()) NoteApplied(member);
  PlanAnew(owners_version + 1);
}

// The round begins once more, with another plan of it that says nothing of who computes what: all
// its units are to be assigned. Work for the plan before is void, whenever a report of it arrives.
void OpenRound::PlanAnew(std::uint32_t owners_version) {
  work_.PlanAnew(planner_->ChooseOwners(round(), owners_version), job_->members.Exchanging(),
                 job_->members, job_->now());
  LOCKSTEP_CHECK(work_.undelivered() == 0,
                 "round {}: {} parts of a plan that is void are waited for", round(),
                 work_.undelivered());
  moves_.Reset();
  // A rule's wait ends with the plan; the rule is asked about the new one.
  look_again_ = kNever;
  owners_stale_ = false;
  receipts_.Reset();
  job_->Send(work_.plan().members,
             msg::Start{StateSource::kPeers, work_.plan(), job_->closed().totals.samples_counted});
}

// The first attempt's reason is the verdict that closed the round; when the round was open before,
// its attempts have been counted already, and this is the last of them.
std::vector<AttemptRecord> OpenRound::TakeAttempts(const std::string& verdict) {
  if (attempts_.empty()) attempts_.push_back({attempt(), verdict});
  return std::move(attempts_);
}

// --- what workers say

// Liveness asks when a worker last finished a unit. A report without news is no evidence of
// progress, so that a hung worker that still talks is found.
Status OpenRound::OnProgress(Member& from, const msg::Progress& message) {
  if (!work_.Concerns(from.id, message.round, message.plan)) return {};
  const policies::WorkerView* view = work_.WorkerViewOf(from.id.worker);
  const std::uint32_t done = view == nullptr ? 0 : view->units_done;
  if (Status status = work_.OnProgress(from.id, message, job_->now()); !status) return status;
  if (view != nullptr && view->units_done > done) from.last_progress = job_->now();
  return {};
}

// Here a worker's history grows: how long its units take, how long its messages are on their way.
Status OpenRound::OnSealed(Member& from, const msg::Sealed& message) {
  if (!work_.Concerns(from.id, message.round, message.plan)) return {};
  from.clock.Guess(job_->now() + job_->stopped(), message.sealed_ns);
  from.response.Add(job_->now() + job_->stopped() - from.clock.ToOurs(message.sealed_ns));
  msg::Sealed sealed = message;
  BoundTimes(from.clock, GivenAt(from.id.worker), job_->now() + job_->stopped(), &sealed);
  if (Status status = work_.OnSealed(from, sealed, job_->now()); !status) return status;
  if (work_.metric_left_out() && !std::exchange(job_->said_metric_left_out.Write(), true)) {
    job_->Log(LogLevel::kWarning,
              "round {}: metric {} of worker {} is left out: all workers together may have {}, and "
              "the first ones count",
              round(), *work_.metric_left_out(), from.id.worker, kMaxMetrics);
  }
  if (!std::isfinite(sealed.loss_sum) && work_.Part(from.id.worker, sealed.part) != nullptr) {
    NoteNotFinite(from, sealed);
  }
  from.last_progress = job_->now();
  NoteTimes(sealed, work_, &from);
  work_.SyncHistory(from);
  return {};
}

// The time from which the worker can have computed, by the clock that runs on while this process
// stands. Work that goes on from a round before was given out when it had stopped for less.
Time OpenRound::GivenAt(WorkerId worker) const {
  const WorkerShare* share = work_.Share(worker);
  const policies::WorkerView* view = work_.WorkerViewOf(worker);
  const bool carried = view != nullptr && view->base < round();
  return (share == nullptr ? work_.started() : share->since) +
         (carried ? Duration{} : stopped_before_);
}

// The worker has said so by its loss.
void OpenRound::NoteNotFinite(const Member& from, const msg::Sealed& message) {
  const std::string what = NotFiniteText(*job_, work_, from.id.worker, message.units);
  if (!MayLeaveOut(job_, what)) return;
  work_.Skip(from.id.worker, message.part);
  if (work_.SamplesWanted() == 0) {
    job_->Fail(what + ", and so is every other contribution to the round");
  }
}

// Receipts are of a round, not of a plan: their map version tells which owner map they are for.
Status OpenRound::OnReceipts(const Member& from, const msg::Receipts& message) {
  if (message.round != round()) return {};
  return work_.OnReceipts(from.id, message, job_->now());
}

// The answer to a fence says that the worker holds nothing any more: only then may it be given
// units of this round again. The answer to a revoke names the units that come back.
Status OpenRound::OnRevoked(const Member& from, const msg::Revoked& message) {
  if (message.round != round()) return {};
  if (message.fenced) {
    work_.NoteFenceAnswer(from.id, message.order);
    return {};
  }
  auto back = work_.OnRevoked(from.id, message);
  if (!back) return back.error();
  moves_.Reassign(from.id.worker, *back);
  return {};
}

// Its units are others' from now on, sealed or not: what it has computed cannot be fetched from it
// any more. An owner that is out is replaced when the round is looked at next.
void OpenRound::OnOut(const MemberId& member) {
  const WorkerId worker = member.worker;
  const policies::WorkerView* view = work_.WorkerViewOf(worker);
  if (view != nullptr && !view->finished_at) {
    Member& slot = job_->members.at(worker);
    slot.blocked_by_loss += job_->now() - std::max(work_.started(), slot.last_progress);
    if (view->units_given > 0) moves_.NoteGone(worker);
  }
  work_.Remove(worker);
  const bool holds = std::ranges::any_of(work_.owners().holders, [&](const ShardHolders& shard) {
    return std::ranges::find(shard.members, member) != shard.members.end();
  });
  owners_stale_ = owners_stale_ || holds || work_.delivery().IsOwner(worker);
}

// --- closing

policies::RoundView OpenRound::View() const {
  policies::RoundView view = work_.View(job_->now(), job_->CountedOn());
  if (view.exact) view.idle += moves_.Idle(view.with_units);
  return view;
}

void OpenRound::PlaceUnassigned() {
  work_.TakeBackLeftOut();
  if (work_.unassigned().empty() || moves_.Place(View())) return;
  job_->Log(LogLevel::kInfo, "round {}: no worker has a part left, so it is computed again",
            round());
  PlanAnew(work_.owners().version + 1);
  PlaceUnassigned();
}

// The order matters: changes of the round itself come before the policy sees it, so that its
// verdict is about the round as it will stay.
std::optional<policies::ClosingVerdict> OpenRound::Advance(Time may_close_from) {
  if (owners_stale_) ReplaceOwners({}, "an owner is out");
  moves_.FenceUnanswered();
  moves_.FenceAway();
  PlaceUnassigned();
  return AskPolicy(may_close_from);
}

// The work rule may move and fence before the closing rule looks. A policy that wants to look again
// at once would keep the coordinator busy, so a millisecond is the least.
std::optional<policies::ClosingVerdict> OpenRound::AskPolicy(Time may_close_from) {
  const policies::RoundView view = View();
  const policies::WorkVerdict work = job_->policy().work->Judge(view);
  moves_.CarryOut(work);
  policies::ClosingVerdict closing =
      job_->policy().closing->Judge(work.moves.empty() && work.fence.empty() ? view : View());
  look_again_ = std::min(work.look_again, closing.look_again);
  if (look_again_ <= job_->now()) look_again_ = job_->now() + std::chrono::milliseconds(1);
  if (closing.cut) moves_.RevokeNotBegun();
  if (closing.close && may_close_from > job_->now()) {
    look_again_ = std::min(look_again_, may_close_from);
    return std::nullopt;
  }
  if (!closing.close || !CanCommit(&closing)) {
    CheckReceipts();
    return std::nullopt;
  }
  LOCKSTEP_CHECK(job_->members.CountPresent() >= job_->min_workers(),
                 "I5: {} members commit round {}", job_->members.CountPresent(), round());
  for (const policies::WorkerView& worker : view.workers) {
    NoteUnfinishedRun(worker, round(), &job_->members);
  }
  // Rules learn from rounds that were committed, never from what was only seen.
  job_->policy().work->OnCommitted(View());
  if (job_->policy().runs) job_->policy().runs->OnCommitted(View());
  job_->policy().closing->OnCommitted(View());
  if (work_.owners().direct()) planner_->NoteResponses(work_);
  return closing;
}

// Checks whether the verdict can be carried out; sorts its parts into the order of summation (I3).
bool OpenRound::CanCommit(policies::ClosingVerdict* verdict) {
  std::vector<policies::PartChoice>& parts = verdict->parts;
  if (!work_.unassigned().empty() || parts.empty()) return false;
  std::uint64_t samples = 0;
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return std::tie(a.worker, a.part) < std::tie(b.worker, b.part);
  });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const SealedPart* part = parts[i].worker.value < job_->members.slots()
                                 ? work_.Part(parts[i].worker, parts[i].part)
                                 : nullptr;
    // A rule may err; what cannot be summed as it says is not summed in another way.
    const bool twice =
        i > 0 && parts[i].worker == parts[i - 1].worker && parts[i].part == parts[i - 1].part;
    if (part == nullptr || !part->delivered_at || twice) return false;
    if (!std::isfinite(parts[i].weight) || parts[i].weight <= 0) {
      if (!said_weight_refused_) {
        job_->Log(LogLevel::kWarning,
                  "round {}: policy {} gives worker {} the weight {}, which is not positive: "
                  "the verdict is ignored",
                  round(), job_->policy().name, parts[i].worker, parts[i].weight);
      }
      said_weight_refused_ = true;
      return false;
    }
    // A contributor has the previous round whole, and this commit closes it. In a relaxed round a
    // contribution does not prove that.
    if (work_.relaxed() && job_->members.at(parts[i].worker).next < round()) return false;
    samples += part->samples;
  }
  LOCKSTEP_CHECK(samples <= work_.SamplesWanted() || work_.relaxed(),
                 "I2: round {} would count {} samples of {}", round(), samples,
                 work_.SamplesWanted());
  if (work_.exact() && samples < work_.SamplesWanted()) return false;
  return job_->HasQuorum();
}

// I6: what others owe has a time here; what nobody owes is looked at with the next event.
Time OpenRound::NextDeadline() const {
  return std::min({look_again_, receipts_.Next(work_), moves_.NextDeadline()});
}

// The policy's own words are used where the policy waits.
std::string OpenRound::Waiting() const {
  if (!work_.unassigned().empty()) {
    return fmt::format("{} units of round {} wait for a worker that can take them",
                       work_.unassigned().size(), round());
  }
  policies::RoundView view = View();
  view.explain = true;
  return job_->policy().closing->Judge(view).reason + job_->AwayText();
}

// --- owners that do not send receipts lose their slices, and edges that are broken are avoided

// A silent owner's slices go to others, which fetch what they lack.
void OpenRound::CheckReceipts() {
  const ReceiptWatch::Decision decision = receipts_.Look(work_);
  for (const WorkerId worker : decision.ping) job_->Ping(worker);
  if (decision.blamed.empty()) return;
  ReplaceOwners(decision.blamed, fmt::format("no receipts from worker {}", Names(decision.blamed)));
}

// The owners that are left keep what can be kept: who has receipts already need not fetch anew.
// Others are taken only when none of them is usable.
void OpenRound::ReplaceOwners(const std::vector<WorkerId>& silent, const std::string& why,
                              const std::vector<WorkerId>& avoided) {
  for (const WorkerId worker : silent) job_->members.at(worker).owner_trial.Fail(round());
  const auto usable = [&](const MemberId& id) {
    return std::ranges::find(silent, id.worker) == silent.end() &&
           std::ranges::find(avoided, id.worker) == avoided.end();
  };
  std::vector<MemberId> candidates;
  for (const OwnerShare& share : work_.owners().owners) {
    const Member* member = job_->members.Find(share.owner);
    if (member != nullptr && member->live() && usable(share.owner) &&
        job_->members.BrokenEdges(share.owner.worker) == 0) {
      candidates.push_back(share.owner);
    }
  }
  if (candidates.empty()) {
    for (const MemberId& id : planner_->EligibleFor(round(), false)) {
      if (usable(id)) candidates.push_back(id);
    }
  }
  owners_stale_ = candidates.empty();  // until somebody comes
  if (owners_stale_) return;
  // All receipts are void with it, and are sent again under the new version: an owner that stays
  // has its pieces and only says so.
  OwnerMap map = planner_->ChooseOwners(round(), work_.owners().version + 1, candidates);
  // Where somebody is gone sums are passed on by those who are left; where somebody does not reach
  // another one, or is silent, that one may be on the way.
  if (silent.empty() && avoided.empty()) map.algorithm = work_.owners().algorithm;
  LOCKSTEP_CHECK(
      !map.holders.empty() || std::ranges::all_of(map.owners, usable, &OwnerShare::owner),
      "round {}: a silent owner owns again", round());
  job_->Log(LogLevel::kInfo, "round {}: new owners, {}", round(), why);
  work_.SetOwners(map, job_->members, job_->now());
  receipts_.Reset();
  job_->Send(job_->members.Exchanging(), msg::NewOwners{round(), std::move(map)});
}

void OpenRound::AvoidBrokenEdges(std::span<const std::uint32_t> broken, const std::string& why) {
  const std::vector<WorkerId> avoided = OwnersToAvoid(work_.owners(), broken);
  if (!avoided.empty()) ReplaceOwners({}, why, avoided);
}

// A member that is out takes its share along. Only owners may stay for a while, until another
// member can take their place.
void OpenRound::CheckInvariants() const {
  work_.CheckInvariants();
  receipts_.CheckInvariants();
  moves_.CheckInvariants();
  LOCKSTEP_CHECK(!work_.owners().owners.empty(), "round {}: nobody owns anything", round());
  for (const WorkerShare& share : work_.shares()) {
    const Member* member = job_->members.Find(share.member);
    LOCKSTEP_CHECK(member != nullptr && member->live(),
                   "round {}: worker {} has a share and is out", round(), share.member.worker);
  }
  for (const OwnerShare& share : work_.owners().owners) {
    const Member* member = job_->members.Find(share.owner);
    LOCKSTEP_CHECK(owners_stale_ || (member != nullptr && member->live()),
                   "round {}: worker {} owns and is out", round(), share.owner.worker);
  }
}

}  // namespace lockstep::coordinator
