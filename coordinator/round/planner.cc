#include "coordinator/round/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/compatibility.h"
#include "base/routes.h"
#include "base/sometimes.h"
#include "coordinator/round/cost_plan.h"
#include "policies/registry.h"

namespace lockstep::coordinator {
namespace {

// Members that have contributed to one of the two rounds before this one. One round is not enough:
// a rule that leaves one worker out each round would never rely on that one otherwise.
bool ContributedLately(const Member& member, RoundId round) {
  return member.contributed && member.contributed->value + 2 >= round.value;
}

// A text for people: "worker 0 (2), 3 (1)", each with the size of its share beside the others'.
std::string SharesText(const std::vector<OwnerShare>& shares) {
  constexpr std::size_t kMost = 16;
  std::string text = "worker";
  for (std::size_t i = 0; i < std::min(shares.size(), kMost); ++i) {
    text += fmt::format("{} {} ({})", i == 0 ? "" : ",", shares[i].owner.worker, shares[i].weight);
  }
  if (shares.size() > kMost) text += fmt::format(" and {} more", shares.size() - kMost);
  return text;
}

// The links in this round of all members that have sealed a part or own; `control` is left open. An
// owner's response is the lower quartile over its contributors: a receipt takes two, and a few slow
// contributors say nothing about the owner. A contributor that is still not delivered counts with
// the time that has passed, so that who never answers does not look quick.
std::vector<LinkResponse> LinkResponses(const RoundWork& work, Time now) {
  const PartIndex first(0);
  std::vector<LinkResponse> responses;
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<std::size_t> at(work.slots(), kNone);  // in `responses`, by slot
  std::vector<WorkerId> missing;
  std::size_t sealed = 0;
  for (const WorkerShare& share : work.shares()) {
    const SealedPart* part = work.Part(share.member.worker, first);
    if (part == nullptr) continue;
    LOCKSTEP_CHECK(part->delivered_at.value_or(now) >= part->ready_at,
                   "a part of worker {} was delivered before it was ready", share.member.worker);
    ++sealed;
    if (!part->delivered_at) missing.push_back(share.member.worker);
    at[share.member.worker.value] = responses.size();
    responses.push_back({.member = share.member,
                         .receipts = std::nullopt,
                         .delivery = part->delivered_at.value_or(now) - part->ready_at,
                         .delivered = part->delivered_at.has_value()});
  }
  for (const OwnerShare& share : work.owners().owners) {
    const WorkerId owner = share.owner.worker;
    std::vector<Duration> late = work.ReceiptDelays(owner);
    for (const WorkerId contributor : missing) {
      if (work.delivery().Lacks(owner, contributor, first)) {
        late.push_back(now - work.Part(contributor, first)->ready_at);
      }
    }
    // The others are mapped with it: received when ready, which is sooner than all of `late`.
    const std::size_t all =
        std::max(late.size(), sealed - (work.Part(owner, first) != nullptr ? 1 : 0));
    if (all == 0) continue;
    const std::size_t at_once = all - late.size();
    Duration response_time{};
    if (const std::size_t quartile = (all - 1) / 4; quartile >= at_once) {
      const auto place = late.begin() + static_cast<std::ptrdiff_t>(quartile - at_once);
      std::nth_element(late.begin(), place, late.end());
      response_time = *place;
    }
    std::size_t& response = at[owner.value];
    if (response == kNone) {
      response = responses.size();
      responses.push_back({.member = share.owner, .receipts = {}, .delivery = {}});
    }
    responses[response].receipts = response_time;
  }
  return responses;
}

// Each worker's. Fine: a unit of a worker that is several times slower is still short beside a
// round. Coarse: a lost or returned unit is a small matter.
constexpr std::uint64_t kFineUnits = 64;
constexpr std::uint64_t kCoarseUnits = 4;
// Units that are computed one by one each cost a run besides.
constexpr std::uint64_t kSingleUnits = 8;
// The most in a round: each is an entry of its record.
constexpr std::uint64_t kMostFineUnits = 4096;
constexpr std::uint64_t kMostUnits = 65536;  // as job.units: a plan names each of them

// Of a unit that is said to cost nothing, in usual ones: a time divided by it stays sane. And of
// all units, in the mean: so does a time that is multiplied by them.
constexpr double kLeastCost = 1e-3;
constexpr double kMostMeanCost = 16;

// More than so many times as many small units cost more than it is worth that they are of one size.
constexpr std::uint64_t kFarFromEven = 4;

// No fewer than so many, of one size, where there is such a number.
std::uint64_t EvenUnits(std::uint64_t batch, std::uint64_t units) {
  if (batch % units == 0) return units;
  const std::uint64_t most = batch / units;
  std::uint64_t size = 1;
  for (std::uint64_t i = 1; i * i <= batch; ++i) {
    if (batch % i != 0) continue;
    for (const std::uint64_t divisor : {i, batch / i}) {
      if (divisor <= most) size = std::max(size, divisor);
    }
  }
  return batch / size <= std::min(kFarFromEven * units, kMostUnits) ? batch / size : units;
}

std::uint32_t CountUnits(const StartParameters& start, bool fine, const RunBound& bound) {
  const JobSection& job = start.config.job;
  const PolicySection& policy = start.config.policy;
  const bool singly = bound.units == 1;
  const std::uint64_t coarse =
      start.workers *
      (policy.local() ? std::max<std::uint64_t>(kCoarseUnits, policy.local_steps) : kCoarseUnits);
  std::uint64_t units = job.units;
  if (units == 0) {
    const std::uint64_t each = singly ? kSingleUnits : kFineUnits;
    units = fine ? std::max(std::min(each * start.workers, kMostFineUnits), coarse) : coarse;
    if (bound.samples > 0) {
      units = std::max(units, (job.global_batch + bound.samples - 1) / bound.samples);
    }
    units = std::min({units, std::uint64_t{job.global_batch}, kMostUnits});
    if (singly) units = EvenUnits(job.global_batch, units);
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(units, job.global_batch));
}

// Each worker's units stand side by side, but those that were given back are dealt out to the
// trusted one by one. A worker may have been left out because its units take long: together they
// would make the next one late, and be left out again, up to the epoch's end.
std::vector<std::vector<Unit>> InOrder(const PlannedUnits& planned,
                                       const std::vector<std::uint32_t>& shares,
                                       const std::vector<bool>& trusted) {
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto others =
      std::stable_partition(order.begin(), order.end(), [&](std::size_t i) { return trusted[i]; });
  std::vector<std::vector<Unit>> queues(shares.size());
  auto at = planned.units.begin();
  const auto fresh = at + planned.given_back;
  bool room = true;
  while (at != fresh && std::exchange(room, false)) {
    for (auto i = order.begin(); i != others && at != fresh; ++i) {
      if (queues[*i].size() == shares[*i]) continue;
      queues[*i].push_back(*at++);
      room = true;
    }
  }
  for (const std::size_t i : order) {
    const auto more = static_cast<std::ptrdiff_t>(shares[i] - queues[i].size());
    LOCKSTEP_CHECK(more <= planned.units.end() - at, "I2: more units are shared out than {}",
                   planned.units.size());
    queues[i].insert(queues[i].end(), at, at + more);
    at += more;
  }
  LOCKSTEP_CHECK(at == planned.units.end(), "I2: {} units of {} are shared out",
                 at - planned.units.begin(), planned.units.size());
  return queues;
}

std::vector<std::vector<Unit>> ByCost(const PlannedUnits& planned,
                                      const std::vector<std::uint32_t>& shares,
                                      const std::vector<bool>& trusted,
                                      const std::vector<float>& costs) {
  std::vector<std::vector<Unit>> queues(shares.size());
  const auto units = ShareByCost(costs, shares, planned.given_back, trusted);
  std::size_t count = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (const std::uint32_t unit : units[i]) queues[i].push_back(planned.units[unit]);
    count += units[i].size();
  }
  LOCKSTEP_CHECK(count == planned.units.size(), "I2: {} units of {} are shared out", count,
                 planned.units.size());
  return queues;
}

// Of runs of so many units, in usual units. They stand by falling cost.
std::uint32_t DearestRun(const std::vector<Unit>& queue, std::uint32_t units,
                         const std::vector<float>& costs) {
  double cost = 0;
  for (std::uint32_t i = 0; i < units; ++i) cost += costs[queue[i].index.value];
  constexpr double kMost = 1e6;
  return std::max(units, static_cast<std::uint32_t>(std::ceil(std::min(cost, kMost))));
}

}  // namespace

