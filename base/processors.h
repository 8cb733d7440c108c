// How many processors this process may keep busy.
#pragma once

#include <cstddef>
#include <string>

#include "base/control_groups.h"

namespace lockstep {

// The number of processors that the calling thread may run on, or the quotas of its control groups,
// rounded up, where those are less. The result is at least 1; a limit that cannot be read does not
// count.
std::size_t UsableProcessors();

// The first processor's name as the kernel has it, or its maker's numbers.
std::string ProcessorName();

// --- its parts

// The number in a list as the kernel writes it, such as "0-3,8"; 0: it cannot be read.
std::size_t ListedProcessors(const std::string& list);

// The number that the quota of one group allows, rounded up; 0: it has none.
std::size_t QuotaProcessors(const ControlGroup& group);

}  // namespace lockstep
