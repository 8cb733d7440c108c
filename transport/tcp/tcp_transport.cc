#include "transport/tcp/tcp_transport.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/version.hpp>
#include <charconv>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/log_limit.h"
#include "transport/acceptor.h"
#include "transport/network_thread.h"
#include "transport/open_files.h"
#include "transport/places.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/group.h"

namespace lockstep::transport::tcp {
namespace {

namespace asio = boost::asio;

// The most strangers that have not proven themselves yet. A further one pushes out the oldest one
// of the address that has most of them, so that a flood of connections keeps nobody else out.
constexpr std::size_t kMaxStrangers = 128;
// The most connections of one member that are proven and in no group that is up, as a multiple of
// the connections to a peer. The member may have given up some of them.
constexpr std::size_t kGroupsForming = 4;
constexpr std::size_t kScratchBytes = 256u << 10;
// The pause before another try, after the other end has closed a connection.
constexpr Duration kShortestDelay = std::chrono::milliseconds(10);
constexpr std::uint32_t kMostDoublings = 5;

using Endpoint = asio::ip::tcp::endpoint;

// Parses addresses in the form of the transports: "127.0.0.1:4711", "[::1]:4711". It takes numbers
// only: no look-up can block here.
std::optional<Endpoint> ParseAddress(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  std::uint16_t port = 0;
  const auto [end, failed] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(std::string(host), error);
  if (error || failed != std::errc() || end != port_text.data() + port_text.size() || port == 0) {
    return std::nullopt;
  }
  return Endpoint(ip, port);
}

std::string FormatAddress(const Endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                    : fmt::format("{}:{}", host, endpoint.port());
}

// The reason for a group's end, when this connection of it ends.
Error OfGroup(const Group& group, const Connection& connection, const Error& error) {
  if (group.size() == 1) return error;
  const std::uint32_t number = connection.place().number;
  if (number > 0) {
    return {error.code,
            fmt::format("connection {} of {}: {}", number, group.size(), error.message)};
  }
  if (error.code != ErrorCode::kTimeout || group.settled() == 0) return error;
  return {error.code,
          fmt::format("{} ({} of {} were)", error.message, group.settled(), group.size())};
}

class TcpTransport final : public Transport, public ConnectionOwner {
 public:
  explicit TcpTransport(Options options)
      : options_(std::move(options)),
        network_(options_.network ? options_.network
                                  : std::make_shared<NetworkThread>("lockstep-tcp")),
        io_(network_->io()),
        scratch_(kScratchBytes) {
    capabilities_.name = "tcp";
    capabilities_.version = fmt::format("Boost.Asio {}.{}.{}", BOOST_ASIO_VERSION / 100000,
                                        BOOST_ASIO_VERSION / 100 % 1000, BOOST_ASIO_VERSION % 100);
    capabilities_.max_message_bytes = kMaxMessageBytes;
    capabilities_.max_piece_bytes = kMaxPieceBytes;
    capabilities_.fetch_window = options_.fetch_window;
    if (!options_.encryption) return;
    tls::Key key = tls::DeriveKey(options_.job_key, "lockstep job key v1",
                                  "data plane TLS 1.3 pre-shared key");
    tls_server_ = tls::MakeContext(tls::Role::kServer, key);
    tls_client_ = tls::MakeContext(tls::Role::kClient, key);
    OPENSSL_cleanse(key.data(), key.size());
    tls_scratch_.resize(TlsStream::kScratchBytes);
  }
  ~TcpTransport() override { Stop(); }

