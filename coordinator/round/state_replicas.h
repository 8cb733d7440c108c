// With optimizer.replicas: who holds which shard of the optimizer's state. There are as many shards
// as workers in a full job; each has its owner, who sums it, and others who hold the same.
//
// Decides: who holds a shard in the next attempt, who owns it, and which shard moves where members
// have come or gone. In: members, what was decided, who is out. Out: owner maps.
//
// Invariants:
//   I1  has_ names only members that have the shard's state before the first round that is not
//       decided. A member that is out has nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/members.h"

namespace lockstep::coordinator {

class StateReplicas {
 public:
  // None where everybody holds everything.
  StateReplicas(std::uint32_t shards, std::uint32_t replicas)
      : shards_(shards), replicas_(replicas) {}

  bool any() const { return shards_ > 0; }

  // The job goes on with what these hold: by shard, at least one each. Before the first map.
  void GoOnWith(std::vector<std::vector<MemberId>> holders);

  // Owners come from `candidates` (ascending, at least one); any live member may be a replica. The
  // first map is for the start, when all have all. `may_move`: a shard may move for balance.
  OwnerMap Choose(std::uint32_t version, std::span<const MemberId> candidates,
                  const Members& members, bool may_move);
  // True if a member has to copy a shard before an attempt with this map can be decided.
  bool Copies(const OwnerMap& map) const;
  void OnDecided(const OwnerMap& map);
  void OnOut(const MemberId& member);
  // A shard that nobody holds any more.
  std::optional<std::uint32_t> Lost() const;
  // Nobody else has some shard of it.
  bool Needed(const MemberId& member) const;
  // Each shard is somebody's that is none of these.
  bool AllBeside(std::span<const MemberId> members) const;

 private:
  using List = std::vector<MemberId>;

  std::uint32_t Load(const MemberId& member) const;
  void Fill(std::span<const MemberId> candidates, const Members& members);
  void MoveOne(std::span<const MemberId> candidates, const Members& members);
  void ChooseOwners(std::span<const MemberId> candidates, const Members& members);

  const std::uint32_t shards_;
  const std::uint32_t replicas_;
  std::vector<List> lists_;  // by shard: who is to hold it, the owner first
  std::vector<List> has_;    // by shard: who does
};

}  // namespace lockstep::coordinator
