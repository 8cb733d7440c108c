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

const Round& LiveRounds::Get(RoundId round) const {
  static const Round unknown;
  const auto at = rounds_.find(round);
  return at == rounds_.end() ? unknown : at->second;
}

const OwnerMap* LiveRounds::OwnersOf(RoundId round) const {
  const auto& owners = Get(round).owners;
  return owners ? &*owners : nullptr;
}

std::optional<Epoch> LiveRounds::EpochOf(RoundId round) const {
  const Round& known = Get(round);
  return known.sums != nullptr ? std::optional(known.sums->commit().epoch) : known.epoch;
}

// Shards are cut anew for another map, and only then: every member cuts the same map alike, and
// large jobs have thousands of slices.
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

// The round keeps its plan and its owners; what is announced for it is wanted again as before the
// commit.
void LiveRounds::Reopen(RoundId round) {
  if (Round* known = Find(round)) known->sums.reset();
}

void LiveRounds::ReopenFrom(RoundId round) {
  for (auto at = rounds_.lower_bound(round); at != rounds_.end(); ++at) at->second.sums.reset();
}

RoundId LiveRounds::FirstKept(RoundId next) const {
  // The open round, the provisional one, and two that are closed.
  return std::min(next, RoundId(expected_.value < 3 ? 0 : expected_.value - 3));
}

// The sums go when neither this worker nor a late one needs them; the rest when the round is
// closed, and so do others' sums once they are applied, as a late worker takes each from its owner.
void LiveRounds::Prune(RoundId next) {
  const RoundId kept = FirstKept(next);
  for (auto at = rounds_.begin(); at != rounds_.end();) {
    auto& [id, round] = *at;
    if (id < kept) round.sums.reset();
    if (round.sums != nullptr && id < first_not_closed_ && id < next) round.sums->KeepOwnOnly();
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
    LOCKSTEP_CHECK(round.owners == round.sums->commit().owners,
                   "round {} is summed by other owners than it has", id);
    LOCKSTEP_CHECK(id < expected_, "the commit of round {} is there and is waited for", id);
    round.sums->CheckInvariants();
  }
}

}  // namespace lockstep::worker
