// How long work takes under slow-downs. Pure: what happens to a unit depends on the specs and on
// the arguments alone, so all workers, the simulator and a second run see the same.
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
  // `workers`: of the job; who is disrupted is drawn among so many.
  SlowdownModel(std::vector<SlowdownSpec> specs, std::uint32_t workers);

  // How long the unit with this index of the round takes when it begins `since_start` after the
  // job's start and would take `nominal` undisturbed; never less than that. Factors of several
  // specs multiply. Factors that change with time act on what is left of the unit from then on; a
  // pause holds it. Fast where nothing acts.
  Duration Lengthen(WorkerId worker, RoundId round, std::uint32_t unit, Duration since_start,
                    Duration nominal) const;

  // How much of such a unit is a stall: time in which the machine stands still, whatever becomes of
  // the unit (slow-worker's delay; what delay adds to the unit). It counts from the unit's
  // beginning.
  Duration Stall(WorkerId worker, RoundId round, std::uint32_t unit, Duration since_start,
                 Duration nominal) const;

  // When the pause that is in force at that time of the job is over; that time where none is.
  Duration PauseEnd(WorkerId worker, Duration since_start) const;

  // Whether any spec that may speak of this worker is in its window.
  bool MayAct(WorkerId worker, Duration since_start) const;

 private:
  std::vector<SlowdownSpec> specs_;
  std::uint32_t workers_ = 1;
};

}  // namespace lockstep
