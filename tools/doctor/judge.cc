#include "tools/doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "transport/paths/choice.h"
#include "transport/paths/judge.h"

namespace lockstep::doctor {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kGiB = 1u << 30;
constexpr std::uint64_t kFewFiles = 1024;

std::string BytesText(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= kGiB) return fmt::format("{:.1f} GiB", value / kGiB);
  if (bytes >= kMiB) return fmt::format("{:.1f} MiB", value / kMiB);
  return fmt::format("{} KiB", bytes >> 10);
}

std::string Joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

class Judgement {
 public:
  explicit Judgement(const Facts& facts) : facts_(facts) {}

  std::vector<Line> Run() {
    Versions();
    Gpus();
    Rdma();
    Ucx();
    Host();
    Bandwidths();
    return std::move(lines_);
  }

 private:
  void Section(const char* name) { section_ = name; }
  void Ok(const std::string& name, const std::string& value) {
    lines_.push_back({section_, name, value, Verdict::kOk, {}});
  }
  void Warn(const std::string& name, const std::string& value, const std::string& remedy) {
    lines_.push_back({section_, name, value, Verdict::kWarning, remedy});
  }
  void Problem(const std::string& name, const std::string& value, const std::string& remedy) {
    lines_.push_back({section_, name, value, Verdict::kProblem, remedy});
  }
  void Versions();
  void Gpus();
  void OneGpu(const transport::paths::Gpu& gpu);
  void GpuDirect();
  void Measured(const Bandwidth& measured);
  const Bandwidth* HostsOf(const Bandwidth& measured) const;
  void Rdma();
  void Rule();
  void Port(const RdmaPort& port);
  void Ucx();
  void BadUcx(const char* name, const std::string& value, const std::string& remedy);
  void Host();
  void Memory();
  void Processors();
  void Bandwidths();

  const Facts& facts_;
  std::string section_;
  std::vector<Line> lines_;
};

void Judgement::Versions() {
  Section("versions");
  Ok("Lockstep", facts_.version);
  const UcxFacts& ucx = facts_.ucx;
  if (!ucx.built) {
    Warn("UCX", "not in this build",
         "hosts reach each other over Lockstep's own TCP only. For RDMA build with UCX "
         "(libucx-dev, LOCKSTEP_WITH_UCX=ON)");
  } else if (ucx.version.empty()) {
    BadUcx("UCX", ucx.error,
           "hosts reach each other over Lockstep's own TCP only. For RDMA install UCX (Debian, "
           "Ubuntu: libucx0; Fedora, Red Hat: ucx and ucx-ib), or name the folder of its "
           "libraries in LD_LIBRARY_PATH");
  } else {
    Ok("UCX", fmt::format("{}, {}; built with {}", ucx.version, ucx.library, ucx.built_with));
  }
  Ok("CUDA", facts_.cuda.built ? facts_.cuda.version : "none: CPU build");
}

void Judgement::Gpus() {
  Section("GPUs");
  const NvidiaFacts& nvidia = facts_.machine.nvidia;
  const CudaFacts& cuda = facts_.cuda;
  if (nvidia.driver.empty() && nvidia.devices.empty() && !cuda.built) {
    Ok("NVIDIA driver", "none");
    return;
  }
  if (nvidia.driver.empty()) {
    Problem("NVIDIA driver", "none",
            "this build computes on GPUs: install the driver, or take a CPU build");
  } else if (nvidia.devices.empty()) {
    Problem("NVIDIA driver", nvidia.driver,
            "no /dev/nvidia0: in a container pass the GPUs on (--gpus all), else run nvidia-smi "
            "once as root");
  } else if (!cuda.built) {
    Warn("NVIDIA driver", nvidia.driver,
         fmt::format("this is a CPU build, {} GPU(s) stay idle: build with the preset cuda",
                     nvidia.devices.size()));
  } else {
    Ok("NVIDIA driver", nvidia.driver);
  }
  for (const auto& gpu : facts_.machine.gpus) OneGpu(gpu);
  GpuDirect();
  if (!cuda.built) return;
  // Within one major version any driver serves any runtime.
  if (!cuda.driver.empty() && std::atoi(cuda.driver.c_str()) < std::atoi(cuda.version.c_str())) {
    Problem("CUDA of the driver", cuda.driver,
            fmt::format("this build wants {}: install a newer driver, or build with an older CUDA",
                        cuda.version));
  } else if (!cuda.driver.empty()) {
    Ok("CUDA of the driver", cuda.driver);
  }
  if (!cuda.error.empty()) {
    Problem("CUDA devices", cuda.error,
            nvidia.driver.empty() ? "see NVIDIA driver, above"
                                  : "the driver may be older than the CUDA of this build");
  } else if (cuda.devices.empty()) {
    Problem("CUDA devices", "none", "see CUDA_VISIBLE_DEVICES, and nvidia-smi");
  }
  for (const CudaDevice& device : cuda.devices) {
    Ok(fmt::format("cuda:{}", device.ordinal),
       fmt::format("{}, {}{}{}", device.name, BytesText(device.bytes),
                   device.pci.empty() ? "" : ", ", device.pci));
  }
}

