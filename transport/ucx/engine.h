// The work of the data thread: connections, messages, fetches and serves over UCX. Everything here
// runs on that thread, except the constructor, and Register and Unregister before Open.
//
// UCX's callbacks deliver incoming messages to the handler at once, in order. Ends and closings are
// only noted there and carried out in Turn, because UCX must not be asked to close or to progress
// from within.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "transport/transport.h"
#include "transport/ucx/connection.h"
#include "transport/ucx/context.h"
#include "transport/ucx/event_sink.h"
#include "transport/ucx/listener.h"
#include "transport/ucx/operation.h"
#include "transport/ucx/regions.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/worker.h"

namespace lockstep::transport::ucx {

// Larger pieces are no faster anywhere, and each pins its memory until it is sent.
inline constexpr std::size_t kMaxPieceBytes = 4u << 20;
inline constexpr std::size_t kMaxMessageBytes = 256u << 10;
inline constexpr std::size_t kMaxFetchWindow = 256;

class Engine final : public EventSink, public std::enable_shared_from_this<Engine> {
 public:
  // Runs a task on the data thread at a time.
  using Schedule = std::function<void(Time, std::function<void()>)>;

  // kAddresses needs a context without TCP.
  Engine(Options options, UcxWiring wiring, std::unique_ptr<Context> context, Schedule schedule);
  ~Engine() override;

  Status Open(Handler* handler);
  const std::string& address() const { return address_; }
  Worker& worker() { return *worker_; }

  // Progresses UCX and carries out the consequences. True when there was something to do.
  bool Turn();
  // Transfers or closings are under way, so the other end's next step is near.
  bool Busy() const;
  // Stops listening and begins to end all connections; further Turns finish that.
  void BeginStop();
  bool Stopped() const { return connections_.empty() && unused_.empty() && NothingNoted(); }
  // A peer is connecting whose request has not come yet.
  bool Expecting() const { return listener_ != nullptr && listener_->HasConnections(); }

  // Like Transport's function.
  void Connect(const MemberId& who, const std::string& address);
  void Close(PeerId peer, std::string reason);
  Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes);
  void Unregister(RegionId region);
  bool Send(PeerId peer, std::span<const std::byte> bytes);
  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination);
  void GiveUp(FetchId fetch);
  void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice);

  bool OnActiveMessage(const ActiveMessage& message) override;
  void OnConnectionRequest(ucp_conn_request_h request) override;
  void OnEndpointError(PeerId peer, ucs_status_t status) override;

 private:
  struct PendingFetch {
    PeerId peer;
    Regions::Memory destination;
    RegionId region;
    std::size_t bytes = 0;
    bool receiving = false;  // UCX writes to the destination
    bool given_up = false;   // only while receiving
  };
  // The first frame of a connector, where no listener brings it.
  struct Hello {
    std::uint64_t from = 0;
    std::vector<std::byte> body;
  };

  // Functions in engine.cc: connections.
  Connection* Find(PeerId peer);
  Connection& Add(std::optional<MemberId> whom, Handshake::Role role);
  void Attach(Connection& connection, std::unique_ptr<Endpoint> endpoint);
  Connection* FindFor(const ActiveMessage& message);
  void Accept(ucp_conn_request_h request);
  void Accept(const Hello& hello);
  Result<std::unique_ptr<Endpoint>> MakeEndpoint(const std::vector<std::byte>& address,
                                                 PeerId peer);
  std::uint32_t& EndpointsMade(const std::vector<std::byte>& address);
  void Forget(const Connection& connection);  // the connection has no endpoint
  void NoteHello(const ActiveMessage& message);
  void OnHandshake(Connection& connection, const ActiveMessage& message);
  void TakeHandshake(Connection& connection, std::span<const std::byte> bytes);
  bool SendHandshake(Connection& connection, std::span<const std::byte> bytes);
  void Refuse(Connection& connection, Error error);
  // From here on nothing is sent to the peer or received from it; the rest follows in Turn. It is
  // idempotent.
  void Fail(Connection& connection, Error reason);
  void FailMalformed(Connection& connection, const std::string& what);
  void PingAll();
  bool SayGoodbye(Connection& connection);
  void KeepWhileItTakes(Connection& connection) const;
  bool Settled(const Connection& connection) const;
  bool KeepUntilSettled(Connection& connection);
  void CloseEndpoint(Connection& connection);
  void Shut(Connection& connection);
  bool FinishClosed();
  bool NothingNoted() const;

  std::size_t MostStrangers() const;

  // Functions in exchange.cc: messages, fetches, serves.
  bool SendFrame(Connection& connection, Operation::Kind kind, Frame frame,
                 const HeaderBytes& header, std::span<const std::byte> body, std::size_t charge);
  void OnMessage(Connection& connection, const ActiveMessage& message);
  void OnFetch(Connection& connection, const ActiveMessage& message);
  void Serve(Connection& connection, const PieceHeader& piece, const ServeAnswer& answer);
  bool OnPiece(Connection& connection, const ActiveMessage& message);
  bool Receive(Connection& connection, FetchId id, PendingFetch& fetch, void* data);
  void EndOperation(Operation* operation);
  void EndFetch(FetchId id, FetchStatus status);

  const Options options_;
  const UcxWiring wiring_;
  Regions regions_;
  const Schedule schedule_;
  Handler* handler_ = nullptr;
  std::string address_;

  // UCX's objects, in the order in which they are made; they end in reverse order.
  std::unique_ptr<Context> context_;
  std::shared_ptr<OperationPool> operations_ = std::make_shared<OperationPool>();
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Listener> listener_;  // kListener
  std::unordered_map<PeerId, std::unique_ptr<Connection>> connections_;

  std::unordered_map<ucp_ep_h, Connection*> by_endpoint_;  // kListener
  std::unordered_map<std::uint64_t, PeerId> by_number_;    // Connection::local; all of them
  std::random_device random_;
  // kAddresses: the number of endpoints that were made to an address (by its hash), and the
  // superfluous ones that are being closed; see Accept.
  std::unordered_map<std::size_t, std::uint32_t> endpoints_made_;
  std::vector<std::unique_ptr<Endpoint>> unused_;
  std::unordered_map<FetchId, PendingFetch> fetches_;
  std::uint64_t next_peer_ = 1;
  std::uint64_t next_fetch_ = 1;
  std::size_t strangers_ = 0;        // accepted, not yet up; at most MostStrangers()
  std::size_t operations_open_ = 0;  // of all connections
  bool stopping_ = false;

  // Notes for Turn.
  std::vector<ucp_conn_request_h> requests_;
  std::vector<Hello> hellos_;
  std::vector<std::pair<FetchId, FetchStatus>> results_;
  std::vector<std::pair<MemberId, Error>> failed_connects_;
  std::vector<PeerId> failing_;
  std::vector<PeerId> closing_;
  std::vector<Operation*> ended_;
};

}  // namespace lockstep::transport::ucx
