// How much memory this process may still take before the kernel would have to kill somebody for it.
#pragma once

#include <cstdint>

namespace lockstep::transport {

// The smaller of what the machine has left (available memory and free swap) and what is left below
// the memory limits of the process's control groups (v2 or v1). An estimate, as others take memory
// too; what cannot be read does not limit.
std::uint64_t FreeMemoryBytes();

}  // namespace lockstep::transport
