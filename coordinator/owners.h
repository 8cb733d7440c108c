// Who owns slices, and how much: members that answer, those that are slow at publishing with half
// the weight. The map changes only for a lasting reason, so that under static conditions it stays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/members.h"

namespace lockstep::coordinator {

class OwnerWeights {
 public:
  explicit OwnerWeights(std::uint32_t slots) : slots_(slots) {}

  // One published round: how long each owner took, in the order of `owners`.
  void OnRoundPublished(std::span<const MemberId> owners, std::span<const Duration> took);

  // Of `candidates` (ascending, at least one) those that are not on trial and have no broken edge
  // to anybody; if none is left, those with the fewest faults. Never empty.
  OwnerMap Choose(std::uint32_t version, std::span<const MemberId> candidates,
                  const Members& members) const;

 private:
  struct Slot {
    Incarnation incarnation;
    Duration mean{};
    std::uint32_t slow_rounds = 0;  // in a row
    std::uint32_t quick_rounds = 0;
    bool half = false;
  };
  std::vector<Slot> slots_;
};

}  // namespace lockstep::coordinator
