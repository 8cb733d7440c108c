// Who owns slices, and how much: members that answer; those that are slow at publishing with half
// the weight, those behind a slow link with none. The map changes only for a lasting reason, so
// that under static conditions it stays.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/members.h"

namespace lockstep::coordinator {

// How a member's link did in one round.
struct LinkResponse {
  MemberId member;
  // Of an owner: how long after the first parts of others were ready its receipts came. It takes
  // two for a receipt, so this is what it does with the quicker ones of its contributors; those
  // that are mapped with it count as received at once.
  std::optional<Duration> receipts;
  // Of a contributor: how long after its own first part was ready it was delivered; or, when it is
  // not, until now.
  std::optional<Duration> delivery;
  bool delivered = false;
  Duration control{};  // see ResponseDelay
};

// For the log: why a map has changed is what people look for in it.
struct OwnerChange {
  WorkerId worker;
  bool owns = false;
};

class OwnerWeights {
 public:
  explicit OwnerWeights(std::uint32_t slots) : slots_(slots) {}

  // One published round: how long each owner took, in the order of `owners`.
  void OnRoundPublished(std::span<const MemberId> owners, std::span<const Duration> took);

  // One round that is committed. Whose receipts are late, round after round, while all else that it
  // says is late too, has a link that is filled by its own bulk: it holds up the contributions of
  // others, and owns nothing until its own parts are delivered much quicker. Returns whose case
  // changed.
  std::vector<OwnerChange> OnRoundDelivered(std::span<const LinkResponse> responses);

  // Of `candidates` (ascending, at least one) those that are not on trial (OwnerTrial), have no
  // broken edge to anybody and no slow link; if none is left, those with the fewest faults. Never
  // empty.
  OwnerMap Choose(std::uint32_t version, std::span<const MemberId> candidates,
                  const Members& members) const;

  void CheckInvariants() const;

 private:
  // Of one incarnation: another one that takes the slot begins anew. Invariants: slow_rounds or
  // quick_rounds is 0; while slow_link, late_rounds is 0, else prompt_rounds is.
  struct Slot {
    Incarnation incarnation;
    Duration mean{};                // of publishing
    std::uint32_t slow_rounds = 0;  // in a row
    std::uint32_t quick_rounds = 0;
    bool half = false;

    Duration delivery{};              // of its own part, mean
    std::uint32_t late_rounds = 0;    // more of these than of others
    std::uint32_t prompt_rounds = 0;  // in a row
    std::uint32_t times_slow = 0;
    bool slow_link = false;
    Duration delivery_when_slow{};
  };
  Slot& SlotOf(const MemberId& id);
  static bool TurnsSlow(const LinkResponse& response, Duration usual_receipts,
                        Duration usual_control, Slot* slot);
  static bool TurnsQuick(const LinkResponse& response, Duration usual_control, Slot* slot);

  std::vector<Slot> slots_;
};

}  // namespace lockstep::coordinator
