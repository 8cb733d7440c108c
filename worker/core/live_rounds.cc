#include "worker/core/live_rounds.h"

#include <algorithm>

#include "base/check.h"
#include "worker/core/round_sums.h"

namespace lockstep::worker {

LiveRounds::LiveRounds(Context& context) : context_(context) {}
LiveRounds::~LiveRounds() = default;

Round::Round() = default;
Round::~Round() = default;

Round& LiveRounds::At(RoundId round) { return rounds_[round]; }

void LiveRounds::OnCommitted(RoundId round) {
  expected_ = std::max(expected_, round.Next());
  first_not_closed_ = std::max(first_not_closed_, round);
}

Round* LiveRounds::Find(RoundId round) {
  const auto at = rounds_.find(round);
  return at == rounds_.end() ? nullptr : &at->second;
}

const Round* LiveRounds::Find(RoundId round) const {
  const auto at = rounds_.find(round);
  return at == rounds_.end() ? nullptr : &at->second;
}

RoundSums* LiveRounds::SumsOf(RoundId round) const {
  const Round* known = Find(round);
  return known == nullptr ? nullptr : known->sums.get();
}

std::optional<Attempt> LiveRounds::PlanOf(RoundId round) const {
  const Round* known = Find(round);
  return known == nullptr ? std::nullopt : known->plan;
}

const OwnerMap* LiveRounds::OwnersOf(RoundId round) const {
  const Round* known = Find(round);
  return known == nullptr || !known->owners ? nullptr : &*known->owners;
}

void LiveRounds::SetOwners(RoundId round, const OwnerMap& map) {
  Round& known = At(round);
  if (known.owners == map) return;
  known.owners = map;
  known.shards.clear();
}

const std::vector<Slice>& LiveRounds::Shard(RoundId round, const MemberId& owner) {
  Round& known = rounds_.at(round);
  const auto at = known.shards.find(owner);
  if (at != known.shards.end()) return at->second;
  return known.shards[owner] = context_.layout.Shard(*known.owners, owner);
}

void LiveRounds::Reopen(RoundId round) {
  if (Round* known = Find(round)) known->sums.reset();
}

void LiveRounds::ReopenFrom(RoundId round) {
  for (auto at = rounds_.lower_bound(round); at != rounds_.end(); ++at) at->second.sums.reset();
}

RoundId LiveRounds::FirstKept(RoundId next) const {
  // The open round, the provisional one, and one more that is closed.
  return std::min(next, RoundId(expected_.value < 3 ? 0 : expected_.value - 3));
}

void LiveRounds::Prune(RoundId next) {
  const RoundId kept = FirstKept(next);
  for (auto at = rounds_.begin(); at != rounds_.end();) {
    auto& [id, round] = *at;
    if (id < kept) round.sums.reset();
    at = id < first_not_closed_ && round.sums == nullptr ? rounds_.erase(at) : std::next(at);
  }
}

void LiveRounds::CheckInvariants() const {
  for (const auto& [id, round] : rounds_) {
    LOCKSTEP_CHECK(id >= first_not_closed_ || round.sums, "round {} is over and still here", id);
    LOCKSTEP_CHECK(id >= first_not_closed_ || !round.given, "closed round {} has units", id);
    LOCKSTEP_CHECK(round.plan || !round.given, "units of round {} without its plan", id);
    LOCKSTEP_CHECK(round.owners || (!round.plan && !round.sums), "round {} has no owners", id);
    if (round.given) {
      LOCKSTEP_CHECK(round.given->base <= id, "round {} has units of a later one", id);
      LOCKSTEP_CHECK(round.given->units.size() <= context_.config.queue_capacity,
                     "I7: {} units of round {} for a queue of {}", round.given->units.size(), id,
                     context_.config.queue_capacity);
    }
    if (round.sums == nullptr) continue;
    LOCKSTEP_CHECK(round.sums->commit().round == id, "round {} has the sums of another", id);
    round.sums->CheckInvariants();
  }
}

}  // namespace lockstep::worker