// Describes its place, and the devices near it.
void Judgement::OneGpu(const transport::paths::Gpu& gpu) {
  std::string value;
  if (gpu.max_lanes > 0) value = fmt::format("{} of {} PCI lanes, ", gpu.lanes, gpu.max_lanes);
  if (gpu.numa_node >= 0) value += fmt::format("NUMA node {}, ", gpu.numa_node);
  std::vector<std::string> nearest;
  for (const RdmaPort* port : transport::paths::NearestPorts(facts_.machine, gpu.pci)) {
    nearest.push_back(port->name());
  }
  value += "nearest RDMA port " + (nearest.empty() ? std::string("none") : Joined(nearest, ", "));
  const std::string name = "GPU " + gpu.pci;
  if (gpu.lanes > 0 && gpu.lanes < gpu.max_lanes) {
    Warn(name, value, "it has fewer lanes than it could: another slot, or seat it again");
  } else if (nearest.empty() && facts_.machine.AnyActivePort()) {
    Warn(name, value,
         "between it and each RDMA port lie other NUMA nodes, which is slow: take another GPU, or "
         "move the card");
  } else {
    Ok(name, value);
  }
}

// Judges whether an RDMA device can reach GPU memory. Only the workers' path lines show that it
// does.
void Judgement::GpuDirect() {
  namespace paths = transport::paths;
  const Machine& machine = facts_.machine;
  if (machine.gpus.empty() && facts_.cuda.devices.empty()) return;
  Ok("nvidia_peermem", machine.nvidia.peermem ? "loaded" : "not loaded");
  Ok("dma-buf", machine.dmabuf() ? "open kernel modules, Linux 5.12 or newer" : "none");
  if (!machine.AnyActivePort()) {
    Ok("GPUDirect RDMA", "no active RDMA port: gradients are staged through host memory");
    return;
  }
  const std::string staged = "gradients are staged through host memory: ";
  if (!facts_.ucx.built || !facts_.ucx.error.empty()) {
    Warn("GPUDirect RDMA", "no UCX", staged + "see versions and UCX");
    return;
  }
  transport::Capabilities ucx;
  ucx.name = "ucx";
  ucx.version = facts_.ucx.version;
  ucx.cuda_memory = facts_.ucx.cuda_memory;
  paths::Facts facts;
  facts.environment = facts_.environment;
  paths::Reason reason = paths::WhyNoGpuMemory(facts, ucx);
  if (!reason) reason = paths::WhyNoGpuRegistration(machine, facts_.environment, ucx.version);
  if (reason) {
    Warn("GPUDirect RDMA", reason.why, staged + reason.remedy);
  } else {
    Ok("GPUDirect RDMA", machine.nvidia.peermem ? "by nvidia_peermem" : "by dma-buf");
  }
}

void Judgement::Rdma() {
  Section("RDMA");
  if (facts_.machine.rdma.empty()) {
    Ok("devices", "none");
    Rule();
    return;
  }
  if (!facts_.machine.rdma_device_files) {
    Problem("/dev/infiniband", "no uverbs device",
            "load ib_uverbs; in a container pass /dev/infiniband on (--device=/dev/infiniband)");
  }
  for (const RdmaPort& port : facts_.machine.rdma) Port(port);
  const auto& ways = facts_.ucx.ways;
  if (facts_.ucx.built && facts_.ucx.error.empty() && facts_.machine.AnyActivePort() &&
      std::ranges::none_of(ways, [](const UcxWay& way) { return way.rdma; })) {
    const bool verbs =
        std::ranges::find(facts_.ucx.components, "ib") != facts_.ucx.components.end();
    Problem("in UCX", "UCX uses none of them",
            verbs ? "see UCX_TLS and UCX_NET_DEVICES, the provider of the device "
                    "(ibverbs-providers) and ibv_devinfo"
                  : "this UCX has no verbs: take one built --with-verbs (UCX_ROOT)");
  }
  Rule();
}

