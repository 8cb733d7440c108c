#include "base/processors.h"

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

// The group's file has "200000 100000": microseconds of processor time in a period of so many.
std::optional<std::uint64_t> ReadSecond(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (file >> quota >> period && period > 0) return static_cast<std::uint64_t>(period);
  return std::nullopt;
}

// The number that the calling thread may run on; 0: it cannot be read.
std::size_t AllowedProcessors() {
  constexpr std::string_view kName = "Cpus_allowed_list:";
  std::ifstream file("/proc/thread-self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(kName)) return ListedProcessors(line.substr(kName.size()));
  }
  return 0;
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

std::size_t UsableProcessors() {
  std::size_t usable = AllowedProcessors();
  if (usable == 0) usable = std::max(std::thread::hardware_concurrency(), 1u);
  ForEachControlGroup("cpu", [&](const ControlGroup& group) {
    if (const std::size_t quota = QuotaProcessors(group); quota > 0) {
      usable = std::min(usable, quota);
    }
  });
  return usable;
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::string parts;  // where the kernel has no name
  while (std::getline(file, line)) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) return line.substr(colon + 2);
    if (parts.size() < 64 && (line.starts_with("CPU implementer") || line.starts_with("CPU part")))
      parts += line.substr(colon + 2) + " ";
  }
  return parts.empty() ? "an unknown processor" : "processor " + parts;
}

}  // namespace lockstep
