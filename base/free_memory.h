// How much memory this process has, and how much it may still take before the kernel would have to
// kill somebody for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace lockstep {

// The smallest of what the machine has left (available memory and free swap), what is left below
// the memory limits of the process's control groups (v2 or v1), and what its limit on address space
// leaves. An estimate, as others take memory too; what cannot be read does not limit.
std::uint64_t FreeMemoryBytes();

// What of this process's memory is in the machine's; what it has mapped of other processes counts.
// 0: it cannot be read.
std::uint64_t ResidentBytes();

// Asked before a large allocation whose size somebody outside chose: the kernel hands out more than
// it has, and kills for it later. kUnavailable: `what` of so many bytes does not fit; one line.
Status CheckMemory(std::uint64_t bytes, std::string_view what);

// Where memory runs out all the same, on any thread: "PROGRAM: out of memory" and status 1, instead
// of an abort; and likewise where no thread can be started. For main(), once; `program` lives for
// ever.
void EndWhenOutOfResources(const char* program);

}  // namespace lockstep
