#include "coordinator/round/state_replicas.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

bool Contains(const std::vector<MemberId>& list, const MemberId& member) {
  return std::ranges::find(list, member) != list.end();
}

bool Live(const Members& members, const MemberId& id) {
  const Member& member = members.at(id.worker);
  return member.id == id && member.live();
}

// May hold a shard, as far as is known of it.
bool Good(const Members& members, const MemberId& id) {
  const Member& member = members.at(id.worker);
  return Live(members, id) && !member.draining && !member.away() && !member.owner_trial.on() &&
         members.BrokenEdges(id.worker) == 0;
}

}  // namespace

std::uint32_t StateReplicas::Load(const MemberId& member) const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(lists_, [&](const List& list) { return Contains(list, member); }));
}

// A list loses those who are out, and those who had better not hold anything, as long as others
// can; then it is filled up with those who hold least.
void StateReplicas::Fill(std::span<const MemberId> candidates, const Members& members) {
  std::vector<MemberId> good;
  for (const MemberId& id : candidates) {
    if (Good(members, id)) good.push_back(id);
  }
  for (const List& list : lists_) {
    for (const MemberId& id : list) {
      if (Good(members, id) && !Contains(good, id)) good.push_back(id);
    }
  }
  for (List& list : lists_) {
    List kept;
    std::ranges::copy_if(list, std::back_inserter(kept),
                         [&](const MemberId& id) { return Good(members, id); });
    if (kept.empty() && good.empty()) {
      std::erase_if(list, [&](const MemberId& id) { return !Live(members, id); });
      if (list.empty()) list.push_back(candidates.front());
      continue;
    }
    list = std::move(kept);
    while (list.size() < std::min<std::size_t>(replicas_, good.size())) {
      const MemberId* least = nullptr;
      for (const MemberId& id : good) {
        if (Contains(list, id)) continue;
        if (least == nullptr || std::pair(Load(id), id) < std::pair(Load(*least), *least)) {
          least = &id;
        }
      }
      if (least == nullptr) break;
      list.push_back(*least);
    }
  }
}

// Moves one shard at a time, and only when all earlier moves are done: each costs a round the copy
// of a shard.
void StateReplicas::MoveOne(std::span<const MemberId> candidates, const Members& members) {
  for (std::uint32_t s = 0; s < shards_; ++s) {
    for (const MemberId& id : lists_[s]) {
      if (!Contains(has_[s], id)) return;
    }
  }
  const MemberId* least = nullptr;
  for (const MemberId& id : candidates) {
    if (!Good(members, id)) continue;
    if (least == nullptr || Load(id) < Load(*least)) least = &id;
  }
  if (least == nullptr) return;
  List* best = nullptr;
  MemberId* from = nullptr;
  for (List& list : lists_) {
    if (Contains(list, *least)) continue;
    for (MemberId& id : list) {
      if (Load(id) < Load(*least) + 2) continue;
      if (from == nullptr || Load(id) > Load(*from)) std::tie(best, from) = std::pair(&list, &id);
    }
  }
  if (best == nullptr) return;
  best->erase(best->begin() + (from - best->data()));
  best->push_back(*least);
}

// An owner keeps its shard, unless another replica of it owns two shards fewer.
void StateReplicas::ChooseOwners(std::span<const MemberId> candidates, const Members& members) {
  std::map<MemberId, std::uint32_t> owned;
  for (const List& list : lists_) ++owned[list.front()];
  const auto cost = [&](const MemberId& id, bool first) {
    const bool candidate = std::ranges::find(candidates, id) != candidates.end();
    return std::tuple(!Good(members, id), !candidate, 2 * owned[id] + (first ? 0u : 1u));
  };
  for (List& list : lists_) {
    auto best = list.begin();
    --owned[list.front()];
    for (auto at = list.begin(); at != list.end(); ++at) {
      if (cost(*at, at == list.begin()) < cost(*best, best == list.begin())) best = at;
    }
    std::rotate(list.begin(), best, best + 1);
    ++owned[list.front()];
  }
}

void StateReplicas::GoOnWith(std::vector<std::vector<MemberId>> holders) {
  LOCKSTEP_CHECK(lists_.empty() && holders.size() == shards_ &&
                     std::ranges::none_of(holders, [](const List& list) { return list.empty(); }),
                 "the job goes on without a shard of the optimizer's state");
  lists_ = std::move(holders);
  has_ = lists_;
}

OwnerMap StateReplicas::Choose(std::uint32_t version, std::span<const MemberId> candidates,
                               const Members& members, bool may_move) {
  LOCKSTEP_CHECK(any() && !candidates.empty(), "nobody can hold anything");
  if (lists_.empty()) {
    lists_.resize(shards_);
    for (std::uint32_t s = 0; s < shards_; ++s) {
      const std::size_t most = std::min<std::size_t>(replicas_, candidates.size());
      for (std::size_t i = 0; i < most; ++i) {
        lists_[s].push_back(candidates[(s + i) % candidates.size()]);
      }
    }
    has_ = lists_;
  } else {
    Fill(candidates, members);
    if (may_move) MoveOne(candidates, members);
    ChooseOwners(candidates, members);
  }
  OwnerMap map{version, {}, {}};
  std::map<MemberId, std::uint32_t> owned;
  for (const List& list : lists_) {
    ++owned[list.front()];
    map.holders.push_back({list});
  }
  for (const auto& [owner, shards] : owned) map.owners.push_back({owner, shards});
  return map;
}

bool StateReplicas::Copies(const OwnerMap& map) const {
  for (std::uint32_t s = 0; s < map.holders.size(); ++s) {
    if (!std::ranges::all_of(map.holders[s].members,
                             [&](const MemberId& id) { return Contains(has_[s], id); })) {
      return true;
    }
  }
  return false;
}

void StateReplicas::OnDecided(const OwnerMap& map) {
  for (std::uint32_t s = 0; s < map.holders.size(); ++s) has_[s] = map.holders[s].members;
}

void StateReplicas::OnOut(const MemberId& member) {
  for (List& list : has_) std::erase(list, member);
}

std::optional<std::uint32_t> StateReplicas::Lost() const {
  for (std::uint32_t s = 0; s < has_.size(); ++s) {
    if (has_[s].empty()) return s;
  }
  return std::nullopt;
}

bool StateReplicas::Needed(const MemberId& member) const {
  return std::ranges::any_of(
      has_, [&](const List& list) { return list.size() == 1 && list.front() == member; });
}

bool StateReplicas::AllBeside(std::span<const MemberId> members) const {
  return std::ranges::all_of(has_, [&](const List& list) {
    return std::ranges::any_of(list, [&](const MemberId& holder) {
      return std::ranges::find(members, holder) == members.end();
    });
  });
}

}  // namespace lockstep::coordinator
