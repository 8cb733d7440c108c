// Work rule `balance`: for differences that last. Units are shared out in proportion to measured
// speed, the global batch stays what it is. After Chen et al., "Semi-dynamic load balancing:
// efficient distributed learning in non-dedicated environments", SoCC'20 (LB-BSP), section 3.
// Instead of a forecast, the speed is the median over the units of the last three parts.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

struct BalanceOptions {
  // Shares stay until others would make the round shorter by more than this share of it.
  double hysteresis = 0.05;
};

std::unique_ptr<WorkRule> MakeBalance(const BalanceOptions& options);

// Returns as many numbers as `unit_times`, with the sum `units`. The longest time of a share is as
// short as whole units allow. All unit times are above zero; `run_cost` is a share's cost beside
// its units, in its worker's unit times.
std::vector<std::uint32_t> SharesBySpeed(std::span<const Duration> unit_times, double run_cost,
                                         std::uint32_t units);
// The time of the longest share.
Duration LongestShare(std::span<const Duration> unit_times, double run_cost,
                      std::span<const std::uint32_t> shares);

}  // namespace lockstep::policies
