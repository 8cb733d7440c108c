// Looks at this machine: the facts of transport/paths, limits and the network. `root` stands before
// every path, so that tests can have a machine of their own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tools/doctor/facts.h"

namespace lockstep::doctor {

// Cores that the control groups of this process allow, by the tightest of them; v2 or v1.
std::optional<double> ReadCpuQuota(const std::filesystem::path& root);
std::string ReadCongestionControl(const std::filesystem::path& root);

// Finds all facts of this machine but the versions of libraries and the bandwidth.
Facts LookAround();

}  // namespace lockstep::doctor
