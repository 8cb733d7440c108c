// Who owns. Before the commit: owners that do not send receipts lose their slices, and edges that
// are broken are avoided.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {
namespace {

std::string Names(const std::vector<WorkerId>& workers) {
  std::string names;
  for (const WorkerId worker : workers)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", worker);
  return names;
}

}  // namespace

bool Pipeline::HeardSince(WorkerId worker, Time t) const {
  const Member& member = job_->members.at(worker);
  return member.live() && member.last_heard >= t;
}

void Pipeline::PingAll(const std::vector<WorkerId>& workers) {
  for (const WorkerId worker : workers) {
    const Member& member = job_->members.at(worker);
    if (member.connected()) job_->Ping(member);
  }
}

void Pipeline::ResetReceiptCheck() {
  receipt_pinged_at_.reset();
  receipts_from_ = job_->now;
  receipt_patience_ = job_->bounds.Receipts();
}

// The deadline runs from the last part that was sealed: only then can receipts be all that is
// missing. At half of it those concerned are asked for a sign of life.
Time Pipeline::NextReceiptCheck() const {
  if (!open_ || open_->undelivered == 0 || !open_->last_sealed) return kNever;
  const Time from = std::max(*open_->last_sealed, receipts_from_);
  if (!receipt_pinged_at_) return from + receipt_patience_ / 2;
  // However late the first look was: who was asked has the other half of the time to answer.
  return std::max(from + receipt_patience_, *receipt_pinged_at_ + receipt_patience_ / 2);
}

void Pipeline::CheckReceipts() {
  if (NextReceiptCheck() > job_->now) return;
  if (!receipt_pinged_at_) {
    receipt_pinged_at_ = job_->now;
    std::vector<WorkerId> concerned;
    for (const OwnerShare& share : open_->owners.owners) concerned.push_back(share.owner.worker);
    PingAll(concerned);
    if (NextReceiptCheck() > job_->now) return;
  }
  const Time pinged_at = *receipt_pinged_at_;
  receipt_pinged_at_.reset();
  receipts_from_ = job_->now;
  OpenRound::Hypothetical delivered;
  open_->ViewIfDelivered(job_->now, job_->start.workers, &delivered);
  if (!open_->orphans.empty() || !job_->policy.closing->Judge(delivered.view).close) return;
  const std::vector<WorkerId> silent = BlameForReceipts(pinged_at);
  if (silent.empty() || silent.size() == open_->owners.owners.size()) {
    // It is slow for everybody.
    receipt_patience_ =
        std::min(receipt_patience_ * 2, std::max(job_->timeout, job_->bounds.Receipts()));
    return;
  }
  ReplaceOwners(silent, fmt::format("no receipts from worker {}", Names(silent)));
}

// A receipt takes two: it is the owner's fault when it is silent, or when it misses most of what
// others have; not when the contributor is the silent one.
std::vector<WorkerId> Pipeline::BlameForReceipts(Time pinged_at) const {
  std::vector<std::uint32_t> misses(job_->members.slots());
  std::uint32_t parts = 0;
  for (const WorkerShare& share : open_->shares()) {
    const WorkerId contributor = share.member.worker;
    const bool reachable = HeardSince(contributor, pinged_at);
    for (std::size_t i = 0; i < share.parts.size(); ++i) {
      if (share.parts[i].is_void) continue;
      parts += reachable ? 1 : 0;
      if (share.parts[i].delivered_at) continue;
      const PartIndex part(static_cast<std::uint8_t>(i));
      for (const WorkerId owner : open_->delivery.Missing(contributor, part)) {
        if (reachable || !HeardSince(owner, pinged_at)) ++misses[owner.value];
      }
    }
  }
  std::vector<WorkerId> silent;
  std::vector<WorkerId> slow;
  for (const OwnerShare& share : open_->owners.owners) {
    const WorkerId owner = share.owner.worker;
    if (misses[owner.value] == 0) continue;
    if (!HeardSince(owner, pinged_at)) silent.push_back(owner);
    if (2 * misses[owner.value] > parts) slow.push_back(owner);
  }
  if (!silent.empty()) return silent;
  return 2 * slow.size() <= open_->owners.owners.size() ? slow : std::vector<WorkerId>{};
}

