// One of a worker's transports and the connections over it: the peers that are up, their probes,
// and what they said before the core was told of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/messages.h"
#include "transport/transport.h"
#include "worker/core/step_io.h"
#include "worker/runtime/fetch_queue.h"
#include "worker/runtime/probe.h"

namespace lockstep::worker {

// Of one peer, until its path is measured. Ten thousand announcements; with the floats that ride
// along it is as much as a peer may queue before its transport refuses.
inline constexpr std::size_t kEarlyBytes = 4u << 20;

// The core, as the active transport sees it. The core's thread.
class TransportUser {
 public:
  virtual void Handle(const Event& event) = 0;
  virtual transport::ServeAnswer Serve(const MemberId& peer, const PieceName& piece) = 0;

 protected:
  ~TransportUser() = default;
};

// All of it belongs to the transport's data thread, but for the name and the transport's Post.
//
// One of them is active: the core lives on its thread, and hears of its peers. The others
// connect and measure, and keep what they learn until they become it.
class OpenTransport final : public transport::Handler {
 public:
  // `of_library`: what the transport is capable of as its library has it.
  OpenTransport(TransportUser& user, std::unique_ptr<transport::Transport> made,
                std::string its_name, transport::Capabilities of_library, ExchangeMemory& memory,
                std::uint64_t piece_bytes, Duration patience);

  void OnPeerUp(transport::PeerId peer, const MemberId& who,
                const transport::PathReport& path) override;
  void OnConnectFailed(const MemberId& who, const Error& error) override;
  void OnPeerDown(transport::PeerId peer, const Error& reason) override;
  void OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) override;
  transport::ServeAnswer OnFetch(transport::PeerId peer, const PieceName& name) override;
  void OnServed(transport::PeerId peer, std::uint64_t cookie) override;
  void OnFetchDone(transport::FetchId fetch, FetchStatus status) override;

  // The core lives here from now on: it hears of the peers that came up before.
  void BecomeActive();
  // The core moves to another one.
  void BecomeInactive() { active_ = false; }
  bool active() const { return active_; }

  std::optional<transport::PeerId> PeerOf(const MemberId& member) const {
    const auto found = by_member_.find(member);
    return found == by_member_.end() ? std::nullopt : std::optional(found->second);
  }
  // Of a member that is or was up.
  transport::PathReport PathTo(const MemberId& member) const {
    const auto found = paths_.find(member);
    return found == paths_.end() ? transport::PathReport{} : found->second;
  }
  // GB/s; 0 where it was not measured.
  double Measured(const MemberId& member) const {
    const auto found = measured_.find(member);
    return found == measured_.end() ? 0 : found->second;
  }
  // Of one that is connected and that the core has not heard of yet: why, in words; else empty.
  std::string Unfinished(const MemberId& member) const {
    const auto peer = PeerOf(member);
    return peer ? probe.Unfinished(*peer) : std::string();
  }
  // When the last byte of each member came, where the transport can tell.
  std::vector<std::pair<MemberId, Time>> LastHeard() const;
  void CloseAll(const std::string& reason);

  const std::string name;
  const transport::Capabilities library;
  const std::unique_ptr<transport::Transport> transport;
  Probe probe;
  FetchQueue fetches;
  bool closed = false;  // for good, by the core's thread; the transport is being stopped

 private:
  struct Up {
    MemberId member;
    bool measured = false;
    bool announced = false;
    // Its messages from before the core was told of it: messages may overtake the probe of the peer
    // that sends them. At most kEarlyBytes.
    std::vector<std::vector<std::byte>> early;
    std::size_t early_bytes = 0;
  };
  void Announce(transport::PeerId peer);

  TransportUser& user_;
  bool active_ = false;
  std::map<transport::PeerId, Up> up_;
  std::map<MemberId, transport::PeerId> by_member_;  // the same, one for each member
  std::map<MemberId, transport::PathReport> paths_;
  std::map<MemberId, double> measured_;
};

}  // namespace lockstep::worker
