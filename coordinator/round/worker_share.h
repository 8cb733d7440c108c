// What one member has to do with a round: the units in its queue, the parts it has sealed out of
// them, and what it was asked and has not answered yet.
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

// Invariant: a void part has no units and is never delivered; its number stays used up, so that
// what the worker sent under it is not taken for a later part.
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

// Invariants: `given` adds up to `queue` and its orders ascend; of the queue's units exactly
// `sealed_units` are sealed; there are at most kMaxParts parts, and behind the last one nothing is
// appended.
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

  // By an order above all earlier ones.
  void Append(std::uint32_t order, const std::vector<UnitIndex>& units);
  // Positions [first, last) of the queue that came by an order which is no plan; none: they are
  // gone.
  std::optional<std::pair<std::size_t, std::size_t>> PositionsOf(std::uint32_t order) const;
  // Takes positions [first, last) out of the queue.
  std::vector<UnitIndex> Cut(std::size_t first, std::size_t last);
  // Nothing of it counts any more. Returns how many parts were waiting for delivery.
  std::uint32_t Void();
  // Behind the second part nothing can be appended. Whether the worker has begun to seal it is not
  // known here: what comes too late is refused, and goes elsewhere.
  bool HasRoom() const { return parts.size() < kMaxParts && !refused && !revoke; }
  std::uint32_t undelivered() const;

  void CheckInvariants() const;
};

}  // namespace lockstep::coordinator
