#include "transport/ucx/engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/ucx/address.h"

namespace lockstep::transport::ucx {
namespace {

// Connections that have not proven anything yet: what a stranger can make us keep.
constexpr std::size_t kMaxStrangers = 64;
// How long an end that was refused has to read why.
constexpr Duration kFarewellTime = std::chrono::milliseconds(500);

ErrorCode CodeOf(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_REJECTED:
      return ErrorCode::kRefused;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
      return ErrorCode::kTimeout;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

Engine::Engine(Options options, std::unique_ptr<Context> context, Schedule schedule)
    : options_(std::move(options)),
      regions_(context->supports_cuda()),
      schedule_(std::move(schedule)),
      context_(std::move(context)) {}

Engine::~Engine() = default;

Status Engine::Open(Handler* handler) {
  handler_ = handler;
  auto worker = Worker::Open(*context_, weak_from_this(), operations_);
  if (!worker) return worker.error();
  worker_ = std::move(*worker);
  auto listener = Listener::Open(*worker_, options_.listen_host, weak_from_this());
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  return {};
}

bool Engine::NothingNoted() const {
  return requests_.empty() && results_.empty() && failed_connects_.empty() && failing_.empty();
}

// A handler that is called here may add to any of the lists; what is added waits for the next turn.
bool Engine::Turn() {
  bool any = worker_->Progress();
  operations_->TakeEnded(ended_);
  for (Operation* operation : ended_) EndOperation(operation);
  any = any || !ended_.empty() || !NothingNoted();

  for (const auto request : std::exchange(requests_, {})) Accept(request);
  for (const auto& [fetch, status] : std::exchange(results_, {})) {
    handler_->OnFetchDone(fetch, status);
  }
  for (const auto& [who, error] : std::exchange(failed_connects_, {})) {
    handler_->OnConnectFailed(who, error);
  }
  for (const PeerId peer : std::exchange(failing_, {})) Shut(*Find(peer));
  if (!closing_.empty()) any = FinishClosed() || any;
  return any || !NothingNoted();
}

bool Engine::Busy() const {
  return operations_open_ != 0 || !fetches_.empty() || !closing_.empty();
}

void Engine::BeginStop() {
  stopping_ = true;
  for (const auto request : std::exchange(requests_, {})) listener_->Reject(request);
  for (const auto& [id, connection] : connections_) {
    Fail(*connection, {ErrorCode::kClosed, "the transport was stopped"});
  }
}

Connection* Engine::Find(PeerId peer) {
  const auto found = connections_.find(peer);
  return found == connections_.end() ? nullptr : found->second.get();
}

Connection& Engine::Add(std::optional<PeerIdentity> whom, Handshake::Role role) {
  const PeerId id(next_peer_++);
  auto connection = std::make_unique<Connection>(id, whom, role, options_);
  return *connections_.emplace(id, std::move(connection)).first->second;
}

void Engine::Attach(Connection& connection, std::unique_ptr<Endpoint> endpoint) {
  by_endpoint_[endpoint->get()] = &connection;
  connection.endpoint = std::move(endpoint);
  schedule_(MonotonicNow() + options_.connect_timeout,
            [weak = weak_from_this(), id = connection.id] {
              const auto engine = weak.lock();
              Connection* late = engine ? engine->Find(id) : nullptr;
              if (late != nullptr && late->state == Connection::State::kHandshaking) {
                engine->Fail(*late, {ErrorCode::kTimeout, "no connection within the time-out"});
              }
            });
}

void Engine::Connect(const PeerIdentity& who, const std::string& address) {
  if (stopping_) {
    failed_connects_.emplace_back(who, Error{ErrorCode::kClosed, "the transport was stopped"});
    return;
  }
  const auto to = SocketAddress::Parse(address);
  if (!to) {
    failed_connects_.emplace_back(who, to.error());
    return;
  }
  Connection& connection = Add(who, Handshake::Role::kConnector);
  auto endpoint = Endpoint::Connect(*worker_, *to, connection.id, weak_from_this());
  if (!endpoint) {
    failed_connects_.emplace_back(who, endpoint.error());
    connections_.erase(connection.id);
    return;
  }
  Attach(connection, std::move(*endpoint));
  SendFrame(connection, Operation::Kind::kSend, Frame::kHandshake, EncodeHandshake(),
            connection.handshake.Begin(), 0);
}

void Engine::OnConnectionRequest(ucp_conn_request_h request) { requests_.push_back(request); }

void Engine::Accept(ucp_conn_request_h request) {
  if (stopping_ || strangers_ >= kMaxStrangers) {
    listener_->Reject(request);
    return;
  }
  Connection& connection = Add(std::nullopt, Handshake::Role::kAcceptor);
  auto endpoint = Endpoint::Accept(*worker_, request, connection.id, weak_from_this());
  if (!endpoint) {
    spdlog::debug("ucx: {}", endpoint.error().message);
    connections_.erase(connection.id);
    return;
  }
  ++strangers_;
  Attach(connection, std::move(*endpoint));
}

bool Engine::OnActiveMessage(const ActiveMessage& message) {
  const auto found = by_endpoint_.find(message.endpoint);
  if (found == by_endpoint_.end()) return false;
  Connection& connection = *found->second;
  if (connection.state == Connection::State::kRefused) return false;
  if (message.rendezvous && message.frame != Frame::kPiece) {
    FailMalformed(connection, "a small message came as a rendezvous");
    return false;
  }
  if (message.frame == Frame::kHandshake) {
    OnHandshake(connection, message);
    return true;
  }
  if (connection.state != Connection::State::kUp) {
    FailMalformed(connection, "a frame came before the proof");
    return false;
  }
  switch (message.frame) {
    case Frame::kMessage:
      OnMessage(connection, message);
      return true;
    case Frame::kFetch:
      OnFetch(connection, message);
      return true;
    default:
      return OnPiece(connection, message);
  }
}

void Engine::OnHandshake(Connection& connection, const ActiveMessage& message) {
  if (connection.state != Connection::State::kHandshaking || !IsHandshake(message.header)) {
    FailMalformed(connection, "a handshake is out of place or of another version");
    return;
  }
  auto answer =
      connection.handshake.Consume({static_cast<const std::byte*>(message.data), message.bytes});
  if (!answer) {
    Refuse(connection, answer.error());
    return;
  }
  if (!answer->empty() && !SendFrame(connection, Operation::Kind::kSend, Frame::kHandshake,
                                     EncodeHandshake(), *answer, 0)) {
    return;
  }
  if (!connection.handshake.done()) return;
  connection.state = Connection::State::kUp;
  connection.was_up = true;
  if (!connection.wanted) --strangers_;
  PathReport path = connection.endpoint->Path();
  path.text = "ucx: " + path.text;
  handler_->OnPeerUp(connection.id, connection.handshake.peer(), path);
}

// A forced close could overtake the farewell, so the other end has some time to close first.
void Engine::Refuse(Connection& connection, Error error) {
  const auto& farewell = connection.handshake.farewell();
  if (farewell.empty() || !SendFrame(connection, Operation::Kind::kSend, Frame::kHandshake,
                                     EncodeHandshake(), farewell, 0)) {
    Fail(connection, std::move(error));
    return;
  }
  connection.state = Connection::State::kRefused;
  connection.reason = std::move(error);
  schedule_(MonotonicNow() + kFarewellTime, [weak = weak_from_this(), id = connection.id] {
    const auto engine = weak.lock();
    Connection* refused = engine ? engine->Find(id) : nullptr;
    if (refused != nullptr) engine->Fail(*refused, refused->reason);
  });
}

void Engine::Close(PeerId peer, std::string reason) {
  if (Connection* connection = Find(peer)) {
    Fail(*connection, {ErrorCode::kClosed, std::move(reason)});
  }
}

void Engine::OnEndpointError(PeerId peer, ucs_status_t status) {
  Connection* connection = Find(peer);
  if (connection == nullptr) return;
  Fail(*connection, {connection->was_up ? ErrorCode::kClosed : CodeOf(status), Describe(status)});
}

void Engine::FailMalformed(Connection& connection, const std::string& what) {
  Fail(connection, {ErrorCode::kInvalid, "the peer broke the protocol: " + what});
}

void Engine::Fail(Connection& connection, Error reason) {
  if (connection.state == Connection::State::kClosing) return;
  if (connection.state != Connection::State::kRefused) connection.reason = std::move(reason);
  connection.state = Connection::State::kClosing;
  by_endpoint_.erase(connection.endpoint->get());
  failing_.push_back(connection.id);
}

void Engine::Shut(Connection& connection) {
  connection.endpoint->Close();
  closing_.push_back(connection.id);
  // Those that UCX is receiving end when it lets go of them.
  std::vector<FetchId> waiting;
  for (const auto& [id, fetch] : fetches_) {
    if (fetch.peer == connection.id && !fetch.receiving) waiting.push_back(id);
  }
  std::ranges::sort(waiting);
  for (const FetchId id : waiting) {
    // The handler may have given it up meanwhile.
    if (fetches_.contains(id)) EndFetch(id, FetchStatus::kPeerDown);
  }
  for (const Connection::Deferred& later : std::exchange(connection.deferred, {})) {
    handler_->OnServed(connection.id, later.cookie);
  }
}

bool Engine::FinishClosed() {
  if (!results_.empty()) return true;  // of a fetch from one of them, perhaps
  std::vector<std::unique_ptr<Connection>> finished;
  std::erase_if(closing_, [&](PeerId peer) {
    const auto found = connections_.find(peer);
    Connection& connection = *found->second;
    if (connection.operations != 0 || !connection.endpoint->Closed()) return false;
    finished.push_back(std::move(found->second));
    connections_.erase(found);
    return true;
  });
  for (const auto& connection : finished) {
    if (connection->was_up) {
      handler_->OnPeerDown(connection->id, connection->reason);
    } else if (connection->wanted) {
      handler_->OnConnectFailed(*connection->wanted, connection->reason);
    } else {
      --strangers_;
      spdlog::debug("ucx: a connection was dropped before it was up: {}",
                    connection->reason.message);
    }
  }
  return !finished.empty();
}

Result<RegionId> Engine::Register(MemoryKind kind, void* base, std::size_t bytes) {
  return regions_.Add(kind, base, bytes);
}

void Engine::Unregister(RegionId region) {
  const bool used = std::ranges::any_of(
      fetches_, [&](const auto& entry) { return entry.second.region == region; });
  LOCKSTEP_CHECK(!used, "region {} is the destination of a fetch", region.value);
  regions_.Remove(region);
}

}  // namespace lockstep::transport::ucx