// Describes the choice of exchange.transport = auto between hosts with all that.
void Judgement::Rule() {
  const auto best = transport::paths::Choose("auto", facts_.machine).front();
  const bool ways =
      std::ranges::any_of(facts_.ucx.ways, [](const UcxWay& way) { return way.rdma; });
  const std::string name = "exchange.transport = auto";
  if (!best.maker.empty() && ways) {
    Ok(name, "UCX over RDMA, without a port; our own tcp for who has none");
  } else {
    const std::string no_rdma = facts_.ucx.error.empty() ? "UCX has no RDMA" : "no UCX";
    Ok(name, "our own tcp: " + (best.maker.empty() ? best.why : no_rdma + ", see above"));
  }
}

void Judgement::Port(const RdmaPort& port) {
  const std::string name = fmt::format("{}:{}", port.device, port.port);
  std::string value = fmt::format("{}, {}, {}", port.state, port.link_layer, port.rate);
  if (!port.netdev.empty()) value += ", " + port.netdev;
  if (!port.address.empty()) value += " " + port.address;
  if (port.numa_node >= 0) value += fmt::format(", NUMA node {}", port.numa_node);
  if (!port.nearest_gpu.empty()) value += ", nearest GPU " + port.nearest_gpu;
  if (port.state != "ACTIVE") {
    Warn(name, value,
         port.link_layer == "InfiniBand" ? "no link, or no subnet manager: see ibstat and the cable"
                                         : "no link: see the cable and `ip link`");
    return;
  }
  const bool roce = port.link_layer == "Ethernet";
  const bool routable = std::ranges::any_of(
      port.gids, [](const Gid& gid) { return gid.type.find("v2") != std::string::npos; });
  if (roce && !routable) {
    Problem(name, value, "no GID of RoCE v2: give the interface an IP address");
  } else {
    Ok(name, value);
  }
  if (port.gids.empty()) return;
  std::vector<std::string> gids;
  for (const Gid& gid : port.gids) {
    gids.push_back(
        fmt::format("{}: {}{}{}", gid.index, gid.gid, gid.type.empty() ? "" : " ", gid.type));
  }
  Ok(name + " GIDs", Joined(gids, ", "));
}

// Without RDMA, only jobs that name ucx use it.
void Judgement::BadUcx(const char* name, const std::string& value, const std::string& remedy) {
  if (facts_.machine.AnyActivePort()) {
    Problem(name, value, remedy);
  } else {
    Warn(name, value, remedy);
  }
}

void Judgement::Ucx() {
  if (facts_.ucx.version.empty()) return;
  Section("UCX");
  if (!facts_.ucx.error.empty()) {
    BadUcx("start", facts_.ucx.error, "see the UCX_ variables below, and ucx_info -d");
  } else {
    Ok("components", Joined(facts_.ucx.components, " "));
    std::vector<std::string> ways;
    bool network = false;
    for (const UcxWay& way : facts_.ucx.ways) {
      ways.push_back(way.transport + "/" + way.device);
      network = network || way.rdma || way.transport == "tcp";
    }
    const std::string value = Joined(ways, " ");
    if (network) {
      Ok("transports", value);
    } else {
      BadUcx("transports", value.empty() ? "none" : value,
             "nothing that reaches another process: see UCX_TLS and UCX_NET_DEVICES");
    }
  }
  for (const std::string& variable : facts_.environment) {
    if (variable.starts_with("UCX_MAX_EAGER_LANES=") && variable != "UCX_MAX_EAGER_LANES=1") {
      Problem("environment", variable, "must be 1: eager fragments on several lanes overtake");
    } else {
      Ok("environment", variable);
    }
  }
}

void Judgement::Host() {
  Section("host");
  Memory();
  Processors();
  if (facts_.congestion_control.starts_with("bbr")) {
    Warn("TCP", facts_.congestion_control,
         "on loopback and inside a data centre cubic is faster: sysctl -w "
         "net.ipv4.tcp_congestion_control=cubic");
  } else {
    Ok("TCP", facts_.congestion_control.empty() ? "unknown" : facts_.congestion_control);
  }
}

void Judgement::Memory() {
  const Limits& limits = facts_.limits;
  const std::string locked =
      limits.locked_bytes ? BytesText(*limits.locked_bytes) : std::string("unlimited");
  const std::string unlock =
      "RDMA locks the memory that it uses: ulimit -l unlimited (limits.conf memlock, systemd "
      "LimitMEMLOCK=infinity, docker --ulimit memlock=-1)";
  if (!limits.locked_bytes || facts_.machine.rdma.empty()) {
    Ok("locked memory", locked);
  } else if (*limits.locked_bytes < kGiB) {
    Problem("locked memory", locked, unlock);
  } else {
    Warn("locked memory", locked, unlock);
  }
  if (limits.sealing_error.empty()) {
    Ok("memory files", "can be sealed: workers on this host read each other's memory");
  } else {
    Warn("memory files", limits.sealing_error,
         "workers on one host use the transport instead; Linux 5.1 or newer and enough memory do");
  }
  if (!limits.shm_bytes) {
    Warn("/dev/shm", "none", "mount a tmpfs there");
  } else {
    const std::string value =
        fmt::format("{}, {} free", BytesText(*limits.shm_bytes), BytesText(limits.shm_free));
    if (limits.shm_free < 64 * kMiB) {
      Warn("/dev/shm", value,
           "UCX and others keep shared memory there: docker --shm-size=1g, or mount it larger");
    } else {
      Ok("/dev/shm", value);
    }
  }
}

