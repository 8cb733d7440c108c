// The receipts of an open round: every owner fetches its shard of each sealed part and says so.
//
// Decides: when receipts are late, who is asked for a sign of life, whether owners are given more
// time, and which of them are blamed and lose their slices.
//
// In: the work of the round and the time. Out: decisions; the round asks, and chooses other owners.
//
// Invariants:
//   -   slow is not lost: nobody is evicted for late receipts. If all are late the links are slow,
//       and all get more time.
//   I6  while a sealed part is not delivered the deadline is not kNever; each look at it asks,
//       blames or moves it on.
#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "coordinator/job/context.h"
#include "coordinator/round/round_work.h"

namespace lockstep::coordinator {

class ReceiptWatch {
 public:
  struct Decision {
    std::vector<WorkerId> ping;
    std::vector<WorkerId> blamed;  // owners
  };

  explicit ReceiptWatch(const Job* job) : job_(job) { Reset(); }

  // With a new map everybody begins anew, with the patience that lately was enough.
  void Reset();
  // The deadline runs from the last part that was sealed: only then can receipts be all that is
  // missing. At half of it the owners concerned are pinged, and have the other half to answer,
  // however late that look was. kNever: none is missing.
  Time Next(const RoundWork& work) const;
  // May be called at any time; does nothing before Next.
  Decision Look(const RoundWork& work);

  void CheckInvariants() const;

 private:
  bool OnlyReceiptsLack(const RoundWork& work) const;
  std::vector<WorkerId> Blame(const RoundWork& work, Time pinged_at) const;

  const Job* job_;
  Time from_;            // the deadline does not run before this, whatever was sealed before
  Duration patience_{};  // grows while it is slow for everybody
  std::optional<Time> pinged_at_;
};

}  // namespace lockstep::coordinator
