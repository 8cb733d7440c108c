// Two members that do not reach each other, though both reach the coordinator. Each member needs
// each owner, so an owner must have no broken edge to a member. Where no such owner exists, the
// member with the most broken edges is evicted or put behind.
//
// In: Unreachable, who takes part. Out: pings, members that are evicted or put behind, and for the
// rounds: which edges they have to do without.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"
#include "coordinator/round/state_replicas.h"

namespace lockstep::coordinator {

class BrokenEdges {
 public:
  explicit BrokenEdges(Job* job) : job_(job) {}

  Status OnUnreachable(Member& from, const msg::Unreachable& message);

  struct Found {
    std::vector<std::uint32_t> counts;  // of broken edges to members that exchange; by slot
    MemberId worst;                     // misses the most live ones
    bool heard = true;     // all who are concerned have been, since the last edge broke
    bool mending = false;  // a link of theirs is being made again
  };
  // nullopt: all of `members` reach each other.
  std::optional<Found> Find(std::span<const MemberId> members, const StateReplicas& replicas) const;
  // True: no owner can be had that all reach, so somebody goes, now or once enough is known.
  bool Resolve(const Found& found, std::span<const MemberId> eligible,
               const StateReplicas& replicas);
  // The candidates that all others reach; all candidates, if there are none.
  std::vector<MemberId> Avoiding(std::vector<MemberId> candidates) const;

 private:
  void PutBehind(Member& member);

  Job* job_;
};

// The workers that are to own nothing of an open round with these owners. Empty: all edges that it
// needs are whole.
std::vector<WorkerId> OwnersToAvoid(const OwnerMap& owners, std::span<const std::uint32_t> counts);

// For a committed round: the first broken edge that one of `lacking` may still need.
std::optional<std::pair<WorkerId, WorkerId>> BrokenOnTheWay(const msg::Commit& commit,
                                                            const Members& members,
                                                            std::span<const MemberId> lacking);

}  // namespace lockstep::coordinator
