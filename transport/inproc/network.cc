#include "transport/inproc/network.h"

#include <fmt/format.h>

#include <vector>

#include "transport/inproc/inproc_transport.h"

namespace lockstep::transport {

std::shared_ptr<InprocNetwork> InprocNetwork::Make() { return std::make_shared<inproc::Network>(); }

namespace inproc {

std::unique_ptr<Transport> Network::MakeTransport(Options options) {
  return std::make_unique<InprocTransport>(shared_from_this(), std::move(options));
}

void Network::DelayMessages(WorkerId from, WorkerId to, Duration delay) {
  const std::lock_guard lock(mutex_);
  faults_[{from, to}].message_delay = delay;
}

void Network::DelayBodies(WorkerId from, WorkerId to, Duration delay) {
  const std::lock_guard lock(mutex_);
  faults_[{from, to}].body_delay = delay;
}

void Network::RefuseSends(WorkerId from, WorkerId to, bool refuse) {
  const std::lock_guard lock(mutex_);
  faults_[{from, to}].refuse_sends = refuse;
}

void Network::DropConnections(WorkerId a, WorkerId b) {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, node] : nodes_) {
    if (node.worker != a) continue;
    node.thread->Post([transport = node.transport, b] { transport->DropConnectionsTo(b); });
  }
}

void Network::Stall(WorkerId worker, bool stalled) {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, node] : nodes_) {
    if (node.worker == worker) node.thread->SetStalled(stalled);
  }
}

std::string Network::Add(const Node& node) {
  const std::lock_guard lock(mutex_);
  const std::string address = fmt::format("inproc:{}", ++last_address_);
  nodes_.emplace(address, node);
  return address;
}

void Network::Remove(const std::string& address) {
  const std::lock_guard lock(mutex_);
  nodes_.erase(address);
}

std::optional<Network::Node> Network::Find(const std::string& address) const {
  const std::lock_guard lock(mutex_);
  const auto found = nodes_.find(address);
  if (found == nodes_.end()) return std::nullopt;
  return found->second;
}

Network::Faults Network::FaultsOf(WorkerId from, WorkerId to) const {
  const std::lock_guard lock(mutex_);
  const auto found = faults_.find({from, to});
  return found == faults_.end() ? Faults{} : found->second;
}

}  // namespace inproc
}  // namespace lockstep::transport