  Status Start(Handler* handler) override;
  void Stop() override;
  void Post(std::function<void()> task) override {
    asio::post(io_, [gate = gate_, task = std::move(task)] {
      if (!gate->closed) task();
    });
  }
  void PostAt(Time when, std::function<void()> task) override;
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return address_; }
  void Connect(const MemberId& who, const std::string& address) override;
  void Close(PeerId peer, std::string reason) override;
  std::optional<Time> LastHeard(PeerId peer) const override;
  Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes) override {
    CheckThread();
    return regions_.Add(kind, base, bytes);
  }
  void Unregister(RegionId region) override {
    CheckThread();
    regions_.Remove(region);
  }
  bool Send(PeerId peer, std::span<const std::byte> bytes) override;
  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination) override;
  void GiveUp(FetchId fetch) override;
  void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) override;

 private:
  const Options& options() const override { return options_; }
  const HostRegionTable& regions() const override { return regions_; }
  Handler& handler() override { return *handler_; }
  std::span<std::byte> scratch() override { return scratch_; }
  SSL_CTX* tls(tls::Role role) override {
    return role == tls::Role::kServer ? tls_server_.get() : tls_client_.get();
  }
  std::span<std::byte> tls_scratch() override { return tls_scratch_; }
  Status OnProven(Connection& connection) override;
  Status OnPlace(Connection& connection, const ConnectionPlace& place) override;
  Status OnBegin(Connection& connection) override;
  void OnGreetingFailed(Connection& connection, const Error& error) override;
  void OnDown(Connection& connection, const Error& reason) override;

  void CheckThread() {
    LOCKSTEP_CHECK(network_->running_in_this_thread(), "not on the data thread");
  }
  Status Listen();
  void OnConnection(Connection::Socket socket);
  void LogRefusal(const Error& error);
  void TellRefusals(Time now);
  void FailConnect(const MemberId& who, const Error& error);
  void EndAll(const std::shared_ptr<std::promise<void>>& ended);
  // It is null where there is none.
  Group* Find(PeerId peer) const {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? nullptr : found->second.get();
  }
  // An incoming connection that belongs to no group.
  std::shared_ptr<Connection> TakeArrived(const Connection& connection);
  std::unique_ptr<Group> TakeForming(const Group* group);
  Status TakeAnswer(Connection& connection, const ConnectionPlace& place);
  Status TakePlace(Connection& connection, const ConnectionPlace& place);
  void StartGroup(const MemberId& who, const Group::Target& target);
  bool TryAgain(const MemberId& who, Group::Target target);
  void ConnectFurther(Group& group);
  void BringUp(const Group& forming);

  // The data thread outlives this transport: what was posted to it and has not run by the end is
  // not run any more. The data thread's own.
  struct Gate {
    bool closed = false;
  };
  // A peer that is about to be connected to again.
  struct Again {
    MemberId who;
    Group::Target target;
    std::unique_ptr<asio::steady_timer> timer;
  };

  const Options options_;
  Capabilities capabilities_;
  const std::shared_ptr<NetworkThread> network_;
  asio::io_context& io_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::unique_ptr<Acceptor> acceptor_;
  std::string address_;
  Handler* handler_ = nullptr;
  HostRegionTable regions_;
  std::vector<std::byte> scratch_;
  tls::ContextPtr tls_server_;  // null: nothing is encrypted
  tls::ContextPtr tls_client_;
  std::vector<std::byte> tls_scratch_;
  std::vector<std::shared_ptr<Connection>> arrived_;  // in no group yet
  Places places_{
      {.most = PlacesForStrangers(kMaxStrangers) + options_.members * options_.connections}};
  std::unordered_map<const Connection*, Places::Ticket> strangers_;  // of arrived_, not proven
  std::vector<std::unique_ptr<Group>> forming_;
  std::list<Again> again_;
  std::unordered_map<PeerId, std::unique_ptr<Group>> peers_;  // up, or ending
  PeerId last_peer_;
  FetchId last_fetch_;
  bool stopping_ = false;
  std::size_t failures_to_tell_ = 0;
  // Strangers must not be able to fill the log.
  LogLimit refusals_{20, std::chrono::seconds(10)};
  asio::steady_timer refusals_over_{io_};  // waits while refusals are left to log
  bool refusals_to_tell_ = false;
  std::once_flag stopped_;
};

