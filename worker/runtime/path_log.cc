#include "worker/runtime/path_log.h"

#include <fmt/format.h>

#include "base/log.h"
#include "worker/runtime/probe.h"

namespace lockstep::worker {

namespace paths = transport::paths;

void PathLog::Machine(const transport::Capabilities& library) const {
  spdlog::info("{}{}{} carries {}", library.name, library.version.empty() ? "" : " ",
               library.version, library.cuda_memory ? "host and GPU memory" : "host memory");
  if (!setup_.facts.gpu) return;
  std::string ports;
  for (const paths::RdmaPort* port :
       paths::NearestPorts(setup_.facts.machine, setup_.facts.gpu_pci)) {
    ports += (ports.empty() ? "" : ", ") + port->name();
  }
  spdlog::info("GPU {}: nearest RDMA port {}; {}",
               setup_.facts.gpu_pci.empty() ? "at an unknown place" : setup_.facts.gpu_pci,
               ports.empty() ? "none" : ports,
               setup_.facts.machine.nvidia.peermem ? "nvidia_peermem is loaded"
               : setup_.facts.machine.dmabuf()     ? "the driver has dma-buf"
                                                   : "no nvidia_peermem and no dma-buf");
}

void PathLog::NoteHosts(const msg::Form& form) {
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& info : *list) {
      if (info.host_id != setup_.host_id) continue;
      on_this_host_[info.member] = {.has_arena = !info.mapping_address.empty()};
    }
  }
}

std::string PathLog::WhyNotMapped(const PeerPath& path, const PeerMapper& mapper) const {
  const auto peer = on_this_host_.find(path.peer);
  if (peer == on_this_host_.end() || path.mapped) return {};
  if (!no_arena_.empty()) return no_arena_;
  if (!peer->second.has_arena) return "it has no memory to map; its log says why";
  const std::string why = mapper.WhyNot(path.peer);
  return why.empty() ? "it does not map this worker's memory; its log says why" : why;
}

std::string PathLog::Assess(const OpenTransport& active, const PeerMapper& mapper,
                            msg::Reached& reached) {
  std::string unfit;
  for (PeerPath& path : reached.peers) {
    std::string unfinished = path.reached ? std::string() : active.Unfinished(path.peer);
    if (!unfinished.empty()) path.error = std::move(unfinished);
    const auto mapped = mapper.Rate(path.peer);
    path.gb_per_second = path.mapped && mapped ? *mapped : active.Measured(path.peer);
    std::string reason =
        AssessOne(active.library, active.PathTo(path.peer), WhyNotMapped(path, mapper), path);
    if (unfit.empty()) unfit = std::move(reason);
  }
  return unfit;
}

std::string PathLog::AssessOne(const transport::Capabilities& library,
                               const transport::PathReport& report, const std::string& not_mapped,
                               PeerPath& path) {
  if (!path.reached) {
    spdlog::warn("worker {} is not reached: {}", path.peer.worker, path.error);
    return {};
  }
  const bool same_host = on_this_host_.contains(path.peer);
  const paths::Link link{.path = report, .mapped = path.mapped, .same_host = same_host};
  const paths::Finding finding = paths::Judge(setup_.facts, library, link);
  path.path = finding.path;
  // The reason is mostly the same for all peers, so it is said once.
  const bool again = !not_mapped.empty() && not_mapped == told_not_mapped_;
  if (!not_mapped.empty()) told_not_mapped_ = not_mapped;
  spdlog::info("worker {}: path {}, {}{}{}", path.peer.worker, path.path,
               RateText(path.gb_per_second),
               not_mapped.empty() ? ""
               : again            ? "; not mapped either"
                                  : "; not mapped: ",
               again ? "" : not_mapped);
  WarnOfStaging(library, path);
  if (finding.lacking) {
    spdlog::warn("worker {}: {} was to be expected, but {}; {}", path.peer.worker,
                 paths::Name(finding.expected), finding.lacking.why, finding.lacking.remedy);
  } else if (finding.advice) {
    spdlog::warn("worker {}: {}; {}", path.peer.worker, finding.advice.why, finding.advice.remedy);
  }
  if (!setup_.require_gpudirect || same_host || finding.had == paths::Way::kGpuDirect) return {};
  const paths::Reason reason = paths::WhyNotGpuDirect(setup_.facts, library, link);
  return fmt::format("--require-gpudirect: worker {} is reached by {}: {}; {}", path.peer.worker,
                     path.path, reason.why, reason.remedy);
}

// Once, since it is the same for all of them. Nothing is sent between those that are mapped.
void PathLog::WarnOfStaging(const transport::Capabilities& library, const PeerPath& path) {
  if (!setup_.facts.gpu || path.mapped || warned_of_staging_) return;
  const auto reason = paths::WhyNoGpuMemory(setup_.facts, library);
  if (!reason) return;
  warned_of_staging_ = true;
  spdlog::warn("staged through host memory: {}; {}", reason.why, reason.remedy);
}

}  // namespace lockstep::worker
