// What a worker says of the paths to its peers: into its log, and to the coordinator.
#pragma once

#include <set>
#include <string>

#include "base/messages.h"
#include "transport/paths/judge.h"
#include "transport/transport.h"
#include "worker/core/step_io.h"

namespace lockstep::worker {

class PathLog {
 public:
  // `require_gpudirect`: whoever reaches a peer on another host otherwise is unfit.
  PathLog(transport::paths::Facts facts, bool require_gpudirect)
      : facts_(std::move(facts)), require_gpudirect_(require_gpudirect) {}

  // What of this machine decides over paths, once.
  void Machine(const transport::Capabilities& library) const;

  // Judges and logs the path to a peer that was reached and measured, or that it was not. `report`
  // is its connection's. Puts into `path` what there is to say, with what is done to gradients on
  // the way. `not_mapped`: why not, of a peer on this host. Returns why this worker is unfit;
  // empty: it is not.
  std::string Peer(const transport::Capabilities& library, const transport::PathReport& report,
                   bool same_host, const std::string& not_mapped, PeerPath& path) const;

 private:
  const transport::paths::Facts facts_;
  const bool require_gpudirect_;
};

}  // namespace lockstep::worker