// Few units are enough where shares are equal and only whole workers are left out: a share is one
// run anyway, and a lost worker leaves enough units to share out. More of them would be no smaller
// runs, only more entries of plans and records.
std::uint32_t UnitsPerRound(const StartParameters& start, const policies::Policy& policy,
                            const RunBound& bound) {
  const bool fine = policy.work->PlacesUnits() || policy.closing->CutsUnits();
  return CountUnits(start, fine && !policy.local, bound);
}

std::uint32_t MostUnits(const StartParameters& start) {
  const JobSection& job = start.config.job;
  const std::uint64_t most = job.units > 0 ? std::uint64_t{job.units} : kMostUnits;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, job.global_batch));
}

RunBound LeastBound(const Members& members) {
  RunBound least;
  const auto take = [](auto bound, auto* smallest) {
    if (bound > 0 && (*smallest == 0 || bound < *smallest)) *smallest = bound;
  };
  for (const Member& member : members.all()) {
    if (!member.live()) continue;
    take(member.ready.run_bound.samples, &least.samples);
    take(member.ready.run_bound.units, &least.units);
  }
  return least;
}

Planner::Planner(Job* job)
    : job_(job),
      weights_(job->members.slots()),
      replicas_(job->start.config.optimizer.Shards(job->start.workers),
                job->start.config.optimizer.replicas),
      algorithm_(job->start.config.exchange.algorithm) {}

