// Measures how fast bytes go between two ends on this machine. Each measurement runs in a process
// of its own (this program started again): a transport reads its environment only once, and a hang
// or crash is then only a finding.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "tools/doctor/facts.h"

namespace lockstep::doctor {

// The first argument of a process that measures. Further ones are transport, address and memory
// ("host", "cuda:0"), or "copy" and its source and target memory.
inline constexpr std::string_view kMeasure = "--measure";

// The task of such a process: it prints "GB/s path" or the reason on a line, and returns its exit
// status.
int MeasureHere(const std::string& transport, const std::string& host, const std::string& memory);

// Measures mapped memory, TCP, UCX, and UCX over the active RDMA ports that have an address. With
// GPUs it also measures the copies to, from and between them, and UCX with the first one's memory.
// Of ports, GPUs and pairs it takes the first one, and more as long as less than `patience` has
// passed in all. Each measurement may take as long itself.
std::vector<Bandwidth> MeasureAll(const Facts& facts, Duration patience);

}  // namespace lockstep::doctor
