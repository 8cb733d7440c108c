// The registry and the faults behind InprocNetwork.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "transport/inproc/inproc.h"
#include "transport/inproc/wire.h"

namespace lockstep::transport::inproc {

class Network final : public InprocNetwork, public std::enable_shared_from_this<Network> {
 public:
  struct Node {
    InprocTransport* transport = nullptr;
    std::shared_ptr<DataThread> thread;
    WorkerId worker;
  };
  struct Faults {
    Duration message_delay{};
    Duration body_delay{};
    bool refuse_sends = false;
  };

  std::unique_ptr<Transport> MakeTransport(Options options) override;
  void DelayMessages(WorkerId from, WorkerId to, Duration delay) override;
  void DelayBodies(WorkerId from, WorkerId to, Duration delay) override;
  void DropConnections(WorkerId a, WorkerId b) override;
  void Stall(WorkerId worker, bool stalled) override;
  void RefuseSends(WorkerId from, WorkerId to, bool refuse) override;

  // Returns the address.
  std::string Add(const Node& node);
  void Remove(const std::string& address);
  std::optional<Node> Find(const std::string& address) const;
  Faults FaultsOf(WorkerId from, WorkerId to) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Node> nodes_;
  std::map<std::pair<WorkerId, WorkerId>, Faults> faults_;
  std::uint64_t last_address_ = 0;
};

}  // namespace lockstep::transport::inproc
