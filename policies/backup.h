// Closing rule `backup`: of N + b workers the first N contributions make the round, the rest is
// left out (Chen, Pan, Monga, Bengio, Jozefowicz: Revisiting Distributed Synchronous SGD, 2016,
// arXiv 1604.00981, section 3). Here N + b are the configured workers and b is
// policy.backup_workers.
#pragma once

#include <memory>

#include "policies/policy.h"

namespace lockstep::policies {

// backup_workers < configured workers.
std::unique_ptr<ClosingRule> MakeBackup(std::uint32_t backup_workers);

}  // namespace lockstep::policies
