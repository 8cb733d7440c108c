// Work rule `balance`: for differences that last. Units are shared out in proportion to measured
// speed, the global batch stays what it is. After Chen et al., "Semi-dynamic load balancing:
// efficient distributed learning in non-dedicated environments", SoCC'20 (LB-BSP), section 3; the
// speed is the exponentially weighted mean of the unit times.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

struct BalanceOptions {
  // Shares stay until others would make the round shorter by more than this share of it.
  double hysteresis = 0.05;
};

std::unique_ptr<WorkRule> MakeBalance(const BalanceOptions& options);

// As many numbers as `unit_times`, their sum is `units`: the largest quotient of a share and its
// worker's speed is as small as whole units allow. All unit times are above zero.
std::vector<std::uint32_t> SharesBySpeed(std::span<const Duration> unit_times, std::uint32_t units);

}  // namespace lockstep::policies
