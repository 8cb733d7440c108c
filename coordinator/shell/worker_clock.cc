#include "coordinator/shell/worker_clock.h"

namespace lockstep::coordinator {

void ToOwnClock(FromWorker& message, Duration offset) {
  const std::int64_t ns = offset.count();
  if (auto* sealed = std::get_if<Sealed>(&message)) {
    sealed->sealed_ns -= ns;
    for (UnitTiming& unit : sealed->units) {
      unit.start_ns -= ns;
      unit.end_ns -= ns;
    }
  } else if (auto* applied = std::get_if<Applied>(&message)) {
    applied->applied_ns -= ns;
  }
}

}  // namespace lockstep::coordinator
