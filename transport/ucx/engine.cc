#include "transport/ucx/engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/open_files.h"
#include "transport/sealed_address.h"
#include "transport/ucx/address.h"

namespace lockstep::transport::ucx {
namespace {

// The most connections that have not proven anything yet, beside those of the job's members:
// strangers cannot make us keep more.
constexpr std::size_t kMaxStrangers = 64;
// How long a refused end has to read the reason.
constexpr Duration kFarewellTime = std::chrono::milliseconds(500);
// How long the other end has to receive the goodbye: from its last progress on, and in all;
// UcxTransport::Loop stops within kStopTime.
constexpr Duration kGoodbyeTime = std::chrono::seconds(1);
constexpr Duration kLongestGoodbye = std::chrono::seconds(4);
// A hello has an introduction and a message of the handshake, and some bytes for their lengths.
constexpr std::size_t kMaxHelloBytes = 2 * kMaxSealedBytes + Handshake::kMaxMessageBytes;
// The most attempts in a row of which only the endpoint came through.
constexpr std::uint32_t kMaxMissedEndpoints = 1024;
// With kListener: how long UCX has to make a connection before it may be closed.
constexpr Duration kSettlingTime = std::chrono::seconds(2);
// The interval of pings with kAddresses.
constexpr Duration kPingInterval = std::chrono::seconds(1);

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

Engine::Engine(Options options, UcxWiring wiring, std::unique_ptr<Context> context,
               Schedule schedule)
    : options_(std::move(options)),
      wiring_(wiring),
      regions_(context->supports_cuda()),
      schedule_(std::move(schedule)),
      context_(std::move(context)) {}

Engine::~Engine() = default;

std::size_t Engine::MostStrangers() const {
  return PlacesForStrangers(kMaxStrangers) + options_.members;
}

Status Engine::Open(Handler* handler) {
  handler_ = handler;
  auto worker = Worker::Open(*context_, weak_from_this(), operations_);
  if (!worker) return worker.error();
  worker_ = std::move(*worker);
  if (wiring_ == UcxWiring::kListener) {
    auto listener = Listener::Open(*worker_, options_.listen_host, weak_from_this());
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    address_ = listener_->address();
    return {};
  }
  const auto address = worker_->Address();
  if (!address) return address.error();
  if (address->size() > kMaxSealedBytes) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX's address of this worker takes {} bytes, {} are allowed: name "
                             "the devices to use in UCX_NET_DEVICES",
                             address->size(), kMaxSealedBytes)};
  }
  address_ = SealAddress(options_.job_key, *address);
  PingAll();
  return {};
}

// RDMA notices a dead peer when it does not acknowledge a send. UCX's own keep-alive would find it,
// but while a connection is being made it holds back requests. UCX 1.13, where it is built with
// assertions, ends the process for them when the peer does not answer (ucp_request.c:684). So its
// keep-alive is off (Context::Open), and pings replace it. Nobody answers a ping, and one that is
// not through yet is as good as another. Other traffic shows nothing: the other end sends the piece
// that is being received.
void Engine::PingAll() {
  for (const auto& [id, connection] : connections_) {
    if (connection->state != Connection::State::kUp || connection->pinging) continue;
    SendFrame(*connection, Operation::Kind::kPing, Frame::kPing, EncodePing(connection->remote), {},
              0);
  }
  schedule_(MonotonicNow() + kPingInterval, [weak = weak_from_this()] {
    if (const auto engine = weak.lock()) engine->PingAll();
  });
}

bool Engine::NothingNoted() const {
  return requests_.empty() && hellos_.empty() && results_.empty() && failed_connects_.empty() &&
         failing_.empty();
}

// A handler that is called here may add to any of the lists; additions wait for the next turn.
bool Engine::Turn() {
  bool any = worker_->Progress();
  operations_->TakeEnded(ended_);
  for (Operation* operation : ended_) EndOperation(operation);
  any = any || !ended_.empty() || !NothingNoted();

  for (const auto request : std::exchange(requests_, {})) Accept(request);
  for (const Hello& hello : std::exchange(hellos_, {})) Accept(hello);
  for (const auto& [fetch, status] : std::exchange(results_, {})) {
    handler_->OnFetchDone(fetch, status);
  }
  for (const auto& [who, error] : std::exchange(failed_connects_, {})) {
    handler_->OnConnectFailed(who, error);
  }
  for (const PeerId peer : std::exchange(failing_, {})) Shut(*Find(peer));
  if (!closing_.empty()) any = FinishClosed() || any;
  std::erase_if(unused_, [](const auto& endpoint) { return endpoint->Closed(); });
  return any || !NothingNoted();
}

