#include "coordinator/round/broken_edges.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "base/check.h"
#include "base/routes.h"
#include "base/sometimes.h"

namespace lockstep::coordinator {
namespace {

// A link that was only reset works again within liveness.timeout / kMending.
constexpr int kMending = 4;

// The members from which `member` may still have to take something.
std::vector<MemberId> SourcesOf(const msg::Commit& commit, const MemberId& member) {
  std::vector<MemberId> sources;
  for (std::uint32_t shard = 0; shard < commit.owners.owners.size(); ++shard) {
    if (commit.owners.direct()) {
      sources.push_back(commit.owners.owners[shard].owner);
    } else if (std::ranges::binary_search(commit.members, member)) {
      const Route route = RouteOf(commit, shard, member);
      sources.insert(sources.end(), route.below.begin(), route.below.end());
      if (route.above) sources.push_back(*route.above);
    }
  }
  return sources;
}

}  // namespace

// Both ends are pinged: when one does not reach the other, the other is usually gone. The decision
// who goes waits until both have been heard.
Status BrokenEdges::OnUnreachable(Member& from, const msg::Unreachable& message) {
  if (message.peer.worker == from.id.worker) return Violation("cannot reach itself");
  Member* peer = job_->members.Find(message.peer);
  // A member that is behind or connecting counts too: it will need its peers once it is back. And
  // while the job is formed: what is lost between a worker's Reached and the first round stays
  // lost.
  const bool matters = job_->phase() == Phase::kForming || job_->phase() == Phase::kTraining;
  if (!matters || peer == nullptr || from.leaving) return {};
  if (!job_->members.AddBrokenEdge(from.id.worker, peer->id.worker)) return {};
  job_->edge_broke_at.Write() = job_->now();
  job_->Log(LogLevel::kWarning, "worker {} cannot reach worker {}: {}", from.id.worker,
            peer->id.worker, message.reason);
  job_->Ping(from.id.worker);
  job_->Ping(peer->id.worker);
  return {};
}

// In a tie a member that is not live goes, then the highest id; the last replica of a shard never
// does.
std::optional<BrokenEdges::Found> BrokenEdges::Find(std::span<const MemberId> members,
                                                    const StateReplicas& replicas) const {
  if (!job_->members.AnyBroken()) return std::nullopt;
  Found found;
  found.counts.resize(job_->members.slots());
  const MemberId* worst = nullptr;
  std::tuple<bool, std::uint32_t, bool> most;
  for (const MemberId& id : members) {
    const std::uint32_t count = job_->members.BrokenEdges(id.worker);
    found.counts[id.worker.value] = count;
    if (count == 0) continue;
    found.heard = found.heard && job_->HeardSinceEdgeBroke(id.worker);
    found.mending = found.mending || job_->members.AnyMending(id.worker);
    std::uint32_t to_live = 0;
    for (const Member& other : job_->members.all()) {
      to_live += other.live() && job_->members.Broken(id.worker, other.id.worker) ? 1 : 0;
    }
    const std::tuple misses(!replicas.Needed(id), to_live, !job_->members.at(id.worker).live());
    if (worst != nullptr && misses < most) continue;
    worst = &id;
    most = misses;
  }
  if (worst == nullptr) return std::nullopt;
  found.worst = *worst;
  return found;
}

// A member that is put out comes back once it reaches all. With replicas it is put behind instead,
// and sooner: it stays connected, and copies the parameters when the link works again.
bool BrokenEdges::Resolve(const Found& found, std::span<const MemberId> eligible,
                          const StateReplicas& replicas) {
  Member& worst = job_->members.at(found.worst.worker);
  // Each needs what each other one holds, and nobody can do without the last copy of a shard.
  const bool shared_out = replicas.any();
  const bool late =
      !found.mending || job_->now() >= job_->edge_broke_at() + job_->timeout / kMending;
  if (shared_out && found.heard && late && !replicas.Needed(found.worst)) {
    Sometimes<"edges: a member is behind, as state is shared out">();
    PutBehind(worst);
    return true;
  }
  const auto whole = [&](const MemberId& id) { return found.counts[id.worker.value] == 0; };
  if (!shared_out && std::ranges::any_of(eligible, whole)) return false;
  if (found.heard && !found.mending) {
    Sometimes<"edges: nobody reaches all, and one goes">();
    job_->Evict(worst, "it and other workers cannot reach each other");
  }
  return true;
}

// It is alive, and Joining lets it copy once the edge is mended.
void BrokenEdges::PutBehind(Member& member) {
  std::string others;
  for (const Member& other : job_->members.all()) {
    if (!other.exchanging() || !job_->members.Broken(member.id.worker, other.id.worker)) continue;
    others += fmt::format("{}worker {}", others.empty() ? "" : ", ", other.id.worker);
  }
  std::string why = fmt::format("it and {} cannot reach each other", others);
  job_->Log(LogLevel::kWarning,
            "worker {} is behind: {}; the others go on without it, and it catches up when they can",
            member.id.worker, why);
  job_->PutBehind(member, std::move(why));
}

// An owner that somebody cannot reach would end an attempt at once, as it did the one before, for
// as long as the edge is broken (I6).
std::vector<MemberId> BrokenEdges::Avoiding(std::vector<MemberId> candidates) const {
  std::vector<MemberId> reached;
  std::ranges::copy_if(candidates, std::back_inserter(reached), [this](const MemberId& id) {
    return job_->members.BrokenEdges(id.worker) == 0;
  });
  if (!reached.empty() && reached.size() < candidates.size()) {
    Sometimes<"edges: owners avoid a broken one">();
  }
  return reached.empty() ? candidates : reached;
}

// Before the commit a new owner costs only a map, so any broken edge to an owner is reason enough,
// if some member has none. Where sums are passed on, any broken edge at all is. No member with a
// broken edge owns again: the same map would be made at each event while it is broken (I6).
std::vector<WorkerId> OwnersToAvoid(const OwnerMap& owners, std::span<const std::uint32_t> counts) {
  const auto reaches_all = [&](WorkerId worker) { return counts[worker.value] == 0; };
  const bool whole =
      owners.direct()
          ? std::ranges::all_of(owners.owners, reaches_all,
                                [](const OwnerShare& share) { return share.owner.worker; })
          : std::ranges::all_of(counts, [](std::uint32_t count) { return count == 0; });
  std::vector<WorkerId> avoided;
  if (whole) return avoided;
  for (std::uint32_t slot = 0; slot < counts.size(); ++slot) {
    if (counts[slot] > 0) avoided.emplace_back(slot);
  }
  Sometimes<"edges: another owner map before the commit">();
  return avoided;
}

// After the commit another owner costs another attempt, so only an edge matters over which somebody
// still has to fetch.
std::optional<std::pair<WorkerId, WorkerId>> BrokenOnTheWay(const msg::Commit& commit,
                                                            const Members& members,
                                                            std::span<const MemberId> lacking) {
  for (const MemberId& id : lacking) {
    for (const MemberId& source : SourcesOf(commit, id)) {
      if (!members.Broken(id.worker, source.worker)) continue;
      Sometimes<"edges: sums are to pass over a broken one">();
      return std::pair(id.worker, source.worker);
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::coordinator
