#include "coordinator/round/digest_votes.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {

// A vote for another slice is a vote for another value: members that are a round apart without
// knowing it would otherwise seem to agree. Rounds before the two latest are not counted any more;
// a member that reports them lags, and is found by that. Without a strict majority among all who
// will vote nobody is believed, but that is said only when all have: the ones that are missing may
// still make one.
DigestVotes::Outcome DigestVotes::Add(const MemberId& member, RoundId round, std::uint32_t slice,
                                      std::uint64_t digest, std::uint32_t voters) {
  auto found = std::find_if(rounds_.begin(), rounds_.end(),
                            [round](const Round& r) { return r.round == round; });
  if (found == rounds_.end()) {
    if (!rounds_.empty() && round < rounds_.back().round) return {};
    if (rounds_.size() == 2) rounds_.pop_front();
    rounds_.push_back({round, {}, {}});
    found = std::prev(rounds_.end());
  }
  std::vector<Vote>& votes = found->votes;
  votes.push_back({member, slice, digest});

  LOCKSTEP_CHECK(rounds_.size() <= 2 && found->round == round, "I7: votes on {} rounds",
                 rounds_.size());
  // Usually all agree, and one comparison tells.
  DigestRecord& leading = found->leading;
  if (votes.size() == 1) leading = {slice, digest, 0};
  if (leading.slice == slice && leading.value == digest) ++leading.agreeing;
  if (leading.agreeing == votes.size()) return {};

  for (const Vote& candidate : votes) {
    const auto same = static_cast<std::uint32_t>(
        std::count_if(votes.begin(), votes.end(), [&candidate](const Vote& vote) {
          return vote.slice == candidate.slice && vote.digest == candidate.digest;
        }));
    if (same > leading.agreeing) leading = {candidate.slice, candidate.digest, same};
  }
  LOCKSTEP_CHECK(leading.agreeing <= votes.size(), "more agree than have voted");
  Outcome outcome;
  if (2 * leading.agreeing > std::max<std::size_t>(voters, votes.size())) {
    for (const Vote& vote : votes) {
      if (vote.slice != leading.slice || vote.digest != leading.value) {
        outcome.minority.push_back(vote.member);
      }
    }
  } else {
    outcome.no_majority = votes.size() >= voters;
  }
  return outcome;
}

// For the record. A round that nobody has voted on has no digest, which is not an error: it may
// have been closed before anybody said so.
std::optional<DigestRecord> DigestVotes::Leading(RoundId round) const {
  for (const Round& r : rounds_) {
    if (r.round == round && !r.votes.empty()) return r.leading;
  }
  return std::nullopt;
}

// A further attempt has another result, so earlier votes are void.
void DigestVotes::Forget(RoundId round) {
  std::erase_if(rounds_, [round](const Round& r) { return r.round == round; });
}

void DigestVotes::CheckInvariants() const {
  LOCKSTEP_CHECK(rounds_.size() <= 2, "I7: votes on {} rounds", rounds_.size());
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    const Round& round = rounds_[i];
    LOCKSTEP_CHECK(i == 0 || rounds_[i - 1].round < round.round,
                   "votes on round {} come behind those on round {}", round.round,
                   rounds_[i - 1].round);
    const auto agreeing = std::ranges::count_if(round.votes, [&](const Vote& vote) {
      return vote.slice == round.leading.slice && vote.digest == round.leading.value;
    });
    LOCKSTEP_CHECK(agreeing == static_cast<std::ptrdiff_t>(round.leading.agreeing),
                   "I1: {} agree on round {}, and {} are counted", agreeing, round.round,
                   round.leading.agreeing);
  }
}

}  // namespace lockstep::coordinator
