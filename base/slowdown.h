// The length of work under slow-downs. It is pure: the result for a unit depends on the specs and
// the arguments alone, so all workers, the simulator and a second run agree.
// docs/reference/slowdowns.md describes the patterns.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/slowdown_spec.h"
#include "base/time.h"

namespace lockstep {

class SlowdownModel {
 public:
  SlowdownModel() = default;
  // `workers`: the number of workers in the job; disrupted ones are drawn among them.
  SlowdownModel(std::vector<SlowdownSpec> specs, std::uint32_t workers);

  // The time of the unit with this index of the round that begins `since_start` after the job's
  // start and would take `nominal` undisturbed. It is never less than `nominal`. Factors of several
  // specs multiply. Factors that change with time apply to the rest of the unit from then on; a
  // pause stops it. The call is fast where no slow-down applies.
  Duration Lengthen(WorkerId worker, RoundId round, std::uint32_t unit, Duration since_start,
                    Duration nominal) const;

  // The part of such a unit's time that is a stall, in which the machine stands still whatever
  // becomes of the unit. That is slow-worker's delay, and the time that delay adds to the unit. It
  // counts from the unit's beginning.
  Duration Stall(WorkerId worker, RoundId round, std::uint32_t unit, Duration since_start,
                 Duration nominal) const;

  // The end of the pause that is in force at that time of the job; that time itself where there is
  // none.
  Duration PauseEnd(WorkerId worker, Duration since_start) const;

  // Whether any spec that may apply to this worker is in its window.
  bool MayAct(WorkerId worker, Duration since_start) const;

 private:
  std::vector<SlowdownSpec> specs_;
  std::uint32_t workers_ = 1;
};

}  // namespace lockstep
