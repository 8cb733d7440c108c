// How fast bytes go between two ends on this machine. Each measurement runs in a process of its own
// (this program started again), because what a transport reads of its environment it reads once,
// and so that one that hangs or crashes is a finding and no more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "tools/doctor/facts.h"

namespace lockstep::doctor {

// The first argument of a process that measures; further ones: transport, address and memory
// ("host", "cuda:0"), or "copy" and the memories that it goes from and to.
inline constexpr std::string_view kMeasure = "--measure";

// What such a process does: prints "GB/s path" or the reason on a line; its exit status.
int MeasureHere(const std::string& transport, const std::string& host, const std::string& memory);

// Mapped memory, TCP, UCX, and UCX over the active RDMA ports that have an address; with GPUs the
// copies to, from and between them, and UCX with the first one's memory. Of ports, GPUs and pairs
// of them the first one, and more as long as less than `patience` has passed in all. Each may take
// so long itself.
std::vector<Bandwidth> MeasureAll(const Facts& facts, Duration patience);

}  // namespace lockstep::doctor