// A member that lags by more than a round would hold up the others. The last round of an epoch
// closes over all of its units, so it relies only on recent contributors (I2).
std::vector<MemberId> Planner::EligibleFor(RoundId round, bool exact) const {
  std::vector<MemberId> level;
  std::vector<MemberId> lately;
  std::vector<MemberId> live;
  // A member that is draining gets nothing, unless nobody else is there. The same holds for a
  // member that is away, but only where work moves: elsewhere absences do not change the members of
  // rounds.
  const auto all = job_->members.all();
  const auto any = [&](auto is) { return std::ranges::any_of(all, is); };
  const bool all_leave = !any([](const Member& m) { return m.live() && !m.draining; });
  const bool moves = job_->policy().work->PlacesUnits();
  const bool all_away = !moves || job_->members.CountAway() == 0 || !any([&](const Member& m) {
    return m.live() && (!m.draining || all_leave) && !m.away();
  });
  for (const Member& member : all) {
    if (!member.live() || (member.draining && !all_leave)) continue;
    if (member.away() && !all_away) continue;
    live.push_back(member.id);
    // Has applied the round before the last one at least.
    if (member.next.value + 1 < round.value) continue;
    level.push_back(member.id);
    if (ContributedLately(member, round)) lately.push_back(member.id);
  }
  if (exact && !lately.empty()) return lately;
  return WithoutSpares(level.empty() ? live : level);
}

std::vector<MemberId> Planner::WithoutSpares(std::vector<MemberId> members) const {
  const std::size_t computing = job_->start.ComputingOf(
      job_->start.elastic() ? static_cast<std::uint32_t>(members.size()) : job_->start.workers);
  if (members.size() > computing) members.resize(computing);
  return members;
}

// No member has a share yet: a rule knows them from earlier rounds.
std::vector<policies::WorkerView> Planner::ViewsOf(const std::vector<MemberId>& members,
                                                   const PlannedUnits& planned) const {
  const auto units = static_cast<std::uint32_t>(planned.units.size());
  std::vector<policies::WorkerView> views(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& member = job_->members.at(members[i].worker);
    views[i].member = member.id;
    views[i].most_in_run = MostInRun(member.ready.run_bound, units, planned.samples);
    CopyHistory(member, &views[i]);
  }
  return views;
}

// The work rule proposes; whatever it says, each unit is shared out once (I2).
std::vector<std::uint32_t> Planner::ShareUnits(const std::vector<policies::WorkerView>& members,
                                               std::uint32_t units) {
  LOCKSTEP_CHECK(!members.empty(), "{} units are shared out among nobody", units);
  std::vector<std::uint32_t> shares = job_->policy().work->Share(members, units);
  const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
  if (shares.size() == members.size() && sum == units) return shares;
  // A policy proposes; what cannot be is not done, and said.
  job_->Log(LogLevel::kWarning,
            "policy {} assigned {} units of {}; they are shared equally instead",
            job_->policy().name, sum, units);
  const auto count = static_cast<std::uint32_t>(members.size());
  shares.assign(count, units / count);
  for (std::uint32_t i = 0; i < units % count; ++i) ++shares[i];
  return shares;
}

