// How much memory this process has, and how much more it may take before the kernel would have to
// kill a process.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace lockstep {

// The smallest of three numbers. They are the machine's available memory and free swap, the room
// below the limits of the process's control groups (v2 or v1), and the room in its address space.
// This is an estimate, as other processes take memory too. A value that cannot be read does not
// limit.
std::uint64_t FreeMemoryBytes();

// The part of this process's memory that is resident, with what it has mapped of other processes.
// 0: it cannot be read.
std::uint64_t ResidentBytes();

// Call it before a large allocation whose size comes from outside: the kernel hands out more than
// it has, and kills for it later. Returns kUnavailable with one line: `what` of so many bytes does
// not fit.
Status CheckMemory(std::uint64_t bytes, std::string_view what);

// When memory runs out all the same, on any thread, the process prints "PROGRAM: out of memory" and
// ends with status 1, instead of an abort. A thread that cannot be started is treated alike. main()
// calls it once; `program` must live for ever.
void EndWhenOutOfResources(const char* program);

}  // namespace lockstep
