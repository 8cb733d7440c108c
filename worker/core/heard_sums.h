// Keeps what others said of the sums that they publish, until the commit that it is of is known
// here and a buffer is free. A message between workers may be quicker than the coordinator's.
//
// In: SumReady, as peers say it. Out: what one of them said of this very attempt, if it did.
//
// Invariants:
//   I1  what was said of another attempt, or under another owner map, is never found for a commit.
//   I7  of each peer at most one for each round that could still be taken and each of the two
//   kinds,
//       its own shard and that of the owner that it stands in for; and of each shard that it passes
//       on (routes.h) partial and whole sums. Who is ahead by more overwrites what is history.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/routes.h"
#include "worker/core/peer_messages.h"
#include "worker/core/step_io.h"

namespace lockstep::worker {

class HeardSums {
 public:
  struct Heard {
    SumReady ready;
    std::vector<std::byte> floats;  // that rode along
  };

  void Store(const MemberId& from, const SumReady& ready, std::span<const std::byte> floats);
  // Returns what this owner said of the commit's attempt, under the commit's map.
  const Heard* Find(const MemberId& owner, const msg::Commit& commit) const;
  // Returns what `by`, which stands in for this owner, said of it.
  const Heard* FindStandIn(const MemberId& by, WorkerId owner, const msg::Commit& commit) const;
  // Returns what it said last that it passes on of a shard, whole or partial sums.
  const Heard* FindPassed(const MemberId& from, std::uint32_t shard, bool whole,
                          const msg::Commit& commit) const;
  // Also what peers that are not known any more said of rounds far beyond the last that is
  // committed: no round that comes would take that away.
  void ForgetBefore(RoundId round, std::optional<RoundId> committed,
                    const std::function<bool(const MemberId&)>& known);
  std::size_t size() const;  // announcements that are kept

  void CheckInvariants() const;

 private:
  enum Kind : std::size_t { kOwn, kStandIn, kPassed, kKinds = kPassed + 2 * kMostRoots };
  static std::size_t KindOf(const SumReady& ready);
  using OfMember = std::array<std::array<std::optional<Heard>, kSumBuffers>, kKinds>;

  const Heard* Find(const MemberId& from, std::size_t kind, const msg::Commit& commit) const;

  std::map<MemberId, OfMember> heard_;
};

}  // namespace lockstep::worker