Status TcpTransport::Listen() {
  boost::system::error_code error;
  const auto ip = asio::ip::make_address(options_.listen_host, error);
  if (error) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("'{}' is not an IP address to listen on", options_.listen_host)};
  }
  const asio::ip::tcp::endpoint wanted(ip, 0);
  Acceptor::Handler accepted;
  accepted.on_connection = [this](Connection::Socket socket) { OnConnection(std::move(socket)); };
  accepted.on_exhausted = [](const std::string& why) {
    spdlog::warn("no peer can connect for now: {}", why);
  };
  acceptor_ = Acceptor::Listen(io_, wanted, std::move(accepted), error);
  if (error) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("listen on {}: {}", options_.listen_host, error.message())};
  }
  address_ = FormatAddress(acceptor_->endpoint());
  return {};
}

Status TcpTransport::Start(Handler* handler) {
  LOCKSTEP_CHECK(handler != nullptr && handler_ == nullptr, "Start is called once");
  handler_ = handler;
  const auto promise = std::make_shared<std::promise<Status>>();
  auto entered = promise->get_future();
  asio::post(io_, [this, promise] {
    Status status = options_.enter_data_thread ? options_.enter_data_thread() : Status();
    promise->set_value(status.ok() ? Listen() : std::move(status));
  });
  return entered.get();
}

void TcpTransport::Stop() {
  std::call_once(stopped_, [this] {
    LOCKSTEP_CHECK(!network_->running_in_this_thread(), "Stop on the data thread");
    const auto ended = std::make_shared<std::promise<void>>();
    auto over = ended->get_future();
    asio::post(io_, [this, ended] { EndAll(ended); });
    over.get();
  });
}

void TcpTransport::EndAll(const std::shared_ptr<std::promise<void>>& ended) {
  stopping_ = true;
  gate_->closed = true;
  refusals_over_.cancel();
  TellRefusals(kNever);
  acceptor_ = nullptr;
  const Error reason{ErrorCode::kClosed, "the transport was stopped"};
  while (!arrived_.empty()) std::shared_ptr(arrived_.back())->End(reason);
  for (const Again& again : std::exchange(again_, {})) FailConnect(again.who, reason);
  while (!forming_.empty()) forming_.back()->main().End(reason);
  while (!peers_.empty()) peers_.begin()->second->main().End(reason);
  if (failures_to_tell_ > 0) {
    asio::post(io_, [this, ended] { EndAll(ended); });
    return;
  }
  // The handlers of what was closed, and of a connection that has ended by itself, are queued and
  // do nothing; they run before this one.
  asio::post(io_, [ended] { ended->set_value(); });
}

void TcpTransport::PostAt(Time when, std::function<void()> task) {
  CheckThread();
  auto timer = std::make_unique<asio::steady_timer>(
      io_, std::chrono::steady_clock::time_point(when.time_since_epoch()));
  asio::steady_timer& waiting = *timer;
  waiting.async_wait([timer = std::move(timer), gate = gate_,
                      task = std::move(task)](boost::system::error_code error) {
    if (!error && !gate->closed) task();
  });
}

void TcpTransport::OnConnection(Connection::Socket socket) {
  const Places::Taken place = places_.Take(MonotonicNow(), AddressKey(socket));
  const auto loser =
      std::ranges::find_if(arrived_, [&](const std::shared_ptr<Connection>& connection) {
        const auto stranger = strangers_.find(connection.get());
        return place.ended && stranger != strangers_.end() && stranger->second == *place.ended;
      });
  if (loser != arrived_.end()) {
    std::shared_ptr(*loser)->End(
        Error{ErrorCode::kUnavailable, "too many connections without a greeting"});
  }
  const ConnectionPlace first{.connections = static_cast<std::uint32_t>(options_.connections)};
  arrived_.push_back(std::make_shared<Connection>(*this, std::move(socket), std::nullopt, first));
  strangers_.emplace(arrived_.back().get(), place.ticket);
  std::shared_ptr(arrived_.back())->StartAccepted();
}

