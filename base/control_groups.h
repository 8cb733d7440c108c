// The control groups that limit this process.
#pragma once

#include <filesystem>
#include <functional>
#include <istream>
#include <string_view>

namespace lockstep {

// A folder of the control group's file system, of version 2 or 1.
struct ControlGroup {
  std::filesystem::path folder;
  bool v2 = true;
};

// Calls `visit` for each group that limits this process in `controller` ("memory", "cpu"): its own
// one and all above it. Calls it for none where they cannot be read.
void ForEachControlGroup(std::string_view controller,
                         const std::function<void(const ControlGroup&)>& visit);

// Does the same for a process whose /proc/PID/cgroup is `groups`, with the file systems below
// `root`.
void ForEachControlGroup(std::istream& groups, const std::filesystem::path& root,
                         std::string_view controller,
                         const std::function<void(const ControlGroup&)>& visit);

}  // namespace lockstep