// Of the open round, which is about to be committed.
void Pipeline::NoteResponses() {
  std::vector<LinkResponse> responses = open_->Responses(job_->now);
  for (LinkResponse& response : responses) {
    response.control = job_->members.at(response.member.worker).response.mean;
  }
  for (const OwnerChange& change : weights_.OnRoundDelivered(responses)) {
    job_->Log(LogLevel::kInfo, "worker {} {}", change.worker,
              change.owns ? "may own again: its link is as quick as before"
                          : "owns nothing for now: its link is slow");
  }
}

void Pipeline::ReplaceOwners(const std::vector<WorkerId>& silent, const std::string& why) {
  for (const WorkerId worker : silent) job_->members.at(worker).owner_on_trial = open_->round;
  const auto usable = [&](const MemberId& id) {
    return std::find(silent.begin(), silent.end(), id.worker) == silent.end();
  };
  std::vector<MemberId> candidates;
  for (const OwnerShare& share : open_->owners.owners) {
    const Member* member = job_->members.Find(share.owner);
    if (member != nullptr && member->live() && usable(share.owner) &&
        job_->members.BrokenEdges(share.owner.worker) == 0) {
      candidates.push_back(share.owner);
    }
  }
  if (candidates.empty()) {
    for (const MemberId& id : EligibleFor(open_->round, false)) {
      if (usable(id)) candidates.push_back(id);
    }
  }
  owners_stale_ = candidates.empty();  // until somebody comes
  if (owners_stale_) return;
  OwnerMap map = weights_.Choose(open_->owners.version + 1, candidates, job_->members);
  job_->Log(LogLevel::kInfo, "round {}: new owners, {}", open_->round, why);
  open_->SetOwners(map, job_->members, job_->now);
  NoteMap(open_->round, map.version);
  open_plan_.owners = map;
  ResetReceiptCheck();
  job_->Send(job_->members.Exchanging(), NewOwners{open_->round, std::move(map)});
}

// Each member needs each owner, so an owner must have no broken edge to a member. Where nobody is
// whole and no link can be made again, the member that misses the most live ones leaves (tie: who
// is not live itself, then the highest id), so never the last one that has the parameters; it comes
// back as anybody does, once it reaches all.
void Pipeline::AvoidBrokenEdges() {
  if (!job_->members.AnyBroken()) return;
  const std::vector<MemberId> members = job_->members.Exchanging();
  std::vector<std::uint32_t> edges(job_->members.slots());
  const MemberId* worst = nullptr;
  std::pair<std::uint32_t, bool> most;
  bool heard = true;  // all who are concerned have been, since the last edge broke
  bool mending = false;
  for (const MemberId& id : members) {
    const std::uint32_t count = job_->members.BrokenEdges(id.worker);
    edges[id.worker.value] = count;
    if (count == 0) continue;
    heard = heard && HeardSinceEdgeBroke(id.worker);
    mending = mending || job_->members.AnyMending(id.worker);
    std::uint32_t to_live = 0;
    for (const Member& other : job_->members.all()) {
      to_live += other.live() && job_->members.Broken(id.worker, other.id.worker) ? 1 : 0;
    }
    const std::pair misses(to_live, !job_->members.at(id.worker).live());
    if (worst != nullptr && misses < most) continue;
    worst = &id;
    most = misses;
  }
  if (worst == nullptr) return;
  const RoundId round = open_ ? open_->round : provisional_->commit.round;
  const std::vector<MemberId> eligible = EligibleFor(round, false);
  const auto whole = [&edges](const MemberId& id) { return edges[id.worker.value] == 0; };
  if (std::none_of(eligible.begin(), eligible.end(), whole)) {
    if (heard && !mending) {
      job_->Expel(job_->members.at(worst->worker), "it and other workers cannot reach each other");
    }
    return;
  }
  if (open_ && !failing_over()) {
    const auto& owners = open_->owners.owners;
    if (!std::all_of(owners.begin(), owners.end(),
                     [&](const OwnerShare& share) { return whole(share.owner); })) {
      ReplaceOwners({}, fmt::format("worker {} and others cannot reach each other", worst->worker));
    }
  }
  if (!provisional_ || provisional_->closed) return;
  if (!provisional_->holders.empty()) return AvoidBrokenHolders();
  for (const MemberId& id : members) {
    if (edges[id.worker.value] == 0 || !MustApply(job_->members.at(id.worker))) continue;
    for (const OwnerShare& share : provisional_->commit.owners.owners) {
      if (!job_->members.Broken(id.worker, share.owner.worker)) continue;
      return BeginFailover(
          fmt::format("workers {} and {} cannot reach each other", id.worker, share.owner.worker));
    }
  }
}

}  // namespace lockstep::coordinator