void TcpTransport::Connect(const MemberId& who, const std::string& address) {
  CheckThread();
  const auto endpoint = ParseAddress(address);
  if (stopping_ || !endpoint) {
    const Error error =
        stopping_ ? Error{ErrorCode::kClosed, "the transport was stopped"}
                  : Error{ErrorCode::kInvalid, fmt::format("'{}' is not IP:port", address)};
    ++failures_to_tell_;
    asio::post(io_, [this, who, error] {
      --failures_to_tell_;
      FailConnect(who, error);
    });
    return;
  }
  StartGroup(who, {.endpoint = *endpoint,
                   .address = address,
                   .until = MonotonicNow() + options_.connect_timeout});
}

void TcpTransport::StartGroup(const MemberId& who, const Group::Target& target) {
  Group& group = *forming_.emplace_back(std::make_unique<Group>(who, options_.connections, target));
  const ConnectionPlace place{.connections = static_cast<std::uint32_t>(options_.connections)};
  auto connection = std::make_shared<Connection>(*this, Connection::Socket(io_), who, place);
  group.Add(connection);
  connection->StartConnecting(target.endpoint);
}

// The other end may have closed it to make room for another one, before it has read our identity.
// Where strangers crowd in, a peer loses its place like anybody (Places).
bool TcpTransport::TryAgain(const MemberId& who, Group::Target target) {
  const Duration delay = kShortestDelay * (1 << std::min(target.tries++, kMostDoublings));
  if (stopping_ || MonotonicNow() + delay >= target.until) return false;
  const auto again = again_.insert(again_.end(), {who, std::move(target), {}});
  again->timer = std::make_unique<asio::steady_timer>(io_, delay);
  again->timer->async_wait([this, again](boost::system::error_code error) {
    if (error || stopping_) return;
    const Again due = std::move(*again);
    again_.erase(again);
    StartGroup(due.who, due.target);
  });
  return true;
}

void TcpTransport::ConnectFurther(Group& group) {
  ConnectionPlace place = group.main().place();
  while (++place.number < place.connections) {
    auto connection =
        std::make_shared<Connection>(*this, Connection::Socket(io_), group.who(), place);
    group.Add(connection);
    connection->StartConnecting(group.target()->endpoint);
  }
}

void TcpTransport::FailConnect(const MemberId& who, const Error& error) {
  handler_->OnConnectFailed(
      who, Error{error.code, fmt::format("connect to {}: {}", Describe(who), error.message)});
}

std::shared_ptr<Connection> TcpTransport::TakeArrived(const Connection& connection) {
  const auto found = std::ranges::find(arrived_, &connection, &std::shared_ptr<Connection>::get);
  LOCKSTEP_CHECK(found != arrived_.end());
  std::shared_ptr<Connection> taken = *found;
  arrived_.erase(found);
  if (const auto stranger = strangers_.extract(&connection)) places_.GiveBack(stranger.mapped());
  return taken;
}

std::unique_ptr<Group> TcpTransport::TakeForming(const Group* group) {
  const auto found = std::ranges::find(forming_, group, &std::unique_ptr<Group>::get);
  if (found == forming_.end()) return nullptr;
  std::unique_ptr<Group> taken = std::move(*found);
  forming_.erase(found);
  return taken;
}

Status TcpTransport::OnProven(Connection& connection) {
  if (options_.connections == 1) {
    if (!connection.whom()) {
      forming_.push_back(std::make_unique<Group>(connection.identity(), 1, std::nullopt));
      forming_.back()->Add(TakeArrived(connection));
    }
    BringUp(*connection.group());
    return {};
  }
  if (connection.whom()) return {};
  if (const auto place = strangers_.extract(&connection)) places_.GiveBack(place.mapped());
  const MemberId& who = connection.identity();
  std::size_t unfinished = 0;
  for (const auto& one : arrived_) unfinished += one->proven() && one->identity() == who ? 1 : 0;
  for (const auto& group : forming_) {
    unfinished += !group->target() && group->who() == who ? group->settled() : 0;
  }
  if (unfinished <= kGroupsForming * options_.connections) return {};
  return Error{ErrorCode::kRefused, fmt::format("{} has {} connections that are not all there",
                                                Describe(who), unfinished)};
}

