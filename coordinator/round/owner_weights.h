// Decides which members own slices, and with which weight. Slow publishers get half the weight;
// members behind a slow link get none. The map changes only for a lasting reason, so that under
// static conditions it stays.
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

// A member's link in one round.
struct LinkResponse {
  MemberId member;
  // For an owner: the time from the first parts of others until its receipts came. It takes two for
  // a receipt, so this is what it does with the quicker ones of its contributors; those that are
  // mapped with it count as received at once.
  std::optional<Duration> receipts;
  // For a contributor: the time from its own first part until that was delivered, or until now.
  std::optional<Duration> delivery;
  bool delivered = false;
  Duration control{};  // see ResponseDelay
};

// For the log, which shows why a map has changed.
struct OwnerChange {
  WorkerId worker;
  bool owns = false;
};

class OwnerWeights {
 public:
  explicit OwnerWeights(std::uint32_t slots) : slots_(slots) {}

  // Takes a published round: the time of each owner, in the order of `owners`.
  void OnRoundPublished(std::span<const MemberId> owners, std::span<const Duration> took);

  // Takes a committed round. A member has a slow link when its receipts are late, round after
  // round, while its other messages are late too: its own bulk fills the link. It delays the
  // contributions of others, so it owns nothing until its own parts are delivered much quicker.
  // Returns whose case changed.
  std::vector<OwnerChange> OnRoundDelivered(std::span<const LinkResponse> responses);

  // Of `candidates` (ascending, at least one), chooses members that are not on trial (OwnerTrial)
  // and have no broken edge and no slow link. If none is left, it chooses those with the fewest
  // faults. Never empty.
  OwnerMap Choose(std::uint32_t version, std::span<const MemberId> candidates,
                  const Members& members) const;

  void CheckInvariants() const;

 private:
  // The account of one incarnation: the next one in the slot begins again. Invariants: slow_rounds
  // or quick_rounds is 0; while slow_link, late_rounds is 0, else prompt_rounds is.
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
