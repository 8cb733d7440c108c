#include "tools/doctor/collect.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "transport/mapping/arena.h"

extern char** environ;

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.pop_back();
  }
  return line;
}

std::string WholeText(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Sorted by number where the names are numbers. Empty where there is no such folder.
std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none)) {
    entries.push_back(it->path());
  }
  std::ranges::sort(entries, [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename();
    const std::string right = b.filename();
    return left.size() != right.size() && std::isdigit(static_cast<unsigned char>(left[0])) != 0 &&
                   std::isdigit(static_cast<unsigned char>(right[0])) != 0
               ? left.size() < right.size()
               : left < right;
  });
  return entries;
}

// Where the device really hangs: /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
fs::path PlaceOf(const fs::path& link) {
  std::error_code none;
  fs::path place = fs::canonical(link, none);
  return none ? fs::path() : place;
}

// How many steps down from the same root of PCI two devices part; 0: at different ones.
std::size_t SharedSteps(const fs::path& a, const fs::path& b) {
  std::size_t shared = 0;
  bool pci = false;
  for (auto left = a.begin(), right = b.begin();
       left != a.end() && right != b.end() && *left == *right; ++left, ++right) {
    pci = pci || left->string().starts_with("pci");
    shared += pci ? 1 : 0;
  }
  return shared;
}

std::vector<fs::path> NvidiaGpus(const fs::path& root) {
  std::vector<fs::path> gpus;
  for (const fs::path& device : Entries(root / "sys/bus/pci/devices")) {
    if (FirstLine(device / "vendor") == "0x10de" &&
        FirstLine(device / "class").starts_with("0x03")) {
      gpus.push_back(device);
    }
  }
  return gpus;
}

std::string NearestGpu(const fs::path& device, const std::vector<fs::path>& gpus) {
  const fs::path place = PlaceOf(device);
  std::string nearest;
  std::size_t best = 0;
  for (const fs::path& gpu : gpus) {
    const std::size_t shared = SharedSteps(place, PlaceOf(gpu));
    if (shared > best) {
      best = shared;
      nearest = gpu.filename();
    }
  }
  return nearest;
}

std::vector<Gid> ReadGids(const fs::path& port) {
  std::vector<Gid> gids;
  for (const fs::path& file : Entries(port / "gids")) {
    Gid gid;
    gid.gid = FirstLine(file);
    // Unused entries are zero.
    if (gid.gid.find_first_not_of("0:") == std::string::npos ||
        gid.gid.ends_with(":0000:0000:0000:0000")) {
      continue;
    }
    gid.index = static_cast<unsigned>(std::strtoul(file.filename().c_str(), nullptr, 10));
    gid.type = FirstLine(port / "gid_attrs/types" / file.filename());
    gids.push_back(std::move(gid));
  }
  return gids;
}

// "4: ACTIVE" and "5: LinkUp" without the number.
std::string Word(const std::string& text) {
  const auto colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::string NetdevOf(const fs::path& device, const fs::path& port) {
  for (const fs::path& file : Entries(port / "gid_attrs/ndevs")) {
    std::string name = FirstLine(file);
    if (!name.empty()) return name;
  }
  const auto nets = Entries(device / "device/net");
  return nets.empty() ? "" : nets.front().filename().string();
}

// IPv4 goes before IPv6, and link-local addresses do not count: they are no address to connect to.
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
    if (v2 >> quota >> period && period > 0) return quota / period;  // "max 100000" is none
    return std::nullopt;
  }
  double quota = -1;
  double period = 0;
  std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
  std::ifstream(folder / "cpu.cfs_period_us") >> period;
  if (quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// Lines of /proc/self/cgroup: "0::/user.slice" (v2), "4:cpu,cpuacct:/docker/4f" (v1).
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

std::vector<RdmaPort> ReadRdma(const fs::path& root) {
  const std::vector<fs::path> gpus = NvidiaGpus(root);
  std::vector<RdmaPort> ports;
  for (const fs::path& device : Entries(root / "sys/class/infiniband")) {
    for (const fs::path& folder : Entries(device / "ports")) {
      RdmaPort port;
      port.device = device.filename();
      port.port = static_cast<unsigned>(std::strtoul(folder.filename().c_str(), nullptr, 10));
      port.state = Word(FirstLine(folder / "state"));
      port.link_layer = FirstLine(folder / "link_layer");
      port.rate = FirstLine(folder / "rate");
      port.netdev = NetdevOf(device, folder);
      port.gids = ReadGids(folder);
      const std::string node = FirstLine(device / "device/numa_node");
      port.numa_node = node.empty() ? -1 : std::atoi(node.c_str());
      port.nearest_gpu = NearestGpu(device / "device", gpus);
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

bool HasRdmaDeviceFiles(const fs::path& root) {
  return std::ranges::any_of(Entries(root / "dev/infiniband"), [](const fs::path& file) {
    return file.filename().string().starts_with("uverbs");
  });
}

NvidiaFacts ReadNvidia(const fs::path& root) {
  NvidiaFacts nvidia;
  nvidia.driver = FirstLine(root / "proc/driver/nvidia/version");
  constexpr std::string_view kLabel = "NVRM version: ";
  if (nvidia.driver.starts_with(kLabel)) nvidia.driver.erase(0, kLabel.size());
  nvidia.open_driver = nvidia.driver.find("Open Kernel Module") != std::string::npos;
  for (const fs::path& file : Entries(root / "dev")) {
    const std::string name = file.filename();
    if (name.starts_with("nvidia") && name.size() > 6 &&
        name.find_first_not_of("0123456789", 6) == std::string::npos) {
      nvidia.devices.push_back("/dev/" + name);
    }
  }
  std::error_code none;
  nvidia.peermem = fs::exists(root / "sys/module/nvidia_peermem", none) ||
                   fs::exists(root / "sys/module/nv_peer_mem", none);
  return nvidia;
}

std::optional<double> ReadCpuQuota(const fs::path& root) {
  std::optional<double> tightest;
  for (const auto& [mount, group] : CpuGroups(root)) {
    // In a container the path may be the host's, which is not to be seen here; then the mount's own
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
  return FirstLine(root / "proc/sys/net/ipv4/tcp_congestion_control");
}

Facts LookAround() {
  const fs::path root = "/";
  Facts facts;
  utsname system{};
  if (uname(&system) == 0) {
    std::sscanf(system.release, "%u.%u", &facts.kernel_major, &facts.kernel_minor);
  }
  facts.nvidia = ReadNvidia(root);
  facts.rdma = ReadRdma(root);
  for (RdmaPort& port : facts.rdma) port.address = AddressOf(port.netdev);
  facts.rdma_device_files = HasRdmaDeviceFiles(root);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("UCX_")) facts.environment.emplace_back(*variable);
  }
  std::ranges::sort(facts.environment);
  facts.limits = ReadLimits();
  facts.congestion_control = ReadCongestionControl(root);
  return facts;
}

}  // namespace lockstep::doctor
