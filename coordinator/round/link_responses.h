// How the members' links did in one round, out of when parts were ready, and received.
#pragma once

#include <vector>

#include "base/time.h"
#include "coordinator/round/owner_weights.h"
#include "coordinator/round/round_work.h"

namespace lockstep::coordinator {

// Of all that have sealed a part or own; `control` is left open.
std::vector<LinkResponse> LinkResponses(const RoundWork& work, Time now);

}  // namespace lockstep::coordinator
