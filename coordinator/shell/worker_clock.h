// Workers stamp what they did with their own monotonic clocks; records are in the coordinator's.
#pragma once

#include "base/messages.h"
#include "base/time.h"

namespace lockstep::coordinator {

// Takes `offset` (the worker's clock less ours) off all times in the message.
void ToOwnClock(FromWorker& message, Duration offset);

}  // namespace lockstep::coordinator