// A local step is of whole units, so its units are computed one by one.
std::vector<RunLimit> Planner::LimitRuns(const std::vector<policies::WorkerView>& members,
                                         const std::vector<std::uint32_t>& shares) {
  if (job_->policy().local) return std::vector(members.size(), RunLimit{.units = 1});
  std::vector<RunLimit> limits;
  if (job_->policy().runs) limits = job_->policy().runs->Runs(members, shares);
  limits.resize(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    limits[i] = Within(limits[i], members[i].most_in_run);
  }
  return limits;
}

// Logs how rounds are cut into units and runs: at the start, and after each change.
void Planner::LogUnits(std::uint32_t units) {
  RunBound least = LeastBound(job_->members);
  RunBound most;
  bool some_have_none = false;
  for (const Member& member : job_->members.all()) {
    if (!member.live()) continue;
    const RunBound& bound = member.ready.run_bound;
    some_have_none = some_have_none || bound.samples == 0;
    most.samples = std::max(most.samples, bound.samples);
    most.units = std::max(most.units, bound.units);
  }
  const LoggedUnits now{units, least, most, some_have_none};
  if (logged_units_ == now) return;
  logged_units_ = now;
  const std::uint64_t batch = job_->start.config.job.global_batch;
  const std::uint64_t largest = (batch + units - 1) / units;
  const std::uint64_t pieces = (batch + largest - 1) / largest;  // as the sampler cuts
  const auto range = [](std::uint64_t from, std::uint64_t to, std::string_view what) {
    const std::string low = from == to ? "" : fmt::format("{} to ", from);
    return fmt::format("{}{} {}{}", low, to, what, to == 1 ? "" : "s");
  };
  std::string at_once = "a run may be all of a worker's share";
  if (least.units == 1) {
    at_once = "each unit is computed by itself";
  } else if (least.samples > 0) {
    at_once = fmt::format("{}at most {} at once", some_have_none ? "some workers " : "",
                          range(least.samples, most.samples, "sample"));
  }
  job_->Log(LogLevel::kInfo, "a round is {} of {}, for {}; {}", range(pieces, pieces, "unit"),
            range(batch / pieces, largest, "sample"),
            range(job_->start.workers, job_->start.workers, "worker"), at_once);
  if (least.units == 1 && batch % pieces != 0) {
    job_->Log(LogLevel::kWarning,
              "units are of {}, but some workers compute them one by one and want one size: set "
              "job.units, or a job.global_batch with more divisors",
              range(batch / pieces, largest, "sample"));
  }
  if (least.samples > 0 && largest > least.samples) {
    job_->Log(LogLevel::kWarning,
              "a unit has {} samples, but some workers want at most {} at once: they compute it "
              "nevertheless; raise job.units (now {}) to avoid this",
              largest, least.samples, units);
  }
}

// Costs come when the program says them. Where a plan must not depend on that, so that the same job
// has the same bits, they are not used.
std::vector<float> Planner::CostsOf(const PlannedUnits& planned) {
  if (!job_->policy().work->PlacesUnits() || job_->policy().local || planned.units.empty()) {
    return {};
  }
  const double usual =
      static_cast<double>(planned.samples) / static_cast<double>(planned.units.size());
  std::vector<float> costs(planned.units.size());
  double sum = 0;
  for (const Unit& unit : planned.units) {
    const std::optional<double> cost = costs_.Of(planned.epoch, unit.range);
    if (!cost) return {};
    costs[unit.index.value] = static_cast<float>(std::max(*cost / usual, kLeastCost));
    sum += costs[unit.index.value];
  }
  const double most = kMostMeanCost * static_cast<double>(costs.size());
  for (float& cost : costs) cost *= static_cast<float>(std::min(1.0, most / sum));
  Sometimes<"costs: a round is planned by them">();
  if (!std::exchange(said_costs_, true)) {
    const auto [least, dearest] = std::ranges::minmax(costs);
    job_->Log(LogLevel::kInfo,
              "the program says what its samples cost: units of this round cost {:.2f} to {:.2f} "
              "of a usual one, and are shared out by that",
              least, dearest);
  }
  return costs;
}

