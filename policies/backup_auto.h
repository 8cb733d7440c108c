// Closing rule `backup` with backup.workers = auto: how many workers a round does without is chosen
// anew from measured arrival times and the cost of smaller batches. After Xu, Neglia and
// Sebastianelli, "Dynamic backup workers for parallel machine learning", Computer Networks 188,
// 2021: the number of contributions waited for maximizes gain(k) / time(k). Here gain(k) is the
// samples that count, since the learning rate follows them and what is left out comes again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/policy.h"

namespace lockstep::policies {

std::unique_ptr<ClosingRule> MakeBackupAuto();

// The b, at most half of the workers, with the most contributions per second when a round waits for
// its first n - b arrivals (ascending). `current` stays unless another b is 2 % better.
std::uint32_t BestBackups(const std::vector<std::vector<Duration>>& rounds, std::uint32_t current);

}  // namespace lockstep::policies
