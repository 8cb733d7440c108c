#include "transport/paths/judge.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

extern char** environ;

namespace lockstep::transport::paths {
namespace {

// The value of a variable; nullopt where it is not set.
std::optional<std::string_view> Variable(const std::vector<std::string>& environment,
                                         std::string_view name) {
  for (const std::string_view one : environment) {
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) {
      return one.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

// Whether a list in the form of UCX_TLS allows any of `names` (by their prefixes). A list that
// begins with ^ forbids its items; there the first of `names` stands for all of them.
bool Allows(std::string_view list, std::initializer_list<std::string_view> names) {
  const bool forbids = list.starts_with('^');
  if (forbids) list.remove_prefix(1);
  bool named = false;
  while (!list.empty()) {
    std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(item.size() + 1, list.size()));
    while (item.starts_with('\\') || item.starts_with(' ')) item.remove_prefix(1);
    const auto is = [&](std::string_view name) { return item.starts_with(name); };
    named =
        named || (forbids ? is(*names.begin()) : item == "all" || std::ranges::any_of(names, is));
  }
  return named != forbids;
}

bool IsNo(std::string_view value) {
  constexpr std::array<std::string_view, 6> kNo = {"n", "N", "no", "0", "off", "never"};
  return std::ranges::find(kNo, value) != kNo.end();
}

// Whether "1.13.1" is at least {1, 13}. An unreadable version counts as new.
bool AtLeast(std::string_view version, std::pair<unsigned, unsigned> wanted) {
  std::pair<unsigned, unsigned> is{~0u, ~0u};
  const auto end = version.data() + version.size();
  const auto major = std::from_chars(version.data(), end, is.first);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return true;
  std::from_chars(major.ptr + 1, end, is.second);
  return is >= wanted;
}

// RDMA transports by their names in UCX_TLS.
bool AllowsRdma(std::string_view list) {
  return Allows(list, {"ib", "rc", "dc", "ud", "srd", "gga"});
}

bool NamesADevice(std::string_view list, const std::vector<RdmaPort>& ports) {
  return std::ranges::any_of(
      ports, [&](const RdmaPort& port) { return port.active() && Allows(list, {port.device}); });
}

Reason WhyNotRdma(const Facts& facts, const Capabilities& transport, const Link& link) {
  if (link.path.rdma) return {};
  if (!facts.machine.AnyActivePort()) {
    return {"this host has no active RDMA port", "lockstep-doctor tells what it has"};
  }
  if (link.path.encrypted) {
    return {"exchange.encryption is on, and UCX does not encrypt",
            "off is for a network that nobody else is on"};
  }
  if (!facts.no_ucx.empty()) return {facts.no_ucx, "lockstep-doctor tells what would mend it"};
  if (transport.name != "ucx") {
    return {fmt::format("the job's transport is {}", transport.name),
            "with exchange.transport = auto the coordinator's log says who lacks RDMA, and why"};
  }
  if (!facts.machine.rdma_device_files) {
    return {"there is no /dev/infiniband/uverbs* here",
            "load ib_uverbs; in a container pass it on (--device=/dev/infiniband)"};
  }
  if (const auto tls = Variable(facts.environment, "UCX_TLS"); tls && !AllowsRdma(*tls)) {
    return {fmt::format("UCX_TLS={} leaves RDMA out", *tls), "unset it, or add rc to it"};
  }
  if (const auto devices = Variable(facts.environment, "UCX_NET_DEVICES");
      devices && !NamesADevice(*devices, facts.machine.rdma)) {
    return {fmt::format("UCX_NET_DEVICES={} names no RDMA device that is active", *devices),
            "unset it, or name one, as mlx5_0:1"};
  }
  return {
      "UCX took another way than RDMA",
      "exchange.transport = auto takes RDMA or our own tcp, and says why; lockstep-doctor on both "
      "hosts tells what they have"};
}

// The reason for a port other than the one nearest to the GPU.
Reason WhyFar(const Facts& facts, const Link& link) {
  const auto nearest = NearestPorts(facts.machine, facts.gpu_pci);
  if (nearest.empty()) return {};
  const auto used = [&](const RdmaPort& port) {
    return link.path.text.find(fmt::format("/{}", port.name())) != std::string::npos;
  };
  const auto far = std::ranges::find_if(facts.machine.rdma, used);
  if (far == facts.machine.rdma.end() ||
      std::ranges::any_of(nearest, [&](const RdmaPort* port) { return used(*port); })) {
    return {};
  }
  return {fmt::format("{} is farther from the GPU {} than {}", far->name(), facts.gpu_pci,
                      nearest.front()->name()),
          fmt::format("UCX_NET_DEVICES={}", nearest.front()->name())};
}

Way HadWay(const Facts& facts, const Capabilities& transport, const Link& link) {
  if (link.mapped) return Way::kMapped;
  if (transport.name != "ucx") return Way::kTcp;
  if (!link.path.rdma) return Way::kUcxWithoutRdma;
  return facts.gpu && !WhyNotGpuDirect(facts, transport, link) ? Way::kGpuDirect : Way::kRdma;
}

// UCX copies between GPUs of one host, or of processes that share one.
bool ByCudaIpc(const Facts& facts, const Capabilities& transport, const Link& link) {
  return facts.device_exchange && transport.cuda_memory && link.same_host && !link.mapped &&
         link.path.text.find("cuda_ipc") != std::string::npos;
}

std::string InWords(const Facts& facts, const Capabilities& transport, Way way, const Link& link) {
  const std::string path = link.mapped ? "mapped" : link.path.text;
  // A transport that stages reports it itself.
  if (!facts.gpu || (link.path.staged && !link.mapped)) return path;
  if (way == Way::kGpuDirect) return path + ", GPUDirect";
  if (way == Way::kMapped && facts.device_exchange) return path + " (device memory)";
  if (ByCudaIpc(facts, transport, link)) return path + ", from GPU memory to GPU memory";
  return path + ", staged through host memory";
}

}  // namespace

std::string_view Name(Way way) {
  switch (way) {
    case Way::kTcp:
      return "TCP";
    case Way::kUcxWithoutRdma:
      return "UCX without RDMA";
    case Way::kRdma:
      return "RDMA";
    case Way::kGpuDirect:
      return "GPUDirect RDMA";
    case Way::kMapped:
      return "mapped memory";
  }
  return "";
}

Facts LookAround() {
  Facts facts;
  facts.machine = ReadMachine("/");
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("UCX_")) facts.environment.emplace_back(*variable);
  }
  std::ranges::sort(facts.environment);
  return facts;
}

