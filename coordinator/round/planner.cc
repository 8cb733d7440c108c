// Who computes what in the next round, and who owns.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "coordinator/round/pipeline.h"

namespace lockstep::coordinator {
namespace {

// Those that have contributed to one of the two rounds before this one.
bool ContributedLately(const Member& member, RoundId round) {
  return member.contributed && member.contributed->value + 2 >= round.value;
}

}  // namespace

std::vector<MemberId> Pipeline::EligibleFor(RoundId round, bool exact) const {
  std::vector<MemberId> level;
  std::vector<MemberId> lately;
  std::vector<MemberId> live;
  // Who is to leave gets nothing any more, unless nobody else is there.
  const bool all_leave = std::ranges::none_of(
      job_->members.all(), [](const Member& m) { return m.live() && !m.draining; });
  for (const Member& member : job_->members.all()) {
    if (!member.live() || (member.draining && !all_leave)) continue;
    live.push_back(member.id);
    // Has applied the round before the last one at least.
    if (member.next.value + 1 < round.value) continue;
    level.push_back(member.id);
    if (ContributedLately(member, round)) lately.push_back(member.id);
  }
  if (exact && !lately.empty()) return lately;
  return level.empty() ? live : level;
}

std::vector<std::uint32_t> Pipeline::ShareUnits(const std::vector<MemberId>& members,
                                                std::uint32_t units) {
  std::vector<policies::WorkerView> views(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = job_->members.at(members[i].worker);
    views[i].member = member.id;
    views[i].last_heard = member.last_heard;
    views[i].unit_time_mean = member.unit_times.mean;
    views[i].unit_time_deviation = member.unit_times.deviation;
  }
  std::vector<std::uint32_t> shares = job_->policy.work->Share(views, units);
  const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  if (shares.size() == members.size() && sum == units) return shares;
  job_->Log(LogLevel::kWarning, "policy {} shared out {} units of {}; they are shared equally",
            job_->policy.name, sum, units);
  const auto count = static_cast<std::uint32_t>(members.size());
  shares.assign(count, units / count);
  for (std::uint32_t i = 0; i < units % count; ++i) ++shares[i];
  return shares;
}

// Whose work is in no part of the commit.
std::vector<WorkerId> Pipeline::Carried(const ProvisionalRound& round) const {
  std::vector<WorkerId> carried;
  for (const WorkerShare& share : round.books.shares()) {
    const WorkerId worker = share.member.worker;
    const bool counted = std::ranges::any_of(
        round.parts, [&](const policies::PartChoice& choice) { return choice.worker == worker; });
    // Who had a part skipped begins anew with the next round.
    const bool skipped = std::ranges::any_of(
        round.books.skipped, [&](const OpenRound::Skipped& part) { return part.worker == worker; });
    if (!share.queue.empty() && !counted && !skipped) carried.push_back(worker);
  }
  return carried;
}

// A whole round's, or of a relaxed round what the idle ones compute.
PlannedUnits Pipeline::PlanUnits(const ProvisionalRound* before, std::size_t eligible) {
  if (before == nullptr) return sampler_->PlanRound();
  PlannedUnits planned;
  if (eligible > 0) {
    planned = sampler_->PlanMore(std::max<std::uint64_t>(
        1, sampler_->round_samples() * eligible / (eligible + before->carried.size())));
  }
  planned.epoch = sampler_->epoch();
  planned.exact = false;
  // The numbers of the units that are carried on are taken.
  std::vector<bool> taken(planned.units.size(), false);
  for (const UnitIndex unit : before->books.UnitsOf(before->carried)) {
    if (unit.value >= taken.size()) taken.resize(unit.value + 1);
    taken[unit.value] = true;
  }
  std::uint32_t next = 0;
  for (Unit& unit : planned.units) {
    while (next < taken.size() && taken[next]) ++next;
    unit.index = UnitIndex(next++);
  }
  return planned;
}

Plan Pipeline::MakePlan(RoundId round, std::uint32_t map_version, const ProvisionalRound* before,
                        bool* exact) {
  if (newest_ && round <= *newest_) map_version = std::max(map_version, newest_version_ + 1);
  std::vector<MemberId> eligible;
  if (before != nullptr) {
    eligible = EligibleFor(round, false);
    std::erase_if(eligible, [&](const MemberId& id) {
      return std::ranges::binary_search(before->carried, id.worker);
    });
  }
  PlannedUnits planned = PlanUnits(before, eligible.size());
  *exact = planned.exact;
  if (before == nullptr) eligible = EligibleFor(round, planned.exact);
  LOCKSTEP_CHECK(!eligible.empty() || (before != nullptr && !before->carried.empty()),
                 "round {} is planned for nobody", round);
  const auto units = static_cast<std::uint32_t>(planned.units.size());
  const std::vector<std::uint32_t> shares =
      eligible.empty() ? std::vector<std::uint32_t>() : ShareUnits(eligible, units);

  // Given-back units come first, and go to those that can be trusted with them.
  std::vector<std::size_t> order(eligible.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (planned.given_back > 0) {
    std::stable_partition(order.begin(), order.end(), [&](std::size_t i) {
      return ContributedLately(job_->members.at(eligible[i].worker), round);
    });
  }
  std::vector<std::size_t> first(eligible.size());
  std::size_t at = 0;
  for (const std::size_t i : order) {
    first[i] = at;
    at += shares[i];
  }

  Plan plan;
  plan.round = round;
  plan.epoch = planned.epoch;
  plan.members = job_->members.Exchanging();
  for (std::size_t i = 0; i < eligible.size(); ++i) {
    if (shares[i] == 0) continue;
    const auto begin = planned.units.begin() + static_cast<std::ptrdiff_t>(first[i]);
    plan.assignments.push_back(
        {eligible[i], {begin, begin + static_cast<std::ptrdiff_t>(shares[i])}});
  }
  plan.owners = weights_.Choose(map_version, Responsive(EligibleFor(round, false)), job_->members);
  plan.attempt = Attempt(map_version);
  plan.relaxed = job_->policy.relaxed;
  plan.carries = before != nullptr;
  if (job_->policy.local) {
    plan.local_rate = static_cast<float>(Rate(static_cast<double>(updates_)));
  }
  return plan;
}

std::vector<MemberId> Pipeline::Responsive(const std::vector<MemberId>& members) const {
  std::vector<MemberId> heard;
  for (const MemberId& id : members) {
    if (job_->now - job_->members.at(id.worker).last_heard <= job_->timeout / 2)
      heard.push_back(id);
  }
  return heard.empty() ? members : heard;
}

// The open round begins once more, with another plan of it that says nothing of who computes what:
// all its units are to be assigned. What was computed for the plan before is void, whenever it is
// heard of.
void Pipeline::PlanAnew() {
  OwnerMap map =
      weights_.Choose(open_->owners.version + 1, EligibleFor(open_->round, false), job_->members);
  open_->PlanAnew(Attempt(map.version), job_->now);
  open_->SetOwners(map, job_->members, job_->now);
  NoteMap(open_->round, map.version);
  open_plan_.members = job_->members.Exchanging();
  open_plan_.assignments.clear();
  open_plan_.owners = std::move(map);
  open_plan_.carries = false;
  open_plan_.attempt = open_->plan;
  moved_.clear();
  look_again_ = kNever;
  owners_stale_ = false;
  ResetReceiptCheck();
  job_->Send(open_plan_.members,
             Start{StateSource::kPeers, open_plan_, job_->totals.samples_counted});
}

void Pipeline::OpenPlanned(Plan plan, bool exact) {
  open_.emplace(plan, exact, job_->members, job_->now);
  NoteMap(plan.round, plan.owners.version);
  for (const Assignment& assignment : plan.assignments) {
    job_->members.at(assignment.member.worker).last_progress = job_->now;
  }
  open_plan_ = std::move(plan);
  moved_.clear();
  earlier_attempts_.clear();
  look_again_ = kNever;
  owners_stale_ = false;
  ResetReceiptCheck();
}

}  // namespace lockstep::coordinator
