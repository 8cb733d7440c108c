#include "tools/doctor/collect.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "transport/mapping/arena.h"
#include "transport/paths/files.h"
#include "transport/paths/judge.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

std::string WholeText(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// IPv4 comes before IPv6, and link-local addresses do not count: nobody can connect to them.
std::string AddressOf(const std::string& netdev) {
  ifaddrs* all = nullptr;
  if (netdev.empty() || getifaddrs(&all) != 0) return {};
  std::string v4;
  std::string v6;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || netdev != one->ifa_name) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (one->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr,
                text.data(), text.size());
      if (v4.empty()) v4 = text.data();
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      inet_ntop(AF_INET6, &address, text.data(), text.size());
      if (v6.empty()) v6 = text.data();
    }
  }
  freeifaddrs(all);
  return v4.empty() ? v6 : v4;
}

// The quota in one folder of a control group.
std::optional<double> QuotaIn(const fs::path& folder) {
  if (std::ifstream v2(folder / "cpu.max"); v2) {
    double quota = 0;
    double period = 0;
    if (v2 >> quota >> period && period > 0) return quota / period;  // "max 100000" means no quota
    return std::nullopt;
  }
  double quota = -1;
  double period = 0;
  std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
  std::ifstream(folder / "cpu.cfs_period_us") >> period;
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// Reads lines of /proc/self/cgroup: "0::/user.slice" (v2), "4:cpu,cpuacct:/docker/4f" (v1).
std::vector<std::pair<std::string, std::string>> CpuGroups(const fs::path& root) {
  std::vector<std::pair<std::string, std::string>> groups;  // mount below /sys/fs/cgroup, path
  std::istringstream text(WholeText(root / "proc/self/cgroup"));
  for (std::string line; std::getline(text, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) groups.emplace_back("", path);
    if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      groups.emplace_back(controllers, path);
      groups.emplace_back("cpu", path);
    }
  }
  return groups;
}

std::string SealingError() {
  const transport::BlockSpec block{"doctor", 4096};
  const auto arena = transport::Arena::Create(std::span(&block, 1));
  return arena ? "" : arena.error().message;
}

std::optional<std::uint64_t> LimitOf(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

Limits ReadLimits() {
  Limits limits;
  limits.locked_bytes = LimitOf(RLIMIT_MEMLOCK);
  limits.files = LimitOf(RLIMIT_NOFILE).value_or(~std::uint64_t{0});
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    limits.shm_bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize;
    limits.shm_free = std::uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  limits.sealing_error = SealingError();
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  limits.cores = sched_getaffinity(0, sizeof(cpus), &cpus) == 0
                     ? static_cast<unsigned>(CPU_COUNT(&cpus))
                     : static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN));
  limits.cpu_quota = ReadCpuQuota("/");
  return limits;
}

}  // namespace

std::optional<double> ReadCpuQuota(const fs::path& root) {
  std::optional<double> tightest;
  for (const auto& [mount, group] : CpuGroups(root)) {
    // In a container the path may be the host's, which is not visible here; then the mount's own
    // root is the group.
    for (fs::path path = fs::path(group).relative_path();; path = path.parent_path()) {
      const auto quota = QuotaIn(root / "sys/fs/cgroup" / mount / path);
      if (quota) tightest = std::min(tightest.value_or(*quota), *quota);
      if (path.empty()) break;
    }
  }
  return tightest;
}

std::string ReadCongestionControl(const fs::path& root) {
  return transport::paths::FirstLine(root / "proc/sys/net/ipv4/tcp_congestion_control");
}

Facts LookAround() {
  Facts facts;
  auto here = transport::paths::LookAround();
  facts.machine = std::move(here.machine);
  facts.environment = std::move(here.environment);
  for (RdmaPort& port : facts.machine.rdma) port.address = AddressOf(port.netdev);
  facts.limits = ReadLimits();
  facts.congestion_control = ReadCongestionControl("/");
  return facts;
}

}  // namespace lockstep::doctor
