#include "base/control_groups.h"

#include <fstream>
#include <string>

namespace lockstep {

void ForEachControlGroup(std::string_view controller,
                         const std::function<void(const ControlGroup&)>& visit) {
  std::ifstream groups("/proc/self/cgroup");
  ForEachControlGroup(groups, "/sys/fs/cgroup", controller, visit);
}

// Lines of id:controllers:path; version 2 has id 0 and no controllers.
void ForEachControlGroup(std::istream& groups, const std::filesystem::path& root,
                         std::string_view controller,
                         const std::function<void(const ControlGroup&)>& visit) {
  const std::string name(controller);
  std::string line;
  while (std::getline(groups, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + name + ",") == std::string::npos) continue;
    const std::filesystem::path top = v2 ? root : root / name;
    std::filesystem::path group = line.substr(second + 1);
    for (;; group = group.parent_path()) {  // the limit of every group above holds too
      visit({top / group.relative_path(), v2});
      if (group.relative_path().empty()) break;
    }
  }
}

}  // namespace lockstep
