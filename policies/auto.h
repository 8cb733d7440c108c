// Policy `auto`: picks what the job's own statistics call for, and says why.
//
// A lasting difference (a worker's mean unit time stays away from the others') is met by shares in
// proportion to speed, as `balance` makes them. A passing one is met within the round, as `flexrr`
// does. A worker that takes longer than its samples are worth is left out of the round, as under
// `backup` (policies/forecast.h). Without stragglers it is `full` with equal shares.
#pragma once

#include "policies/balance.h"
#include "policies/flexrr.h"
#include "policies/policy.h"

namespace lockstep::policies {

Policy MakeAuto(const FlexrrOptions& flexrr, const BalanceOptions& balance);

}  // namespace lockstep::policies