// Handles the other end's message about which connection this is. Both kinds are proven to be the
// member's, and with any message it gets no more than one group of connections for each main one.
Status TcpTransport::OnPlace(Connection& connection, const ConnectionPlace& place) {
  return connection.whom() ? TakeAnswer(connection, place) : TakePlace(connection, place);
}

Status TcpTransport::TakeAnswer(Connection& connection, const ConnectionPlace& place) {
  Group& group = *connection.group();
  const ConnectionPlace& own = connection.place();
  // The acceptor draws the group when the main connection comes.
  const bool fits = own.number == 0 ? place.number == 0 : place == own;
  if (!fits) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("the answer to connection {} is for another one", own.number)};
  }
  connection.Settle(place);
  if (place.number == 0) ConnectFurther(group);
  if (group.complete()) BringUp(group);
  return {};
}

Status TcpTransport::TakePlace(Connection& connection, const ConnectionPlace& place) {
  const MemberId& who = connection.identity();
  if (place.number == 0) {
    if (place.group != GroupId{}) {
      return Error{ErrorCode::kRefused, "a main connection that says its group"};
    }
    auto group = std::make_unique<Group>(who, options_.connections, std::nullopt);
    LOCKSTEP_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(group->id.data()),
                              static_cast<int>(group->id.size())) == 1,
                   "no random bytes to be had");
    connection.Settle({place.connections, 0, group->id});
    group->Add(TakeArrived(connection));
    forming_.push_back(std::move(group));
    return {};
  }
  const auto found = std::ranges::find_if(forming_, [&](const auto& group) {
    return !group->target() && group->id == place.group && group->who() == who;
  });
  if (found == forming_.end()) {
    return Error{ErrorCode::kRefused, fmt::format("connection {} belongs to no main one of {}",
                                                  place.number, Describe(who))};
  }
  if ((*found)->Has(place.number)) {
    return Error{ErrorCode::kRefused,
                 fmt::format("connection {} of {} is there already", place.number, Describe(who))};
  }
  connection.Settle(place);
  (*found)->Add(TakeArrived(connection));
  return {};
}

Status TcpTransport::OnBegin(Connection& connection) {
  Group& group = *connection.group();
  if (!group.complete()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("it begins with {} of {} connections", group.settled(), group.size())};
  }
  BringUp(group);
  return {};
}

void TcpTransport::BringUp(const Group& forming) {
  last_peer_ = last_peer_.Next();
  const PeerId peer = last_peer_;
  Group& group = *peers_.emplace(peer, TakeForming(&forming)).first->second;
  group.Begin(peer);
  handler_->OnPeerUp(peer, group.who(), group.path());
}

void TcpTransport::OnGreetingFailed(Connection& connection, const Error& error) {
  if (connection.group() == nullptr) {
    const auto keep = TakeArrived(connection);
    LogRefusal(error);
    return;
  }
  const std::unique_ptr<Group> group = TakeForming(connection.group());
  if (!group) return;  // another connection of it has ended before
  const Error why = OfGroup(*group, connection, error);
  const bool unread = error.code == ErrorCode::kClosed && group->settled() == 0;
  group->End(error);
  if (!group->target()) {
    LogRefusal(why);
    return;
  }
  if (unread && TryAgain(group->who(), *group->target())) return;
  FailConnect(group->who(),
              Error{why.code, fmt::format("{}: {}", group->target()->address, why.message)});
}