bool Engine::Busy() const {
  return operations_open_ != 0 || !fetches_.empty() || !closing_.empty() || !unused_.empty();
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

Connection& Engine::Add(std::optional<MemberId> whom, Handshake::Role role) {
  const PeerId id(next_peer_++);
  // Nobody else must be able to guess it; 0 belongs to no connection.
  std::uint64_t number = 0;
  while (number == 0 || by_number_.contains(number)) {
    number = std::uint64_t{random_()} << 32 | random_();
  }
  by_number_.emplace(number, id);
  auto connection = std::make_unique<Connection>(id, number, whom, role, options_);
  return *connections_.emplace(id, std::move(connection)).first->second;
}

void Engine::Attach(Connection& connection, std::unique_ptr<Endpoint> endpoint) {
  if (wiring_ == UcxWiring::kListener) by_endpoint_[endpoint->get()] = &connection;
  connection.endpoint = std::move(endpoint);
  connection.begun = MonotonicNow();
  schedule_(connection.begun + options_.connect_timeout,
            [weak = weak_from_this(), id = connection.id] {
              const auto engine = weak.lock();
              Connection* late = engine ? engine->Find(id) : nullptr;
              if (late != nullptr && late->state == Connection::State::kHandshaking) {
                engine->Fail(*late, {ErrorCode::kTimeout, "no connection within the time-out"});
              }
            });
}

void Engine::Connect(const MemberId& who, const std::string& address) {
  if (stopping_) {
    failed_connects_.emplace_back(who, Error{ErrorCode::kClosed, "the transport was stopped"});
    return;
  }
  const auto fail = [&](const Error& error) { failed_connects_.emplace_back(who, error); };
  std::vector<std::byte> hello;
  Result<std::unique_ptr<Endpoint>> endpoint = Error{};
  Connection* connection = nullptr;
  if (wiring_ == UcxWiring::kListener) {
    const auto to = SocketAddress::Parse(address);
    if (!to) return fail(to.error());
    connection = &Add(who, Handshake::Role::kConnector);
    endpoint = Endpoint::Connect(*worker_, *to, connection->id, weak_from_this());
  } else {
    const auto to = OpenAddress(options_.job_key, address);
    if (!to) return fail(to.error());
    connection = &Add(who, Handshake::Role::kConnector);
    const Introduction introduction{EndpointsMade(*to), address_};
    hello = EncodeIntroduction(introduction, {});
    endpoint = MakeEndpoint(*to, connection->id);
  }
  if (!endpoint) {
    fail(endpoint.error());
    Forget(*connection);
    return;
  }
  Attach(*connection, std::move(*endpoint));
  const auto handshake = connection->handshake.Begin();
  hello.insert(hello.end(), handshake.begin(), handshake.end());
  SendHandshake(*connection, hello);
}

bool Engine::SendHandshake(Connection& connection, std::span<const std::byte> bytes) {
  return SendFrame(connection, Operation::Kind::kSend, Frame::kHandshake,
                   EncodeHandshake(connection.remote, connection.local), bytes, 0);
}

void Engine::OnConnectionRequest(ucp_conn_request_h request) { requests_.push_back(request); }

void Engine::Accept(ucp_conn_request_h request) {
  if (stopping_ || strangers_ >= MostStrangers()) {
    listener_->Reject(request);
    return;
  }
  Connection& connection = Add(std::nullopt, Handshake::Role::kAcceptor);
  auto endpoint = Endpoint::Accept(*worker_, request, connection.id, weak_from_this());
  if (!endpoint) {
    spdlog::debug("ucx: {}", endpoint.error().message);
    Forget(connection);
    return;
  }
  ++strangers_;
  Attach(connection, std::move(*endpoint));
}

void Engine::Forget(const Connection& connection) {
  by_number_.erase(connection.local);
  connections_.erase(connection.id);
}

Result<std::unique_ptr<Endpoint>> Engine::MakeEndpoint(const std::vector<std::byte>& address,
                                                       PeerId peer) {
  ++EndpointsMade(address);
  return Endpoint::ToWorker(*worker_, address, peer, weak_from_this());
}

std::uint32_t& Engine::EndpointsMade(const std::vector<std::byte>& address) {
  const std::string_view text(reinterpret_cast<const char*>(address.data()), address.size());
  return endpoints_made_[std::hash<std::string_view>()(text)];
}

void Engine::NoteHello(const ActiveMessage& message) {
  const auto from = DecodeHandshake(message.header);
  if (!from || message.rendezvous || message.bytes > kMaxHelloBytes || stopping_ ||
      hellos_.size() + strangers_ >= MostStrangers()) {
    spdlog::debug("ucx: a hello is malformed, or one too many");
    return;
  }
  const auto* body = static_cast<const std::byte*>(message.data);
  hellos_.push_back({*from, {body, body + message.bytes}});
}

// UCX joins the endpoints that two workers make to each other in their order: the first with the
// first, the second with the second, and so on. The other end may have made some of which this end
// has heard nothing, in attempts that ended before their hello came. Then the next one made here
// would be joined with a closed one there, and so would all later ones. So the hello carries their
// number, and the same number is made here too, and closed.
void Engine::Accept(const Hello& hello) {
  std::span<const std::byte> body = hello.body;
  const auto introduction = DecodeIntroduction(body);
  if (!introduction || stopping_ || strangers_ >= MostStrangers()) return;
  // It was reported already.
  for (const auto& [id, connection] : connections_) {
    if (connection->remote == hello.from) return;
  }
  const auto address = OpenAddress(options_.job_key, introduction->address);
  if (!address) {
    spdlog::debug("ucx: a hello is refused: {}", address.error().message);
    return;
  }
  std::uint32_t& made = EndpointsMade(*address);
  if (introduction->endpoints > made && introduction->endpoints - made > kMaxMissedEndpoints) {
    return;
  }
  while (made < introduction->endpoints) {
    auto missed = MakeEndpoint(*address, PeerId());
    if (!missed) continue;
    (*missed)->Close();
    unused_.push_back(std::move(*missed));
  }
  Connection& connection = Add(std::nullopt, Handshake::Role::kAcceptor);
  connection.remote = hello.from;
  auto endpoint = MakeEndpoint(*address, connection.id);
  if (!endpoint) {
    spdlog::debug("ucx: {}", endpoint.error().message);
    Forget(connection);
    return;
  }
  ++strangers_;
  Attach(connection, std::move(*endpoint));
  TakeHandshake(connection, body);
}

// Null: it belongs to no connection, or to one that is being closed. That is no error: it may come
// late, or from a stranger.
Connection* Engine::FindFor(const ActiveMessage& message) {
  const auto to = DecodeTo(message.header);
  if (!to) return nullptr;
  Connection* connection = nullptr;
  if (*to != 0) {
    const auto found = by_number_.find(*to);
    if (found != by_number_.end()) connection = Find(found->second);
  } else if (message.frame == Frame::kHandshake) {
    const auto found = by_endpoint_.find(message.endpoint);
    if (found != by_endpoint_.end()) connection = found->second;
  }
  if (connection == nullptr) return nullptr;
  connection->heard = true;
  return connection->state == Connection::State::kClosing ? nullptr : connection;
}

bool Engine::OnActiveMessage(const ActiveMessage& message) {
  if (wiring_ == UcxWiring::kAddresses && message.frame == Frame::kHandshake &&
      DecodeTo(message.header) == 0) {
    NoteHello(message);
    return false;
  }
  Connection* const found = FindFor(message);
  if (found == nullptr) return false;
  Connection& connection = *found;
  if (message.frame == Frame::kGoodbye && IsGoodbye(message.header)) {
    // Nothing more is to be sent to it.
    connection.broken = true;
    Fail(connection, {ErrorCode::kClosed, "the other end has closed the connection"});
    return false;
  }
  if (connection.state == Connection::State::kRefused || message.frame == Frame::kPing)
    return false;
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
    case Frame::kPiece:
      return OnPiece(connection, message);
    default:
      FailMalformed(connection, "a goodbye is malformed");
      return false;
  }
}

