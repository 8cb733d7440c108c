// I1 watched: members report a digest of a rotating slice of their parameters after each round. A
// minority that differs is found; without a strict majority nobody can be believed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

class DigestVotes {
 public:
  struct Outcome {
    std::vector<MemberId> minority;
    bool no_majority = false;
  };

  // A member reports a round once. `voters`: how many will.
  Outcome Add(const MemberId& member, RoundId round, std::uint32_t slice, std::uint64_t digest,
              std::uint32_t voters);
  // The value that most have reported.
  std::optional<DigestRecord> Leading(RoundId round) const;
  void Forget(RoundId round);  // a new attempt: what was said before is void

  void CheckInvariants() const;

 private:
  // The slice belongs to the value: each round has another one.
  struct Vote {
    MemberId member;
    std::uint32_t slice;
    std::uint64_t digest;
  };
  // Invariants: `leading` is the vote with the most in favour so far, and how many those are; a
  // member is in `votes` once, since it applies an attempt once.
  struct Round {
    RoundId round;
    std::vector<Vote> votes;
    DigestRecord leading;
  };
  std::deque<Round> rounds_;  // the two latest
};

}  // namespace lockstep::coordinator
