// A TCP transport and peers by hand that need not keep to the protocol, over real sockets, plain or
// in TLS.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/handshake.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/tls/psk.h"

namespace lockstep::transport::tcp {

inline constexpr MemberId kServer{WorkerId(1), Incarnation(1)};
inline constexpr MemberId kHostile{WorkerId(2), Incarnation(1)};
inline constexpr MemberId kAnother{WorkerId(3), Incarnation(1)};
inline constexpr std::size_t kWindow = 4;

inline std::vector<std::byte> JobKey() { return std::vector<std::byte>(32, std::byte{9}); }

// A peer by hand: blocking sockets, any bytes.
class RawPeer {
 public:
  // `from`: an address of this host.
  explicit RawPeer(const std::string& address, const char* from = "127.0.0.1") {
    const std::size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, from, &own.sin_addr);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const int at_once = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    BePatient();
  }
  // Of a connection that came in.
  explicit RawPeer(int socket) : socket_(socket) { BePatient(); }
  virtual ~RawPeer() { ::close(socket_); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  virtual void Write(std::span<const std::byte> bytes) {
    (void)!::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void WriteFrame(FrameType type, std::uint64_t id, std::span<const std::byte> body) {
    Write(EncodeHeader({type, static_cast<std::uint32_t>(body.size()), id}));
    Write(body);
  }
  // The body of the next frame; nothing at the end of the connection.
  std::optional<std::vector<std::byte>> ReadFrame() {
    std::array<std::byte, kHeaderBytes> bytes{};
    if (!ReadAll(bytes)) return std::nullopt;
    const auto header = DecodeHeader(bytes);
    EXPECT_TRUE(header.ok());
    std::vector<std::byte> body(header->bytes);
    if (!ReadAll(body)) return std::nullopt;
    header_ = *header;
    return body;
  }
  // Of the frame that was read last.
  const FrameHeader& header() const { return header_; }
  // True when the other end closes before the time-out; what it sends until then is thrown away.
  bool AwaitEnd() {
    std::vector<std::byte> away(65536);
    for (;;) {
      const ssize_t got = ::recv(socket_, away.data(), away.size(), 0);
      if (got == 0) return true;
      if (got < 0 && errno != EINTR) return errno == ECONNRESET;
    }
  }
  // The handshake alone.
  void Prove(const MemberId& self = kHostile) {
    Handshake handshake(Handshake::Role::kConnector, self, JobKey(), kServer);
    WriteFrame(FrameType::kHandshake, 0, handshake.Begin());
    Shake(handshake);
  }
  void Shake(Handshake& handshake) {
    while (!handshake.done()) {
      const auto message = ReadFrame();
      ASSERT_TRUE(message.has_value());
      const auto answer = handshake.Consume(*message);
      ASSERT_TRUE(answer.ok()) << answer.error().message;
      if (!answer->empty()) WriteFrame(FrameType::kHandshake, 0, *answer);
    }
  }
  void Greet() {
    Prove();
    ASSERT_TRUE(ReadFrame().has_value());  // its settings
  }
  void GreetAndSettle() {
    Greet();
    WriteFrame(FrameType::kSettings, kWindow, {});
  }
  // Of several connections.
  void WritePlace(const ConnectionPlace& place) {
    WriteFrame(FrameType::kSettings, kWindow, EncodeConnectionPlace(place));
  }
  // What the other end says of it; nothing where it ends.
  std::optional<ConnectionPlace> ReadPlace() {
    const auto body = ReadFrame();
    if (!body || header_.type != FrameType::kSettings) return std::nullopt;
    const auto place = DecodeConnectionPlace(*body);
    EXPECT_TRUE(place.ok());
    return place.ok() ? std::optional(*place) : std::nullopt;
  }
  // Why the other end refuses this connection; nothing where it says something else.
  std::string ReadRefusal() {
    const auto body = ReadFrame();
    const auto refusal = body ? Handshake::ReadRefusal(*body) : std::nullopt;
    return refusal && header_.type == FrameType::kHandshake ? refusal->message : "";
  }

 protected:
  virtual bool ReadAll(std::span<std::byte> bytes) {
    // A read of nothing would wait for something. One with a time-out also ends when the process
    // was stopped and goes on.
    while (!bytes.empty()) {
      const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  int socket_ = -1;

 private:
  void BePatient() const {
    const timeval patience{30, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  FrameHeader header_;
};

// The same in TLS.
class TlsPeer : public RawPeer {
 public:
  explicit TlsPeer(const std::string& address, const char* from = "127.0.0.1")
      : RawPeer(address, from),
        context_(tls::MakeContext(
            tls::Role::kClient,
            tls::DeriveKey(JobKey(), "lockstep job key v1", "data plane TLS 1.3 pre-shared key"))),
        ssl_(SSL_new(context_.get())) {
    ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes with signals
    SSL_set_fd(ssl_.get(), socket_);
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
  }

  SSL* ssl() { return ssl_.get(); }
  void Write(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) (void)SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }
  // As they are.
  void WriteBelow(std::span<const std::byte> bytes) { RawPeer::Write(bytes); }
  void CutWriting() { ::shutdown(socket_, SHUT_WR); }

 protected:
  bool ReadAll(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const int got = SSL_read(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (got <= 0 && SSL_want_read(ssl_.get()) && errno == EINTR) continue;
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

 private:
  tls::ContextPtr context_;
  tls::SslPtr ssl_;
};

class HostileFixture : public ::testing::Test, public Handler {
 protected:
  explicit HostileFixture(bool encryption, std::size_t connections = 1, std::size_t members = 0) {
    options_.encryption = encryption;
    options_.connections = connections;
    options_.members = members;
  }
  // A peer that speaks as the transport does.
  std::unique_ptr<RawPeer> MakePeer(const char* from = "127.0.0.1") {
    if (options_.encryption) return std::make_unique<TlsPeer>(transport_->address(), from);
    return std::make_unique<RawPeer>(transport_->address(), from);
  }
  using Connections = std::vector<std::unique_ptr<RawPeer>>;
  // Connected and settled, the main one first, and not begun.
  Connections MakeConnections(const MemberId& who = kHostile) {
    Connections all;
    ConnectionPlace place{.connections = static_cast<std::uint32_t>(options_.connections)};
    for (; place.number < place.connections; ++place.number) {
      all.push_back(MakePeer());
      all.back()->Prove(who);
      all.back()->WritePlace(place);
      const auto answer = all.back()->ReadPlace();
      EXPECT_TRUE(answer.has_value());
      if (answer && place.number == 0) place.group = answer->group;
    }
    return all;
  }
  // Those of a member that keeps to the protocol.
  Connections MakeGood(const MemberId& who = kHostile) {
    if (options_.connections > 1) {
      Connections all = MakeConnections(who);
      for (const auto& one : all) one->WriteFrame(FrameType::kBegin, 0, {});
      return all;
    }
    Connections one;
    one.push_back(MakePeer());
    one.front()->GreetAndSettle();
    return one;
  }

  void SetUp() override {
    Options& options = options_;
    options.self = kServer;
    options.job_key = JobKey();
    options.fetch_window = kWindow;
    transport_ = std::move(*MakeTcpTransport(options));
    ASSERT_TRUE(transport_->Start(this).ok());
  }
  void TearDown() override {
    // Whatever came before, a peer that keeps to the protocol is served.
    {
      const Connections member = MakeGood();
      const auto& good = member.front();
      good->WriteFrame(FrameType::kMessage, 0, std::as_bytes(std::span(std::string_view("good"))));
      std::unique_lock lock(mutex_);
      EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return good_; }));
      lock.unlock();
      PieceName name;
      name.bytes = memory_.size();
      good->WriteFrame(FrameType::kFetch, 77, EncodePieceName(name));
      const auto piece = good->ReadFrame();
      EXPECT_TRUE(piece.has_value() && *piece == memory_) << "no piece, or not what was asked for";
    }
    transport_->Stop();
    EXPECT_EQ(ups_, downs_);
    EXPECT_EQ(served_, serves_);
  }
  Error AwaitDown() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return downs_ > 0; }));
    return last_reason_;
  }

