// One transport of an InprocNetwork. All state belongs to its data thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/handshake.h"
#include "transport/inproc/network.h"
#include "transport/inproc/wire.h"
#include "transport/region_table.h"
#include "transport/transport.h"

namespace lockstep::transport::inproc {

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Network> network, Options options);
  ~InprocTransport() override { StopThread(); }

  Status Start(Handler* handler) override;
  void Stop() override { StopThread(); }
  void Post(std::function<void()> task) override { thread_->Post(std::move(task)); }
  void PostAt(Time when, std::function<void()> task) override;
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return address_; }
  void Connect(const MemberId& who, const std::string& address) override;
  void Close(PeerId peer, std::string reason) override;
  Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes) override;
  void Unregister(RegionId region) override;
  bool Send(PeerId peer, std::span<const std::byte> bytes) override;
  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination) override;
  void GiveUp(FetchId fetch) override;
  void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) override;

  // The network calls it, on the data thread.
  void DropConnectionsTo(WorkerId worker);

 private:
  struct PendingFetch {
    FetchId id;
    std::span<std::byte> destination;
    bool given_up = false;
    bool owes_given_up = false;  // OnFetchDone(kGivenUp) has not been called yet
  };
  struct Serve {
    FetchId fetch;  // the requester's number for it
    std::shared_ptr<Offer> offer;
  };
  // A fetch of the other end whose answer comes later.
  struct Deferred {
    FetchId fetch;
    std::uint64_t cookie = 0;
    std::uint64_t bytes = 0;
  };
  struct Connection {
    std::shared_ptr<Wire> wire;
    int side = 0;  // index of our end of the wire
    Handshake handshake;
    std::optional<MemberId> whom;  // the member that we connect to
    PeerId peer;
    bool up = false;
    bool ending = false;
    std::size_t live_fetches = 0;
    std::vector<PendingFetch> fetches;
    std::vector<Serve> serves;
    std::vector<Deferred> deferred;

    Wire::End& own() { return wire->ends[side]; }
    Wire::End& other() { return wire->ends[1 - side]; }
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void CheckThread() const;
  void StopThread();
  void EndAll();
  ConnectionPtr Add(const std::shared_ptr<Wire>& wire, int side, std::optional<MemberId> whom);
  ConnectionPtr FindPeer(PeerId peer) const;
  // Sends to the other end of the connection, with the delays that the network has for it.
  void Transmit(Connection& connection, Frame frame);
  void Receive(const std::shared_ptr<Wire>& wire, int side, Frame frame);
  void ReceiveFrame(Connection& connection, Frame& frame);
  void ReceiveGreeting(const ConnectionPtr& connection, const Frame& frame);
  void ReceiveFetch(Connection& connection, const Frame& frame);
  void ServeSlice(Connection& connection, FetchId fetch, const Slice& slice, std::uint64_t cookie);
  void ReceiveCancel(Connection& connection, const Frame& frame);
  void ReceivePiece(Connection& connection, const Frame& frame);
  void ReceiveServed(Connection& connection, const Frame& frame);
  void FinishFetch(Connection& connection, FetchId fetch, FetchStatus status);
  void CloseLater(const ConnectionPtr& connection, const std::string& reason);
  void End(const ConnectionPtr& connection, const Error& reason, bool tell_other);
  void FailConnectLater(const MemberId& who, Error error);
  void TellFailures();

  const std::shared_ptr<Network> network_;
  const Options options_;
  Capabilities capabilities_;
  std::string address_;
  const std::shared_ptr<DataThread> thread_ = std::make_shared<DataThread>();
  Handler* handler_ = nullptr;
  HostRegionTable regions_;
  std::map<Wire*, ConnectionPtr> connections_;
  std::vector<std::pair<MemberId, Error>> failures_;  // failures to report in a later turn
  PeerId last_peer_;
  FetchId last_fetch_;
  bool stopping_ = false;
  std::once_flag stopped_;
};

}  // namespace lockstep::transport::inproc