void TcpTransport::LogRefusal(const Error& error) {
  if (stopping_) return;
  if (refusals_.Allow(MonotonicNow())) {
    spdlog::warn("tcp: a connection to {} came to nothing: {}", address_, error.message);
  } else if (!std::exchange(refusals_to_tell_, true)) {
    refusals_over_.expires_after(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(refusals_.window()));
    refusals_over_.async_wait([this](const boost::system::error_code& cancelled) {
      refusals_to_tell_ = false;
      if (!cancelled) TellRefusals(MonotonicNow());
    });
  }
}

void TcpTransport::TellRefusals(Time now) {
  if (const std::uint64_t count = refusals_.TakeLeftOut(now); count > 0) {
    spdlog::warn("tcp: {} more connections to {} came to nothing", count, address_);
  }
}

void TcpTransport::OnDown(Connection& connection, const Error& reason) {
  Group& group = *connection.group();
  if (std::exchange(group.ending, true)) return;
  const PeerId peer = connection.peer();
  const Error why = OfGroup(group, connection, reason);
  group.End(reason);
  peers_.erase(peer);
  handler_->OnPeerDown(peer, why);
}

std::optional<Time> TcpTransport::LastHeard(PeerId peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  return found->second->last_heard();
}

void TcpTransport::Close(PeerId peer, std::string reason) {
  CheckThread();
  if (Group* const group = Find(peer)) group->CloseLater(reason);
}

bool TcpTransport::Send(PeerId peer, std::span<const std::byte> bytes) {
  CheckThread();
  LOCKSTEP_CHECK(bytes.size() <= kMaxMessageBytes, "a message of {} bytes", bytes.size());
  const Group* const group = Find(peer);
  return group != nullptr && group->up() && group->main().Send(bytes);
}

Result<FetchId> TcpTransport::Fetch(PeerId peer, const PieceName& name, const Slice& destination) {
  CheckThread();
  LOCKSTEP_CHECK(name.bytes == destination.bytes && name.bytes <= kMaxPieceBytes,
                 "a fetch of {} bytes into {}", name.bytes, destination.bytes);
  Group* const group = Find(peer);
  if (group == nullptr || !group->up()) return Error{ErrorCode::kClosed, "the peer is down"};
  const FetchId id = last_fetch_.Next();
  if (!group->Fetch(id, name, regions_.Resolve(destination), options_.fetch_window)) {
    return Error{ErrorCode::kUnavailable, "the window to the peer is full"};
  }
  last_fetch_ = id;
  return id;
}

void TcpTransport::GiveUp(FetchId fetch) {
  CheckThread();
  for (const auto& [peer, group] : peers_) {
    if (group->GiveUp(fetch)) return;
  }
}

void TcpTransport::Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) {
  CheckThread();
  if (Group* const group = Find(peer)) group->Provide(cookie, regions_.Resolve(slice));
}

}  // namespace
}  // namespace lockstep::transport::tcp

namespace lockstep::transport {

Result<std::unique_ptr<Transport>> MakeTcpTransport(Options options) {
  if (options.job_key.empty()) {
    return Error{ErrorCode::kInvalid, "a transport needs a job key"};
  }
  if (options.fetch_window < 1 || options.fetch_window > tcp::kMaxWindow) {
    return Error{ErrorCode::kInvalid, fmt::format("a fetch window of {} (1 to {} can be had)",
                                                  options.fetch_window, tcp::kMaxWindow)};
  }
  if (options.connections < 1 || options.connections > tcp::kMaxConnections) {
    return Error{ErrorCode::kInvalid, fmt::format("{} connections to a peer (1 to {} can be had)",
                                                  options.connections, tcp::kMaxConnections)};
  }
  if (options.send_queue_bytes < tcp::kHeaderBytes + tcp::kMaxMessageBytes) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a send queue of {} bytes is shorter than one message",
                             options.send_queue_bytes)};
  }
  return std::unique_ptr<Transport>(std::make_unique<tcp::TcpTransport>(std::move(options)));
}

}  // namespace lockstep::transport