  void OnPeerUp(PeerId, const MemberId&, const PathReport&) override {
    Change([&] { ++ups_; });
  }
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(PeerId, const Error& reason) override {
    Change([&] {
      ++downs_;
      last_reason_ = reason;
    });
  }
  void OnMessage(PeerId, std::span<const std::byte> bytes) override {
    Change([&] { good_ = good_ || (bytes.size() == 4 && bytes[0] == std::byte{'g'}); });
  }
  ServeAnswer OnFetch(PeerId, const PieceName& name) override {
    if (region_ == RegionId()) {
      region_ = *transport_->Register(MemoryKind::kHost, memory_.data(), memory_.size());
    }
    Change([&] { ++serves_; });
    return {.have = true, .slice = {region_, 0, name.bytes}, .cookie = serves_};
  }
  void OnServed(PeerId, std::uint64_t) override {
    Change([&] { ++served_; });
  }
  void OnFetchDone(FetchId, FetchStatus) override {}

  // What comes of a connection of another member to this address.
  static Error WhyRefused(const Options& options, const std::string& address) {
    struct Connector final : Handler {
      void OnPeerUp(PeerId, const MemberId&, const PathReport&) override {
        why.set_value({ErrorCode::kInvalid, "it is up"});
      }
      void OnConnectFailed(const MemberId&, const Error& error) override { why.set_value(error); }
      void OnPeerDown(PeerId, const Error&) override {}
      void OnMessage(PeerId, std::span<const std::byte>) override {}
      ServeAnswer OnFetch(PeerId, const PieceName&) override { return {}; }
      void OnServed(PeerId, std::uint64_t) override {}
      void OnFetchDone(FetchId, FetchStatus) override {}
      std::promise<Error> why;
    } connector;
    auto transport = std::move(*MakeTcpTransport(options));
    EXPECT_TRUE(transport->Start(&connector).ok());
    transport->Post([&] { transport->Connect(kServer, address); });
    Error why = connector.why.get_future().get();
    transport->Stop();
    return why;
  }

  template <class Function>
  void Change(Function function) {
    {
      const std::lock_guard lock(mutex_);
      function();
    }
    changed_.notify_all();
  }

  static std::vector<std::byte> Pattern() {
    std::vector<std::byte> bytes(kMaxPieceBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
    return bytes;
  }

  Options options_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> memory_ = Pattern();
  RegionId region_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ups_ = 0, downs_ = 0, serves_ = 0, served_ = 0;
  bool good_ = false;
  Error last_reason_;
};

}  // namespace lockstep::transport::tcp
