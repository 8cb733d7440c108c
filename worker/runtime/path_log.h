// Reports the paths from a worker to its peers: into its log, and to the coordinator.
#pragma once

#include <map>
#include <string>

#include "base/messages.h"
#include "transport/paths/judge.h"
#include "transport/transport.h"
#include "worker/runtime/open_transport.h"
#include "worker/runtime/peer_mapper.h"

namespace lockstep::worker {

class PathLog {
 public:
  struct Setup {
    transport::paths::Facts facts;
    bool require_gpudirect = false;  // whoever reaches a peer on another host otherwise is unfit
    std::string host_id;             // of this worker
  };
  explicit PathLog(Setup setup) : setup_(std::move(setup)) {}

  // Peers cannot map this worker's memory, and why.
  void NoArena(std::string why) { no_arena_ = std::move(why); }
  // This worker has no UCX to offer, and why.
  void NoUcx(std::string why) { setup_.facts.no_ucx = std::move(why); }
  // Logs, once, what of this machine decides over paths.
  void Machine(const transport::Capabilities& library) const;
  // Which peers are on this host.
  void NoteHosts(const msg::Form& form);
  // Assesses and logs the path to each peer that was reached over `active` and measured, or that it
  // was not. Adds to `reached` what was measured and what there is to say, with what is done to
  // gradients on the way. Returns why this worker is unfit; empty: it is not.
  std::string Assess(const OpenTransport& active, const PeerMapper& mapper, msg::Reached& reached);

 private:
  struct Neighbour {
    bool has_arena = false;
  };
  // Of a peer on this host that is not mapped.
  std::string WhyNotMapped(const PeerPath& path, const PeerMapper& mapper) const;
  std::string AssessOne(const transport::Capabilities& library, const transport::PathReport& report,
                        const std::string& not_mapped, PeerPath& path);
  void WarnOfStaging(const transport::Capabilities& library, const PeerPath& path);

  Setup setup_;
  std::string no_arena_;
  std::string told_not_mapped_;  // the last reason in the log
  bool warned_of_staging_ = false;
  std::map<MemberId, Neighbour> on_this_host_;  // as the Forms said
};

}  // namespace lockstep::worker