Reason WhyNoGpuMemory(const Facts& facts, const Capabilities& transport) {
  if (transport.cuda_memory) return {};
  if (transport.name != "ucx") {
    return {fmt::format("the transport {} carries host memory only", transport.name),
            "give all workers a UCX built with CUDA and verbs, and RDMA"};
  }
  if (const auto tls = Variable(facts.environment, "UCX_TLS");
      tls && !Allows(*tls, {"cuda", "gdr_copy"})) {
    return {fmt::format("UCX_TLS={} leaves CUDA out", *tls), "add cuda to it"};
  }
  return {
      fmt::format("this UCX ({}) was built without CUDA, or finds no GPU", transport.version),
      "install one that has CUDA and verbs (HPC-X, DOCA, or built --with-cuda --with-verbs) and "
      "name it in LD_LIBRARY_PATH, or in UCX_ROOT when building"};
}

Reason WhyNoGpuRegistration(const Machine& machine, const std::vector<std::string>& environment,
                            std::string_view ucx_version) {
  if (const auto wanted = Variable(environment, "UCX_IB_GPU_DIRECT_RDMA");
      wanted && IsNo(*wanted)) {
    return {fmt::format("UCX_IB_GPU_DIRECT_RDMA={} turns it off", *wanted), "unset it"};
  }
  if (machine.nvidia.peermem) return {};
  if (!machine.dmabuf()) {
    return {"neither nvidia_peermem nor dma-buf is there",
            "modprobe nvidia_peermem (it comes with NVIDIA's driver), or install the driver's open "
            "kernel modules on Linux 5.12 or newer"};
  }
  const std::string load = "modprobe nvidia_peermem, or take UCX 1.16 or newer";
  if (!AtLeast(ucx_version, {1, 14})) {
    return {fmt::format("nvidia_peermem is not loaded, and UCX {} knows no dma-buf", ucx_version),
            load};
  }
  const auto protocols = Variable(environment, "UCX_PROTO_ENABLE");
  if (protocols ? IsNo(*protocols) : !AtLeast(ucx_version, {1, 16})) {
    return {"nvidia_peermem is not loaded, and UCX takes dma-buf only with UCX_PROTO_ENABLE=y",
            load};
  }
  return {};
}

Reason WhyNotGpuDirect(const Facts& facts, const Capabilities& transport, const Link& link) {
  if (!facts.gpu) return {"gradients are computed on the CPU", "--device cuda:0"};
  if (const Reason why = WhyNotRdma(facts, transport, link)) return why;
  if (const Reason why = WhyNoGpuMemory(facts, transport)) return why;
  if (const Reason why =
          WhyNoGpuRegistration(facts.machine, facts.environment, transport.version)) {
    return why;
  }
  if (!facts.device_exchange) {
    return {"the exchange works on the host's memory",
            "exchange.memory = auto, and another policy than local"};
  }
  return {};
}

Finding Judge(const Facts& facts, const Capabilities& transport, const Link& link) {
  Finding finding;
  finding.had = HadWay(facts, transport, link);
  finding.expected = finding.had;
  finding.path = InWords(facts, transport, finding.had, link);
  if (link.mapped || link.same_host || !facts.machine.AnyActivePort()) return finding;
  finding.expected = facts.gpu ? Way::kGpuDirect : Way::kRdma;
  finding.lacking =
      facts.gpu ? WhyNotGpuDirect(facts, transport, link) : WhyNotRdma(facts, transport, link);
  if (!finding.lacking && facts.gpu) finding.advice = WhyFar(facts, link);
  return finding;
}

}  // namespace lockstep::transport::paths
