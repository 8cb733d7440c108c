// One member's work in a round: the units in its queue, the parts that it has sealed, and the
// questions that it has not answered yet.
//
// Decides nothing: RoundWork changes it, and is told here when a change cannot be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/members.h"

namespace lockstep::coordinator {

// Invariant: a void part has no units and is never delivered. Its number stays used, so that its
// bytes are not taken for a later part.
struct SealedPart {
  bool is_void = false;  // its worker was fenced since, or it is not finite
  std::uint64_t samples = 0;
  std::uint64_t divisor = 0;  // the samples, where the program has not said another one
  double loss_sum = 0;
  std::optional<double> sampled_squares;
  std::vector<UnitTiming> units;
  std::vector<std::uint64_t> runs;  // of how many of the units each; none: not said
  std::vector<Metric> metrics;
  msg::SentBytes sent;
  msg::Reading reading;
  ClockOffset clock;  // of the worker, for its units' times
  Time ready_at;
  std::optional<Time> delivered_at;  // under the present owner map
};

// A revoke that waits for its answer. While it does nothing is given to its worker, so that both
// ends count the same queue positions.
struct PendingRevoke {
  struct Taker {
    MemberId member;
    std::uint32_t units = 0;
  };
  std::vector<Taker> takers;  // none: the round does without the units
  std::uint32_t from = 0;     // position
  std::uint32_t order = 0;
  Time asked;
};

// Units that came to a member by one order, one behind the other in its queue.
struct GivenUnits {
  std::uint32_t order = 0;  // 0: the plan
  std::uint32_t units = 0;  // > 0
};

// Invariants: `given` adds up to `queue`, and its orders ascend. Exactly `sealed_units` of the
// queue's units are sealed. There are at most kMaxParts parts; nothing follows the last one.
struct WorkerShare {
  MemberId member;
  Time since;                      // it had nothing to compute here before
  std::vector<UnitIndex> queue;    // what it was given, less what it gave back
  std::vector<GivenUnits> given;   // the queue, by order
  std::vector<SealedPart> parts;   // sealed, at most kMaxParts
  std::uint32_t sealed_units = 0;  // of the queue
  std::uint32_t fence_order = 0;
  bool fence_answered = false;  // fenced, and it has said that it holds nothing any more
  bool away = false;            // Member::absence
  bool refused = false;         // an Assign: both of its parts are being sealed
  Attempt plan;                 // Plan::attempt of the round in which it was given its work
  std::optional<PendingRevoke> revoke;

  // The order is above all earlier ones.
  void Append(std::uint32_t order, const std::vector<UnitIndex>& units);
  // Positions [first, last) that came by this order, not by a plan; nullopt: they are gone.
  std::optional<std::pair<std::size_t, std::size_t>> PositionsOf(std::uint32_t order) const;
  // Takes positions [first, last) out of the queue.
  std::vector<UnitIndex> Cut(std::size_t first, std::size_t last);
  // Makes all its parts void. Returns how many parts were waiting for delivery.
  std::uint32_t Void();
  // Nothing can be appended after the second part. It is not known here whether the worker has
  // begun to seal it: late units are refused, and go to others.
  bool HasRoom() const { return parts.size() < kMaxParts && !refused && !revoke; }
  std::uint32_t undelivered() const;

  void CheckInvariants() const;
};

}  // namespace lockstep::coordinator
