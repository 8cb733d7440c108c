#include "tools/simulate/modelled_exchange.h"

#include <algorithm>
#include <utility>

#include "base/routes.h"
#include "tools/simulate/modelled_worker.h"

namespace lockstep::simulate {

const OwnerShare* FindOwner(const OwnerMap& map, const MemberId& id) {
  const auto at = std::lower_bound(
      map.owners.begin(), map.owners.end(), id,
      [](const OwnerShare& share, const MemberId& member) { return share.owner < member; });
  return at != map.owners.end() && at->owner == id ? &*at : nullptr;
}

ModelledExchange::ModelledExchange(Options o, ComputeModel* c, std::uint32_t workers)
    : options(std::move(o)),
      compute(c),
      layout({{0, 1}}, 4096),
      workers_(workers),
      out_free_(workers) {
  slowest_ = options.network.BandwidthOf(0);
  for (std::uint32_t m = 0; m < workers; ++m) {
    slowest_ = std::min(slowest_, options.network.BandwidthOf(m));
  }
}

ModelledWorker* ModelledExchange::Find(const MemberId& id) const {
  ModelledWorker* worker = workers_[id.worker.value];
  return worker != nullptr && worker->self() == id ? worker : nullptr;
}

bool ModelledExchange::Witnesses(WorkerId a, WorkerId b) const {
  const auto [low, high] = std::minmax(a.value, b.value);
  const auto last = static_cast<std::uint32_t>(workers_.size() - 1);
  if (low % 2 == 0 && high == low + 1) return true;
  return low == 0 && high == last && last % 2 == 0 && last > 0;  // the worker without a neighbour
}

// With a list of its own for each worker, a job of ten thousand would hold a hundred million.
std::shared_ptr<const std::vector<MemberId>> ModelledExchange::Forming(const msg::Form& form,
                                                                       const MemberId& self) {
  std::vector<MemberId> members;
  members.reserve(form.expect.size() + 1 + form.connect_to.size());
  for (const PeerInfo& peer : form.expect) members.push_back(peer.member);
  members.push_back(self);
  for (const PeerInfo& peer : form.connect_to) members.push_back(peer.member);
  if (!forming_ || *forming_ != members) {
    forming_ = std::make_shared<const std::vector<MemberId>>(std::move(members));
  }
  return forming_;
}

std::vector<WorkerId> ModelledExchange::WitnessesOf(WorkerId slot) const {
  std::vector<WorkerId> witnesses;
  const auto last = static_cast<std::uint32_t>(workers_.size() - 1);
  for (const std::uint32_t other : {slot.value ^ 1u, 0u, last}) {
    const WorkerId id(other);
    if (other > last || !Witnesses(slot, id) ||
        std::find(witnesses.begin(), witnesses.end(), id) != witnesses.end()) {
      continue;
    }
    witnesses.push_back(id);
  }
  return witnesses;
}

std::uint64_t ModelledExchange::Options::GradientBytes(std::uint64_t entries) const {
  if (factor_bytes > 0) return factor_bytes;
  const std::uint64_t numbers = model_bytes / sizeof(float);
  if (entries == 0) return numbers * number_bytes;
  const std::uint64_t blocks = (numbers + kSparseBlock - 1) / kSparseBlock;
  return std::min(numbers, blocks * SparseBlockNumbers(entries, number_bytes)) * number_bytes;
}

Duration ModelledExchange::Transfer(double bytes, std::uint32_t machine) const {
  return FromSeconds(bytes / options.network.BandwidthOf(machine) * Crowding());
}

// The factor by which a rack's link slows traffic to everybody.
double ModelledExchange::Crowding() const {
  const auto workers = static_cast<double>(workers_.size());
  if (options.network.rack == 0 || workers_.size() <= options.network.rack) return 1;
  return std::max(1.0,
                  options.network.oversubscription * (workers - options.network.rack) / workers);
}

ExchangeTimes ModelledExchange::TimesOf(ExchangeAlgorithm algorithm, std::uint32_t contributors) {
  const std::pair key(algorithm, contributors);
  if (const auto known = times_.find(key); known != times_.end()) return known->second;
  return times_[key] = simulate::TimesOf({.algorithm = algorithm,
                                          .workers = contributors,
                                          .bytes = options.sum_bytes(contributors),
                                          .piece_bytes = options.machine.piece_bytes,
                                          .inline_bytes = options.machine.inline_bytes},
                                         options.network);
}

Time ModelledExchange::Deliver(WorkerId worker, std::uint32_t machine, Time now) {
  if (options.delivery) return now + options.delivery(worker, now - Simulation::kStart);
  const auto owners = static_cast<double>(workers_.size());
  const auto bytes = static_cast<double>(options.contribution_bytes());
  // The part is announced and requested; then it leaves as a whole while each owner takes its
  // shard.
  const Duration latency = options.network.latency;
  const Time begins = std::max(now + 2 * latency, out_free_[machine]);
  out_free_[machine] = begins + Transfer(bytes * (owners - 1) / owners, machine);
  owners_free_ = std::max(owners_free_, begins + latency) +
                 FromSeconds(bytes / owners / slowest_ * Crowding());
  return std::max(out_free_[machine] + latency, owners_free_);
}

ModelledExchange::Publication* ModelledExchange::FindPublication(RoundId round, Attempt attempt) {
  for (Publication& sums : publications_) {
    if (sums.round == round && sums.attempt == attempt) return &sums;
  }
  return nullptr;
}

ModelledExchange::Publication& ModelledExchange::Of(const msg::Commit& commit) {
  if (Publication* known = FindPublication(commit.round, commit.attempt)) return *known;
  if (publications_.size() == kRoundsKept) publications_.pop_front();
  Publication sums;
  sums.round = commit.round;
  sums.attempt = commit.attempt;
  sums.parts = commit.parts.size();
  sums.algorithm = commit.owners.algorithm;
  if (!commit.owners.direct() && !options.apply) {
    sums.times = TimesOf(sums.algorithm, static_cast<std::uint32_t>(ContributorsOf(commit).size()));
  }
  sums.owners = commit.owners.owners;
  sums.published.resize(workers_.size());
  sums.missing = sums.owners.size();
  for (const OwnerShare& share : commit.owners.owners) sums.weights += share.weight;
  publications_.push_back(std::move(sums));
  return publications_.back();
}

Duration ModelledExchange::ReduceTime(const Publication& sums, std::uint32_t weight) const {
  if (options.apply) return {};
  if (sums.algorithm != ExchangeAlgorithm::kDirect) return sums.times.summed;
  const double share = static_cast<double>(weight) / static_cast<double>(sums.weights);
  const double bytes = static_cast<double>(options.contribution_bytes()) * share;
  return FromSeconds(bytes * static_cast<double>(sums.parts) /
                     options.network.memory_bytes_per_second);
}

Duration ModelledExchange::SendTime(const Publication& sums, std::uint32_t weight,
                                    std::uint32_t machine) const {
  if (sums.algorithm != ExchangeAlgorithm::kDirect) return sums.times.taken;
  const double share = static_cast<double>(weight) / static_cast<double>(sums.weights);
  const double bytes = static_cast<double>(options.sum_bytes(sums.parts)) * share;
  return Transfer(bytes * static_cast<double>(workers_.size() - 1), machine);
}

Duration ModelledExchange::TakeTime(std::uint64_t bytes, std::uint32_t machine) const {
  const auto members = static_cast<double>(workers_.size());
  return Transfer(static_cast<double>(bytes) * (members - 1) / members, machine);
}

Duration ModelledExchange::UpdateTime() const {
  return FromSeconds(3 * static_cast<double>(options.model_bytes) /
                     options.network.memory_bytes_per_second);
}

}  // namespace lockstep::simulate
