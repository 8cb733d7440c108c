#include "worker/runtime/open_transport.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace lockstep::worker {
namespace {

constexpr std::size_t kEarlyOverhead = 64;  // what keeping a message costs beside its bytes

}  // namespace

OpenTransport::OpenTransport(TransportUser& user, std::unique_ptr<transport::Transport> made,
                             std::string its_name, transport::Capabilities of_library,
                             ExchangeMemory& memory, std::uint64_t piece_bytes, Duration patience)
    : name(std::move(its_name)),
      library(std::move(of_library)),
      transport(std::move(made)),
      probe(*transport, memory, piece_bytes),
      fetches(*transport, patience,
              [this](std::uint64_t fetch, FetchStatus status) {
                if (active_) user_.Handle(event::FetchDone{.fetch = fetch, .status = status});
              }),
      user_(user) {}

void OpenTransport::BecomeActive() {
  active_ = true;
  std::vector<transport::PeerId> peers;
  for (const auto& [peer, up] : up_) peers.push_back(peer);
  for (const transport::PeerId peer : peers) Announce(peer);
}

void OpenTransport::OnPeerUp(transport::PeerId peer, const MemberId& member,
                             const transport::PathReport& path) {
  if (by_member_.contains(member)) {
    transport->Close(peer, "connected already");
    return;
  }
  by_member_.emplace(member, peer);
  up_[peer] = Up{.member = member, .early = {}};
  paths_[member] = path;
  probe.Start(peer, [this, peer, member](double rate) {
    measured_[member] = rate;
    up_.at(peer).measured = true;
    spdlog::debug("worker {} is connected over {}, the path is measured", member.worker, name);
    // Not inside the transport's callback of a fetch.
    transport->Post([this, peer] {
      if (active_) Announce(peer);
    });
  });
}

void OpenTransport::Announce(transport::PeerId peer) {
  const auto found = up_.find(peer);
  if (found == up_.end() || !found->second.measured || found->second.announced) return;
  Up& up = found->second;
  up.announced = true;
  const MemberId member = up.member;
  const auto early = std::exchange(up.early, {});
  user_.Handle(event::PeerUp{.peer = member, .path = PathTo(member).text});
  for (const auto& bytes : early) user_.Handle(event::FromPeer{.peer = member, .bytes = bytes});
}

std::vector<std::pair<MemberId, Time>> OpenTransport::LastHeard() const {
  std::vector<std::pair<MemberId, Time>> heard;
  for (const auto& [member, peer] : by_member_) {
    if (const auto at = transport->LastHeard(peer)) heard.emplace_back(member, *at);
  }
  return heard;
}

void OpenTransport::CloseAll(const std::string& reason) {
  for (const auto& [member, peer] : by_member_) transport->Close(peer, reason);
}

void OpenTransport::OnConnectFailed(const MemberId& who, const Error& error) {
  if (active_) user_.Handle(event::ConnectFailed{.peer = who, .reason = error.message});
}

void OpenTransport::OnPeerDown(transport::PeerId peer, const Error& reason) {
  probe.OnPeerDown(peer);
  fetches.OnPeerDown(peer);
  const auto found = up_.find(peer);
  if (found == up_.end()) return;  // a second connection that was closed
  const MemberId member = found->second.member;
  up_.erase(found);
  by_member_.erase(member);
  if (active_) user_.Handle(event::PeerDown{.peer = member, .reason = reason.message});
}

void OpenTransport::OnMessage(transport::PeerId peer, std::span<const std::byte> bytes) {
  const auto found = up_.find(peer);
  if (found == up_.end()) return;
  Up& up = found->second;
  if (up.announced) {
    if (active_) user_.Handle(event::FromPeer{.peer = up.member, .bytes = bytes});
    return;
  }
  up.early_bytes += bytes.size() + kEarlyOverhead;
  if (up.early_bytes > kEarlyBytes) {
    transport->Close(peer, "it said too much before it was known");
    return;
  }
  up.early.emplace_back(bytes.begin(), bytes.end());
}

transport::ServeAnswer OpenTransport::OnFetch(transport::PeerId peer, const PieceName& piece) {
  if (auto answer = probe.OnFetch(piece)) return *answer;
  const auto found = up_.find(peer);
  if (!active_ || found == up_.end()) return {};
  return user_.Serve(found->second.member, piece);
}

void OpenTransport::OnServed(transport::PeerId, std::uint64_t cookie) {
  if (cookie != ~std::uint64_t{0} && active_) user_.Handle(event::Served{.cookie = cookie});
}

void OpenTransport::OnFetchDone(transport::FetchId fetch, FetchStatus status) {
  if (!probe.OnFetchDone(fetch, status)) fetches.OnFetchDone(fetch, status);
}

}  // namespace lockstep::worker
