#include "transport/tcp/tcp_transport.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/version.hpp>
#include <charconv>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "transport/acceptor.h"
#include "transport/places.h"
#include "transport/tcp/connection.h"

namespace lockstep::transport::tcp {
namespace {

namespace asio = boost::asio;

// Strangers that have not proven themselves yet. A further one pushes out the oldest one of the
// address that has most of them, so that a flood of connections keeps nobody else out.
constexpr std::size_t kMaxStrangers = 128;
constexpr std::size_t kScratchBytes = 256u << 10;
constexpr Duration kRefusalLogInterval = std::chrono::seconds(1);

using Endpoint = asio::ip::tcp::endpoint;

// Addresses as transports hand them around: "127.0.0.1:4711", "[::1]:4711". Numbers only: no
// look-up can block here.
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

class TcpTransport final : public Transport, public ConnectionOwner {
 public:
  explicit TcpTransport(Options options)
      : options_(std::move(options)), io_(1), scratch_(kScratchBytes) {
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
  ~TcpTransport() override { StopThread(); }

  Status Start(Handler* handler) override;
  void Stop() override { StopThread(); }
  void Post(std::function<void()> task) override { asio::post(io_, std::move(task)); }
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
  void OnGreeted(Connection& connection) override;
  void OnGreetingFailed(Connection& connection, const Error& error) override;
  void OnDown(Connection& connection, const Error& reason) override;

  void CheckThread() {
    LOCKSTEP_CHECK(io_.get_executor().running_in_this_thread(), "not on the data thread");
  }
  Status Listen();
  void OnConnection(Connection::Socket socket);
  void LogRefusal(const Error& error);
  void FailConnect(const MemberId& who, const Error& error);
  void StopThread();
  void EndAll();
  std::shared_ptr<Connection> Find(PeerId peer) const {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Connection> TakeGreeting(const Connection& connection);

  const Options options_;
  Capabilities capabilities_;
  asio::io_context io_;
  std::unique_ptr<Acceptor> acceptor_;
  std::string address_;
  Handler* handler_ = nullptr;
  HostRegionTable regions_;
  std::vector<std::byte> scratch_;
  tls::ContextPtr tls_server_;  // null: nothing is encrypted
  tls::ContextPtr tls_client_;
  std::vector<std::byte> tls_scratch_;
  std::vector<std::shared_ptr<Connection>> greeting_;
  Places places_{{.most = kMaxStrangers}};
  std::unordered_map<const Connection*, Places::Ticket> strangers_;  // those of greeting_
  std::unordered_map<PeerId, std::shared_ptr<Connection>> peers_;
  std::unordered_map<Connection*, std::string> addresses_;  // of those we connect to
  PeerId last_peer_;
  FetchId last_fetch_;
  bool stopping_ = false;
  std::size_t failures_to_tell_ = 0;
  Time last_refusal_log_;
  std::thread thread_;
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
  LOCKSTEP_CHECK(handler != nullptr && !thread_.joinable(), "Start is called once");
  if (Status listening = Listen(); !listening) return listening;
  handler_ = handler;
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "lockstep-tcp");
    const auto work = asio::make_work_guard(io_);
    io_.run();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {};
}

void TcpTransport::StopThread() {
  std::call_once(stopped_, [this] {
    if (!thread_.joinable()) return;
    LOCKSTEP_CHECK(thread_.get_id() != std::this_thread::get_id(), "Stop on the data thread");
    asio::post(io_, [this] { EndAll(); });
    thread_.join();
  });
}

void TcpTransport::EndAll() {
  stopping_ = true;
  acceptor_ = nullptr;
  const Error reason{ErrorCode::kClosed, "the transport was stopped"};
  while (!greeting_.empty()) greeting_.back()->End(reason);
  while (!peers_.empty()) std::shared_ptr(peers_.begin()->second)->End(reason);
  if (failures_to_tell_ > 0) {
    asio::post(io_, [this] { EndAll(); });
    return;
  }
  io_.stop();
}

void TcpTransport::PostAt(Time when, std::function<void()> task) {
  CheckThread();
  auto timer = std::make_unique<asio::steady_timer>(
      io_, std::chrono::steady_clock::time_point(when.time_since_epoch()));
  asio::steady_timer& waiting = *timer;
  waiting.async_wait(
      [timer = std::move(timer), task = std::move(task)](boost::system::error_code error) {
        if (!error) task();
      });
}

void TcpTransport::OnConnection(Connection::Socket socket) {
  const Places::Taken place = places_.Take(MonotonicNow(), AddressKey(socket));
  const auto loser =
      std::ranges::find_if(greeting_, [&](const std::shared_ptr<Connection>& connection) {
        const auto stranger = strangers_.find(connection.get());
        return place.ended && stranger != strangers_.end() && stranger->second == *place.ended;
      });
  if (loser != greeting_.end()) {
    std::shared_ptr(*loser)->End(
        Error{ErrorCode::kUnavailable, "too many connections without a greeting"});
  }
  greeting_.push_back(std::make_shared<Connection>(*this, std::move(socket), std::nullopt));
  strangers_.emplace(greeting_.back().get(), place.ticket);
  std::shared_ptr(greeting_.back())->StartAccepted();
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
  auto connection = std::make_shared<Connection>(*this, Connection::Socket(io_), who);
  addresses_.emplace(connection.get(), address);
  greeting_.push_back(connection);
  connection->StartConnecting(*endpoint);
}

void TcpTransport::FailConnect(const MemberId& who, const Error& error) {
  handler_->OnConnectFailed(
      who, Error{error.code, fmt::format("connect to {}: {}", Describe(who), error.message)});
}

std::shared_ptr<Connection> TcpTransport::TakeGreeting(const Connection& connection) {
  const auto found = std::ranges::find(greeting_, &connection, &std::shared_ptr<Connection>::get);
  LOCKSTEP_CHECK(found != greeting_.end());
  std::shared_ptr<Connection> taken = *found;
  greeting_.erase(found);
  if (const auto stranger = strangers_.extract(&connection)) places_.GiveBack(stranger.mapped());
  return taken;
}

void TcpTransport::OnGreeted(Connection& connection) {
  last_peer_ = last_peer_.Next();
  connection.set_peer(last_peer_);
  addresses_.erase(&connection);
  peers_.emplace(last_peer_, TakeGreeting(connection));
  handler_->OnPeerUp(last_peer_, connection.identity(), connection.path());
}

void TcpTransport::OnGreetingFailed(Connection& connection, const Error& error) {
  const auto keep = TakeGreeting(connection);
  if (!connection.whom()) {
    LogRefusal(error);
    return;
  }
  auto address = addresses_.extract(&connection);
  FailConnect(*connection.whom(),
              Error{error.code, fmt::format("{}: {}", address.mapped(), error.message)});
}

void TcpTransport::LogRefusal(const Error& error) {
  // Strangers must not be able to fill the log.
  const Time now = MonotonicNow();
  if (stopping_ || now - last_refusal_log_ < kRefusalLogInterval) return;
  last_refusal_log_ = now;
  spdlog::warn("tcp: a connection to {} came to nothing: {}", address_, error.message);
}

void TcpTransport::OnDown(Connection& connection, const Error& reason) {
  const PeerId peer = connection.peer();
  peers_.erase(peer);
  handler_->OnPeerDown(peer, reason);
}

std::optional<Time> TcpTransport::LastHeard(PeerId peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return std::nullopt;
  return found->second->last_heard();
}

void TcpTransport::Close(PeerId peer, std::string reason) {
  CheckThread();
  if (const auto connection = Find(peer)) connection->CloseLater(std::move(reason));
}

bool TcpTransport::Send(PeerId peer, std::span<const std::byte> bytes) {
  CheckThread();
  LOCKSTEP_CHECK(bytes.size() <= kMaxMessageBytes, "a message of {} bytes", bytes.size());
  const auto connection = Find(peer);
  return connection && connection->Send(bytes);
}

Result<FetchId> TcpTransport::Fetch(PeerId peer, const PieceName& name, const Slice& destination) {
  CheckThread();
  LOCKSTEP_CHECK(name.bytes == destination.bytes && name.bytes <= kMaxPieceBytes,
                 "a fetch of {} bytes into {}", name.bytes, destination.bytes);
  const auto connection = Find(peer);
  if (!connection || !connection->up()) return Error{ErrorCode::kClosed, "the peer is down"};
  const FetchId id = last_fetch_.Next();
  if (!connection->Fetch(id, name, regions_.Resolve(destination))) {
    return Error{ErrorCode::kUnavailable, "the window to the peer is full"};
  }
  last_fetch_ = id;
  return id;
}

void TcpTransport::GiveUp(FetchId fetch) {
  CheckThread();
  for (const auto& [peer, connection] : peers_) {
    if (connection->GiveUp(fetch)) return;
  }
}

void TcpTransport::Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) {
  CheckThread();
  if (const auto connection = Find(peer)) connection->Provide(cookie, regions_.Resolve(slice));
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
  if (options.send_queue_bytes < tcp::kHeaderBytes + tcp::kMaxMessageBytes) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a send queue of {} bytes is shorter than one message",
                             options.send_queue_bytes)};
  }
  return std::unique_ptr<Transport>(std::make_unique<tcp::TcpTransport>(std::move(options)));
}

}  // namespace lockstep::transport
