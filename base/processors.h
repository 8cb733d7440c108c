// How many processors this process may keep busy.
#pragma once

#include <cstddef>
#include <string>

#include "base/control_groups.h"

namespace lockstep {

// The processors that the thread that asks may run on, or what the quotas of its control groups
// allow, rounded up, where that is less. At least 1; what cannot be read does not limit.
std::size_t UsableProcessors();

// --- its parts

// In a list as the kernel writes it, as "0-3,8"; 0: it cannot be read.
std::size_t ListedProcessors(const std::string& list);

// By the quota of one group, rounded up; 0: it has none.
std::size_t QuotaProcessors(const ControlGroup& group);

}  // namespace lockstep
