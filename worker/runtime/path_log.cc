#include "worker/runtime/path_log.h"

#include <fmt/format.h>

#include "base/log.h"
#include "worker/runtime/probe.h"

namespace lockstep::worker {

namespace paths = transport::paths;

void PathLog::Machine(const transport::Capabilities& library) const {
  spdlog::info("{}{}{} carries {}", library.name, library.version.empty() ? "" : " ",
               library.version, library.cuda_memory ? "host and GPU memory" : "host memory");
  if (!facts_.gpu) return;
  std::string ports;
  for (const paths::RdmaPort* port : paths::NearestPorts(facts_.machine, facts_.gpu_pci)) {
    ports += (ports.empty() ? "" : ", ") + port->name();
  }
  spdlog::info("GPU {}: nearest RDMA port {}; {}",
               facts_.gpu_pci.empty() ? "at an unknown place" : facts_.gpu_pci,
               ports.empty() ? "none" : ports,
               facts_.machine.nvidia.peermem ? "nvidia_peermem is loaded"
               : facts_.machine.dmabuf()     ? "the driver has dma-buf"
                                             : "no nvidia_peermem and no dma-buf");
  if (const auto reason = paths::WhyNoGpuMemory(facts_, library)) {
    spdlog::warn("staged through host memory: {}; {}", reason.why, reason.remedy);
  }
}

std::string PathLog::Peer(const transport::Capabilities& library,
                          const transport::PathReport& report, bool same_host,
                          const std::string& not_mapped, PeerPath& path) const {
  if (!path.reached) {
    spdlog::warn("worker {} is not reached: {}", path.peer.worker, path.error);
    return {};
  }
  const paths::Link link{.path = report, .mapped = path.mapped, .same_host = same_host};
  const paths::Finding finding = paths::Judge(facts_, library, link);
  path.path = finding.path;
  spdlog::info("worker {}: path {}, {}{}{}", path.peer.worker, path.path,
               RateText(path.gb_per_second),
               not_mapped.empty() ? "" : "; not mapped: ", not_mapped);
  if (finding.lacking) {
    spdlog::warn("worker {}: {} was to be expected, but {}; {}", path.peer.worker,
                 paths::Name(finding.expected), finding.lacking.why, finding.lacking.remedy);
  } else if (finding.advice) {
    spdlog::warn("worker {}: {}; {}", path.peer.worker, finding.advice.why, finding.advice.remedy);
  }
  if (!require_gpudirect_ || same_host || finding.had == paths::Way::kGpuDirect) return {};
  const paths::Reason reason = paths::WhyNotGpuDirect(facts_, library, link);
  return fmt::format("--require-gpudirect: worker {} is reached by {}: {}; {}", path.peer.worker,
                     path.path, reason.why, reason.remedy);
}

}  // namespace lockstep::worker