// A whole round's, or of a relaxed round what the idle ones compute.
PlannedUnits Planner::PlanUnits(const std::optional<CarriedWork>& carried, std::size_t eligible,
                                Sampler* sampler) {
  if (!carried) return sampler->PlanRound();
  PlannedUnits planned;
  if (eligible > 0) {
    planned = sampler->PlanMore(std::max<std::uint64_t>(
        1, sampler->round_samples() * eligible / (eligible + carried->workers->size())));
  }
  planned.epoch = sampler->epoch();
  planned.exact = false;
  // The numbers of the units that are carried on are taken.
  std::vector<bool> taken(planned.units.size(), false);
  for (const UnitIndex unit : carried->work->UnitsOf(*carried->workers)) {
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

// The order is: who may compute, what there is to compute, who gets how much of it, and who owns.
// Ownership does not follow the units: who has none this time may still sum for the others. A round
// that is planned once more gets a version above the one before, so that neither its plan nor its
// owner map is taken for the older one.
PlannedRound Planner::PlanRound(RoundId round, std::uint32_t version, std::uint64_t updates,
                                const std::optional<CarriedWork>& carried, Sampler* sampler) {
  if (newest_ && round <= *newest_) version = std::max(version, newest_version_ + 1);
  std::vector<MemberId> eligible;
  if (carried) {
    eligible = EligibleFor(round, false);
    std::erase_if(eligible, [&](const MemberId& id) {
      return std::ranges::binary_search(*carried->workers, id.worker);
    });
  }
  const std::uint32_t wanted =
      UnitsPerRound(job_->start, job_->policy(), LeastBound(job_->members));
  sampler->SetUnits(wanted);
  LogUnits(wanted);
  const PlannedUnits planned = PlanUnits(carried, eligible.size(), sampler);
  if (!carried) eligible = EligibleFor(round, planned.exact);
  LOCKSTEP_CHECK(!eligible.empty() || (carried && !carried->workers->empty()),
                 "round {} is planned for nobody", round);
  PlannedRound result;
  std::vector<std::vector<Unit>> queues;
  std::vector<RunLimit> runs;
  if (!eligible.empty()) {
    job_->members.NoteUsualRunCost();
    const std::vector<policies::WorkerView> views = ViewsOf(eligible, planned);
    std::vector<std::uint32_t> shares =
        ShareUnits(views, static_cast<std::uint32_t>(planned.units.size()));
    // Given-back units come first, and go to those that can be trusted with them.
    std::vector<bool> trusted(eligible.size());
    for (std::size_t i = 0; planned.given_back > 0 && i < eligible.size(); ++i) {
      trusted[i] = ContributedLately(job_->members.at(eligible[i].worker), round);
    }
    if (!carried) result.costs = CostsOf(planned);
    queues = result.costs.empty() ? InOrder(planned, shares, trusted)
                                  : ByCost(planned, shares, trusted, result.costs);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      shares[i] = static_cast<std::uint32_t>(queues[i].size());
    }
    runs = LimitRuns(views, shares);
  }

  result.exact = planned.exact;
  Plan& plan = result.plan;
  plan.round = round;
  plan.epoch = planned.epoch;
  plan.members = job_->members.Exchanging();
  for (std::size_t i = 0; i < eligible.size(); ++i) {
    if (queues[i].empty()) continue;
    LOCKSTEP_CHECK(std::ranges::binary_search(plan.members, eligible[i]),
                   "worker {} computes round {} and takes no part", eligible[i].worker, round);
    // A worker finishes the run that it is in before it applies a round, so it is waited for as
    // long as this one may take (CommittedRound::UnitPatience).
    const auto units_of = static_cast<std::uint32_t>(queues[i].size());
    const std::uint32_t run = NextRun(units_of, runs[i]);
    job_->members.at(eligible[i].worker).longest_run =
        result.costs.empty() ? run : DearestRun(queues[i], run, result.costs);
    plan.assignments.push_back({eligible[i], std::move(queues[i]), runs[i]});
  }
  LOCKSTEP_CHECK(std::ranges::is_sorted(plan.assignments, {}, &Assignment::member),
                 "I3: the plan of round {} is not ascending by worker", round);
  plan.owners = Choose(round, version, Responsive(EligibleFor(round, false)), true);
  plan.owners.algorithm = ChooseAlgorithm(plan.assignments.size());
  plan.attempt = Attempt(version);
  plan.relaxed = job_->policy().relaxed;
  plan.carries = carried.has_value();
  plan.position = SchedulePosition(*sampler, updates);
  if (job_->policy().local) {
    plan.local_rate = job_->ScheduledRate(plan.position);
    // The plan is on its way with what was decided before it, so it has a rate that a worker takes.
    if (!std::isfinite(plan.local_rate)) {
      job_->Fail(job_->RateNotFinite(round));
      plan.local_rate = std::numeric_limits<float>::max();
    }
  }
  return result;
}

double Planner::SchedulePosition(const Sampler& sampler, std::uint64_t updates) const {
  return job_->start.config.job.rounds > 0 ? static_cast<double>(updates) : sampler.WholeRounds();
}

// Where two do not reach each other, the sums of all might have to pass between them.
ExchangeAlgorithm Planner::ChooseAlgorithm(std::size_t contributors) {
  const Traits traits = {.policy = policies::TraitsOf(job_->policy(), job_->policy().name),
                         .workers = job_->start.workers};
  const ExchangeAlgorithm chosen = algorithm_.Choose(
      static_cast<std::uint32_t>(std::max<std::size_t>(contributors, 1)), job_->parameter_bytes(),
      Links(contributors), WhyOnlyDirect(job_->start.config, traits));
  if (algorithm_.TakeNews()) {
    job_->Log(LogLevel::kInfo, "exchange.algorithm = auto chooses {}: {}", AlgorithmName(chosen),
              algorithm_.reason());
  }
  return job_->members.AnyBroken() ? ExchangeAlgorithm::kDirect : chosen;
}

// Measured by the probes of the paths, and by the delay of messages to the coordinator.
const MeasuredLinks& Planner::Links(std::size_t members) {
  if (job_->start.config.exchange.algorithm != "auto" || links_of_ == members) return links_;
  links_of_ = members;
  links_.bytes_per_second = job_->members.SlowestPath();
  links_.all_mapped = job_->members.AllMapped();
  // The quickest one: answers of many workers wait for each other at the coordinator.
  Duration shortest = Duration::max();
  for (const Member& member : job_->members.all()) {
    if (member.live()) shortest = std::min(shortest, member.clock.shortest);
  }
  if (shortest < Duration::max()) links_.latency = shortest / 2;
  return links_;
}

// A silent owner costs the whole round, so who has not been heard for half of the time-out owns
// nothing, unless that is true of all.
std::vector<MemberId> Planner::Responsive(const std::vector<MemberId>& members) const {
  std::vector<MemberId> heard;
  for (const MemberId& id : members) {
    if (job_->now() - job_->members.at(id.worker).last_heard <= job_->timeout / 2)
      heard.push_back(id);
  }
  return heard.empty() ? members : heard;
}

// All that may compute may own.
OwnerMap Planner::ChooseOwners(RoundId round, std::uint32_t version) {
  return ChooseOwners(round, version, EligibleFor(round, false));
}

// Each choice is noted, so that no later map of the round can have its version.
OwnerMap Planner::ChooseOwners(RoundId round, std::uint32_t version,
                               std::span<const MemberId> candidates) {
  return Choose(round, version, candidates, false);
}

OwnerMap Planner::Choose(RoundId round, std::uint32_t version, std::span<const MemberId> candidates,
                         bool may_move) {
  NoteMap(round, version);
  OwnerMap map = replicas_.any() ? replicas_.Choose(version, candidates, job_->members, may_move)
                                 : weights_.Choose(version, candidates, job_->members);
  if (map.owners != shares_ && !shares_.empty()) {
    job_->Log(LogLevel::kDebug, "round {}, map {}: the sums are shared among {}", round, version,
              SharesText(map.owners));
  }
  shares_ = map.owners;
  return map;
}

// Rounds before the newest one are counted by themselves: each of their maps has a version above
// the one before.
void Planner::NoteMap(RoundId round, std::uint32_t version) {
  if (newest_ && round < *newest_) return;
  LOCKSTEP_CHECK(!newest_ || round > *newest_ || version > newest_version_,
                 "round {}: owner map {} comes after {}", round, version, newest_version_);
  newest_version_ = version;
  newest_ = round;
}

// Links are judged by rounds, not by messages. An owner behind a slow link delays the contributions
// of all others, so it owns nothing until its own are delivered quickly again.
void Planner::NoteResponses(const RoundWork& work) {
  std::vector<LinkResponse> responses = LinkResponses(work, job_->now());
  // Late control messages tell a member's link from its owner's work: they carry no bulk, and wait
  // behind what does.
  for (LinkResponse& response : responses) {
    response.control = job_->members.at(response.member.worker).response.mean;
  }
  for (const OwnerChange& change : weights_.OnRoundDelivered(responses)) {
    job_->Log(LogLevel::kInfo, "worker {} {}", change.worker,
              change.owns ? "may own again: its link is as quick as before"
                          : "owns nothing for now: its link is slow");
  }
}

}  // namespace lockstep::coordinator