void Judgement::Processors() {
  const Limits& limits = facts_.limits;
  if (limits.files < kFewFiles) {
    Warn("open files", fmt::format("{}", limits.files), "ulimit -n 4096 for many peers");
  } else {
    Ok("open files", fmt::format("{}", limits.files));
  }
  const std::string cores = fmt::format("{}", limits.cores);
  if (!limits.cpu_quota || *limits.cpu_quota >= limits.cores) {
    Ok("cores", cores);
  } else {
    Warn("cores", fmt::format("{}, {:.3g} of them by quota", cores, *limits.cpu_quota),
         "a quota stops all threads at once for a part of each period, so the worker is a "
         "straggler in bursts: give it whole cores (cpuset) instead");
  }
}

void Judgement::Bandwidths() {
  Section("bandwidth");
  for (const Bandwidth& measured : facts_.bandwidth) Measured(measured);
}

// The same measurement in the host's memory; null: there is none.
const Bandwidth* Judgement::HostsOf(const Bandwidth& measured) const {
  const auto same = std::ranges::find_if(facts_.bandwidth, [&](const Bandwidth& one) {
    return one.transport == measured.transport && one.memory == "host" && one.error.empty();
  });
  return measured.memory == "host" || same == facts_.bandwidth.end() ? nullptr : &*same;
}

std::string RemedyFor(const Bandwidth& failed) {
  if (failed.copy) return "the GPU does not work: see nvidia-smi, and dmesg for its Xid";
  if (failed.memory != "host") {
    return "a job on this GPU fails alike: with UCX_TLS=^cuda its gradients are staged through "
           "host "
           "memory instead";
  }
  if (failed.wants_rdma) {
    return "RDMA does not work on this port: see its GIDs (UCX_IB_GID_INDEX), the locked memory, "
           "and ibv_rc_pingpong";
  }
  if (failed.transport == "tcp") return "is loopback up? see `ip addr show lo`";
  return "see above; the next best is used instead";
}

void Judgement::Measured(const Bandwidth& measured) {
  const bool gpu = measured.memory != "host";
  const std::string name = gpu && !measured.copy
                               ? fmt::format("{}, {}", measured.transport, measured.memory)
                               : measured.transport;
  if (!measured.error.empty()) {
    // Without mapping and without UCX a job still runs over TCP; without TCP nothing runs.
    const bool needed = measured.transport == "tcp" || measured.wants_rdma || measured.copy || gpu;
    lines_.push_back({section_, name, measured.error,
                      needed ? Verdict::kProblem : Verdict::kWarning, RemedyFor(measured)});
    return;
  }
  const std::string value = fmt::format("{:.3g} GB/s  {}", measured.gb_per_second, measured.path);
  const Bandwidth* host = HostsOf(measured);
  if (measured.wants_rdma && measured.path.find("(RDMA)") == std::string::npos) {
    Problem(name, value, "UCX took another way than RDMA: see UCX_TLS");
  } else if (measured.wants_rdma && host != nullptr &&
             measured.gb_per_second < host->gb_per_second / 2) {
    Warn(name, value,
         "less than half of what the host's memory gives: GPUDirect is not taken, or the port is "
         "far from the GPU; see GPUDirect RDMA and nvidia-smi topo -m");
  } else if (measured.copy && measured.path.find("no peer access") != std::string::npos) {
    Warn(name, value,
         "copies between these GPUs take the host's memory: see nvidia-smi topo -p2p r, and the "
         "IOMMU and ACS settings of the machine");
  } else {
    Ok(name, value);
  }
}

}  // namespace

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
  }
  return "";
}

std::vector<Line> Judge(const Facts& facts) { return Judgement(facts).Run(); }

Verdict Worst(const std::vector<Line>& lines) {
  Verdict worst = Verdict::kOk;
  for (const Line& line : lines) worst = std::max(worst, line.verdict);
  return worst;
}

}  // namespace lockstep::doctor
