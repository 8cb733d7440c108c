// The owner maps of the rounds that are not yet closed, and the shards that follow from them.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "worker/core/context.h"

namespace lockstep::worker {

class RoundMaps {
 public:
  explicit RoundMaps(Context& context) : context_(context) {}

  void Set(RoundId round, const OwnerMap& map) {
    const auto at = rounds_.find(round);
    if (at == rounds_.end() || at->second.map != map) rounds_[round] = {map, {}};
  }
  // What is computed for an earlier plan of the round counts no longer.
  void SetPlan(RoundId round, Attempt plan) { plans_[round] = plan; }
  std::optional<Attempt> PlanOf(RoundId round) const {
    const auto at = plans_.find(round);
    return at == plans_.end() ? std::nullopt : std::optional(at->second);
  }
  const OwnerMap* Find(RoundId round) const {
    const auto at = rounds_.find(round);
    return at == rounds_.end() ? nullptr : &at->second.map;
  }
  // Of a round that Find knows.
  const std::vector<Slice>& Shard(RoundId round, const MemberId& owner) {
    Entry& entry = rounds_.at(round);
    const auto at = entry.shards.find(owner);
    if (at != entry.shards.end()) return at->second;
    return entry.shards[owner] = context_.layout.Shard(entry.map, owner);
  }
  void DropBefore(RoundId round) {
    rounds_.erase(rounds_.begin(), rounds_.lower_bound(round));
    plans_.erase(plans_.begin(), plans_.lower_bound(round));
  }

 private:
  struct Entry {
    OwnerMap map;
    std::map<MemberId, std::vector<Slice>> shards;
  };
  Context& context_;
  std::map<RoundId, Entry> rounds_;
  std::map<RoundId, Attempt> plans_;
};

}  // namespace lockstep::worker
