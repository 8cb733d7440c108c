#include "base/free_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/control_groups.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

// Reads a file that holds one number; nullopt where it is absent or says "max".
std::optional<std::uint64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind `key` in a file of "key value" lines; 0 where it is absent.
std::uint64_t ReadKey(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    std::uint64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return 0;
}

std::uint64_t LeftInMachine() {
  constexpr const char* kFile = "/proc/meminfo";
  const std::uint64_t available_kib = ReadKey(kFile, "MemAvailable:");
  if (available_kib == 0) return kUnlimited;
  return (available_kib + ReadKey(kFile, "SwapFree:")) * 1024;
}

// File pages that were not used lately are given back under pressure, so they do not count as used.
std::uint64_t LeftInGroup(const std::filesystem::path& group, const char* limit_file,
                          const char* usage_file, const char* reclaimable_key) {
  const auto limit = ReadNumber(group / limit_file);
  const auto usage = ReadNumber(group / usage_file);
  if (!limit || !usage) return kUnlimited;
  const std::uint64_t reclaimable = ReadKey(group / "memory.stat", reclaimable_key);
  const std::uint64_t used = *usage - std::min(*usage, reclaimable);
  return *limit - std::min(*limit, used);
}

std::uint64_t LeftInGroups() {
  std::uint64_t left = kUnlimited;
  ForEachControlGroup("memory", [&](const ControlGroup& group) {
    left = std::min(
        left, group.v2 ? LeftInGroup(group.folder, "memory.max", "memory.current", "inactive_file")
                       : LeftInGroup(group.folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file"));
  });
  return left;
}

std::uint64_t LeftInAddressSpace() {
  std::ifstream file("/proc/self/limits");
  std::string line;
  while (std::getline(file, line)) {
    constexpr std::string_view kName = "Max address space";
    if (!line.starts_with(kName)) continue;
    std::istringstream words(line.substr(kName.size()));
    std::uint64_t limit = 0;
    if (!(words >> limit)) return kUnlimited;  // "unlimited"
    return limit - std::min(limit, ReadKey("/proc/self/status", "VmSize:") * 1024);
  }
  return kUnlimited;
}

std::atomic<const char*> g_program = "";

void EndForMemory() {
  // Nothing here may take memory.
  std::fputs(g_program, stderr);
  std::fputs(": out of memory\n", stderr);
  std::_Exit(1);
}

std::terminate_handler g_abort = nullptr;

[[noreturn]] void EndForThreads() {
  std::fputs(g_program, stderr);
  std::fputs(
      ": cannot start a thread: a limit on processes (ulimit -u, pids.max) or on address space "
      "(ulimit -v)\n",
      stderr);
  std::_Exit(1);
}

// Nothing catches the exceptions of std::thread and Asio's threads: a program cannot do without
// these threads.
void EndUncaught() {
  const std::exception_ptr thrown = std::current_exception();
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) EndForThreads();
  } catch (const boost::system::system_error& error) {
    if (error.code() == boost::system::errc::resource_unavailable_try_again) EndForThreads();
  } catch (...) {  // other exceptions are not handled here
  }
  g_abort();
}

}  // namespace

std::uint64_t FreeMemoryBytes() {
  return std::min({LeftInMachine(), LeftInGroups(), LeftInAddressSpace()});
}

std::uint64_t ResidentBytes() { return ReadKey("/proc/self/status", "VmRSS:") * 1024; }

Status CheckMemory(std::uint64_t bytes, std::string_view what) {
  const std::uint64_t free = FreeMemoryBytes();
  if (bytes <= free) return {};
  return Error{ErrorCode::kUnavailable,
               fmt::format("{} of {} bytes does not fit into the {} bytes of free memory", what,
                           bytes, free)};
}

void EndWhenOutOfResources(const char* program) {
  g_program = program;
  std::set_new_handler(EndForMemory);
  g_abort = std::set_terminate(EndUncaught);
}

}  // namespace lockstep
