#include "transport/paths/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "transport/paths/files.h"

namespace lockstep::transport::paths {
namespace {

namespace fs = std::filesystem;

template <class Number>
Number NumberOr(std::string_view text, Number otherwise) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : otherwise;
}

// The device's real place: /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0.
PciPlace PlaceOf(const fs::path& link) {
  std::error_code none;
  const fs::path whole = fs::canonical(link, none);
  PciPlace place;
  if (none) return place;
  for (const fs::path& part : whole) {
    if (!place.empty() || part.string().starts_with("pci")) place.push_back(part);
  }
  return place;
}

int NumaNode(const fs::path& device) { return NumberOr(FirstLine(device / "numa_node"), -1); }

std::vector<Gpu> ReadGpus(const fs::path& root) {
  std::vector<Gpu> gpus;
  for (const fs::path& device : Entries(root / "sys/bus/pci/devices")) {
    if (FirstLine(device / "vendor") == "0x10de" &&
        FirstLine(device / "class").starts_with("0x03")) {
      gpus.push_back({device.filename(), NumaNode(device), PlaceOf(device),
                      NumberOr(FirstLine(device / "current_link_width"), 0u),
                      NumberOr(FirstLine(device / "max_link_width"), 0u)});
    }
  }
  return gpus;
}

std::string NearestGpu(const PciPlace& place, const std::vector<Gpu>& gpus) {
  std::string nearest;
  std::size_t best = 0;
  for (const Gpu& gpu : gpus) {
    const std::size_t shared = SharedSteps(place, gpu.place);
    if (shared > best) {
      best = shared;
      nearest = gpu.pci;
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
    gid.index = NumberOr(file.filename().string(), 0u);
    gid.type = FirstLine(port / "gid_attrs/types" / file.filename());
    gids.push_back(std::move(gid));
  }
  return gids;
}

// Takes "4: ACTIVE" and "5: LinkUp" without the number.
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

std::vector<RdmaPort> ReadRdma(const fs::path& root, const std::vector<Gpu>& gpus) {
  std::vector<RdmaPort> ports;
  for (const fs::path& device : Entries(root / "sys/class/infiniband")) {
    for (const fs::path& folder : Entries(device / "ports")) {
      RdmaPort port;
      port.device = device.filename();
      port.port = NumberOr(folder.filename().string(), 0u);
      port.state = Word(FirstLine(folder / "state"));
      port.link_layer = FirstLine(folder / "link_layer");
      port.rate = FirstLine(folder / "rate");
      port.netdev = NetdevOf(device, folder);
      port.gids = ReadGids(folder);
      port.numa_node = NumaNode(device / "device");
      port.place = PlaceOf(device / "device");
      port.nearest_gpu = NearestGpu(port.place, gpus);
      ports.push_back(std::move(port));
    }
  }
  return ports;
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
  // UCX decides by these files (src/uct/ib/base/ib_md.c, 1.13 to 1.22).
  for (const char* file : {"sys/kernel/mm/memory_peers/nv_mem/version",
                           "sys/module/nvidia_peermem/version", "sys/module/nv_peer_mem/version"}) {
    std::error_code none;
    nvidia.peermem = nvidia.peermem || fs::exists(root / file, none);
  }
  return nvidia;
}

// The release is like "6.1.0-18-amd64".
void ReadKernel(const fs::path& root, Machine& machine) {
  const std::string release = FirstLine(root / "proc/sys/kernel/osrelease");
  const auto dot = release.find('.');
  if (dot == std::string::npos) return;
  const auto end = std::min(release.find_first_not_of("0123456789", dot + 1), release.size());
  machine.kernel_major = NumberOr(std::string_view(release).substr(0, dot), 0u);
  machine.kernel_minor = NumberOr(std::string_view(release).substr(dot + 1, end - dot - 1), 0u);
}

bool SameAddress(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char left, unsigned char right) {
    return std::tolower(left) == std::tolower(right);
  });
}

}  // namespace

std::size_t SharedSteps(const PciPlace& a, const PciPlace& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return static_cast<std::size_t>(end - a.begin());
}

std::string RdmaPort::name() const { return fmt::format("{}:{}", device, port); }

bool Machine::AnyActivePort() const { return std::ranges::any_of(rdma, &RdmaPort::active); }

bool Machine::dmabuf() const {
  return nvidia.open_driver && (kernel_major > 5 || (kernel_major == 5 && kernel_minor >= 12));
}

Machine ReadMachine(const fs::path& root) {
  Machine machine;
  ReadKernel(root, machine);
  machine.nvidia = ReadNvidia(root);
  machine.gpus = ReadGpus(root);
  machine.rdma = ReadRdma(root, machine.gpus);
  machine.rdma_device_files = std::ranges::any_of(
      Entries(root / "dev/infiniband"),
      [](const fs::path& file) { return file.filename().string().starts_with("uverbs"); });
  return machine;
}

std::vector<const RdmaPort*> NearestPorts(const Machine& machine, std::string_view pci) {
  std::vector<const RdmaPort*> nearest;
  const auto gpu =
      std::ranges::find_if(machine.gpus, [&](const Gpu& one) { return SameAddress(one.pci, pci); });
  if (gpu == machine.gpus.end()) return nearest;
  std::size_t best = 1;
  for (const RdmaPort& port : machine.rdma) {
    if (!port.active()) continue;
    const std::size_t shared = SharedSteps(gpu->place, port.place);
    if (shared < best) continue;
    if (shared > best) nearest.clear();
    best = shared;
    nearest.push_back(&port);
  }
  if (!nearest.empty() || gpu->numa_node < 0) return nearest;
  for (const RdmaPort& port : machine.rdma) {
    if (port.active() && port.numa_node == gpu->numa_node) nearest.push_back(&port);
  }
  return nearest;
}

}  // namespace lockstep::transport::paths