void Engine::OnHandshake(Connection& connection, const ActiveMessage& message) {
  const auto from = DecodeHandshake(message.header);
  if (connection.state != Connection::State::kHandshaking || !from) {
    FailMalformed(connection, "a handshake is out of place or of another version");
    return;
  }
  if (connection.remote != 0 && connection.remote != *from) return;  // of another conversation
  connection.remote = *from;
  TakeHandshake(connection, {static_cast<const std::byte*>(message.data), message.bytes});
}

void Engine::TakeHandshake(Connection& connection, std::span<const std::byte> bytes) {
  auto answer = connection.handshake.Consume(bytes);
  if (!answer) {
    Refuse(connection, answer.error());
    return;
  }
  if (!answer->empty() && !SendHandshake(connection, *answer)) return;
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
  if (farewell.empty() || !SendHandshake(connection, farewell)) {
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
  connection->broken = true;
  Fail(*connection, {connection->was_up ? ErrorCode::kClosed : CodeOf(status), Describe(status)});
}

void Engine::FailMalformed(Connection& connection, const std::string& what) {
  Fail(connection, {ErrorCode::kInvalid, "the peer broke the protocol: " + what});
}

void Engine::Fail(Connection& connection, Error reason) {
  if (connection.state == Connection::State::kClosing) return;
  if (connection.state != Connection::State::kRefused) connection.reason = std::move(reason);
  connection.state = Connection::State::kClosing;
  failing_.push_back(connection.id);
}

// Without a listener, UCX does not tell the other end that its peer closes; it would look like a
// stopped process. False: it cannot be told, or need not.
bool Engine::SayGoodbye(Connection& connection) {
  if (wiring_ == UcxWiring::kListener || connection.remote == 0 || connection.broken) return false;
  if (!SendFrame(connection, Operation::Kind::kSend, Frame::kGoodbye,
                 EncodeGoodbye(connection.remote), {}, 0)) {
    return false;
  }
  connection.endpoint->Flush();
  connection.kept_at_most = MonotonicNow() + kLongestGoodbye;
  KeepWhileItTakes(connection);
  return true;
}

// The goodbye goes out behind the pieces that are under way. A peer that takes those is there to
// receive it, however busy its machine is.
void Engine::KeepWhileItTakes(Connection& connection) const {
  connection.kept_until = std::min(MonotonicNow() + kGoodbyeTime, connection.kept_at_most);
}

// UCX has made the connection: the hello has left, or something has arrived.
bool Engine::Settled(const Connection& connection) const {
  return connection.heard || (connection.wanted && connection.operations == 0);
}

// While UCX makes a connection through its listener, it waits until a socket can be written to. If
// it is closed at that moment, the socket goes, and the events noted for it reach the connection
// that gets its number next. There an assertion of a UCX that is built with them (Debian's 1.13;
// tcp_sockcm_ep.c:416) ends the process. So a connection is made before it is closed.
bool Engine::KeepUntilSettled(Connection& connection) {
  if (wiring_ != UcxWiring::kListener || connection.broken || Settled(connection)) return false;
  connection.kept_until = connection.begun + kSettlingTime;
  return true;
}

void Engine::CloseEndpoint(Connection& connection) {
  if (wiring_ == UcxWiring::kListener) by_endpoint_.erase(connection.endpoint->get());
  connection.endpoint->Close();
}

void Engine::Shut(Connection& connection) {
  if (!SayGoodbye(connection) && !KeepUntilSettled(connection)) CloseEndpoint(connection);
  closing_.push_back(connection.id);
  // Fetches that UCX is receiving end when it releases them.
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
  const Time now = MonotonicNow();
  std::vector<std::unique_ptr<Connection>> finished;
  std::erase_if(closing_, [&](PeerId peer) {
    const auto found = connections_.find(peer);
    Connection& connection = *found->second;
    const bool ready =
        wiring_ == UcxWiring::kListener ? Settled(connection) : connection.endpoint->Flushed();
    if (connection.kept_until && (connection.broken || ready || now >= *connection.kept_until)) {
      connection.kept_until.reset();
      CloseEndpoint(connection);
    }
    if (connection.operations != 0 || !connection.endpoint->Closed()) return false;
    by_number_.erase(connection.local);
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
