#include "base/processors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

namespace lockstep {
namespace {

// The first number in a file; nothing where it is absent, or says "max" or -1.
std::optional<std::uint64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value && value > 0) return static_cast<std::uint64_t>(value);
  return std::nullopt;
}

// As "200000 100000": microseconds of processor time in a period of so many.
std::optional<std::uint64_t> ReadSecond(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (file >> quota >> period && period > 0) return static_cast<std::uint64_t>(period);
  return std::nullopt;
}

// What stands behind `key` in a file of lines "key: value"; empty where it does not.
std::string ReadKey(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return {};
}

// That a process, or a thread, may run on.
std::size_t AllowedProcessors(const std::string& status) {
  return ListedProcessors(ReadKey(status, "Cpus_allowed_list:"));
}

std::size_t ProcessorsInFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string list;
  std::getline(file, list);
  return ListedProcessors(list);
}

}  // namespace

std::size_t ListedProcessors(const std::string& list) {
  std::istringstream words(list);
  std::size_t processors = 0;
  std::uint32_t first = 0;
  while (words >> first) {
    std::uint32_t last = first;
    if (words.peek() == '-' && !(words.ignore() >> last)) return 0;
    if (last < first) return 0;
    processors += std::size_t{last - first} + 1;
    if (words.peek() != ',') break;
    words.ignore();
  }
  return processors;
}

std::size_t QuotaProcessors(const ControlGroup& group) {
  const auto quota = ReadNumber(group.folder / (group.v2 ? "cpu.max" : "cpu.cfs_quota_us"));
  const auto period = group.v2 ? ReadSecond(group.folder / "cpu.max")
                               : ReadNumber(group.folder / "cpu.cfs_period_us");
  if (!quota || !period) return 0;
  return static_cast<std::size_t>((*quota + *period - 1) / *period);
}

Processors ProcessorsOf(std::size_t usable, std::size_t of_starter, std::size_t of_groups,
                        std::size_t quota) {
  Processors processors;
  processors.usable = std::max<std::size_t>(usable, 1);
  processors.shared = processors.usable;
  if (of_starter > usable) processors.shared = std::max(of_groups, processors.usable);
  if (quota > 0) {
    processors.usable = std::min(processors.usable, quota);
    processors.shared = std::min(processors.shared, quota);
  }
  return processors;
}

Processors UsableProcessors() {
  std::size_t usable = AllowedProcessors("/proc/thread-self/status");
  if (usable == 0) usable = std::max(std::thread::hardware_concurrency(), 1u);
  std::size_t starter = 0;
  std::istringstream(ReadKey("/proc/self/status", "PPid:")) >> starter;
  const std::size_t of_starter = AllowedProcessors(fmt::format("/proc/{}/status", starter));
  std::size_t of_groups = ProcessorsInFile("/sys/devices/system/cpu/online");
  ForEachControlGroup("cpuset", [&](const ControlGroup& group) {
    const char* file = group.v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus";
    const std::size_t listed = ProcessorsInFile(group.folder / file);
    if (listed > 0) of_groups = std::min(of_groups, listed);
  });
  std::size_t quota = 0;
  ForEachControlGroup("cpu", [&](const ControlGroup& group) {
    const std::size_t of_group = QuotaProcessors(group);
    if (of_group > 0) quota = quota == 0 ? of_group : std::min(quota, of_group);
  });
  return ProcessorsOf(usable, of_starter, of_groups, quota);
}

}  // namespace lockstep
