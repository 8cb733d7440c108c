// Work rule `balance`: for differences that last. Units are shared out in proportion to measured
// speed, the global batch stays what it is. After Chen et al., "Semi-dynamic load balancing:
// efficient distributed learning in non-dedicated environments", SoCC'20 (LB-BSP), section 3;
// instead of a forecast of the speed the median of what the units of the last three parts took.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

struct BalanceOptions {
  // Shares stay until others would make the round shorter by more than this share of it.
  double hysteresis = 0.05;
};

std::unique_ptr<WorkRule> MakeBalance(const BalanceOptions& options);

// As many numbers as `unit_times`, their sum is `units`: the longest time that a share takes is as
// short as whole units allow. All unit times are above zero; `run_cost`: of a share, beside its
// units, in its worker's unit times.
std::vector<std::uint32_t> SharesBySpeed(std::span<const Duration> unit_times, double run_cost,
                                         std::uint32_t units);
// What the longest of the shares takes.
Duration LongestShare(std::span<const Duration> unit_times, double run_cost,
                      std::span<const std::uint32_t> shares);

}  // namespace lockstep::policies
