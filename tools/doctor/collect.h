// Looks at this machine: /sys, /proc and limits. `root` stands before every path, so that tests can
// have a machine of their own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/facts.h"

namespace lockstep::doctor {

// /sys/class/infiniband; GPUs and their place on PCI from /sys/bus/pci/devices. Without addresses.
std::vector<RdmaPort> ReadRdma(const std::filesystem::path& root);
bool HasRdmaDeviceFiles(const std::filesystem::path& root);
NvidiaFacts ReadNvidia(const std::filesystem::path& root);
// Cores that the control groups of this process allow, the tightest of them; v2 or v1.
std::optional<double> ReadCpuQuota(const std::filesystem::path& root);
std::string ReadCongestionControl(const std::filesystem::path& root);

// All but the versions of libraries and the bandwidth; of the machine that this runs on.
Facts LookAround();

}  // namespace lockstep::doctor
