// The TCP transport against peers that do not keep to the protocol, over real sockets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <random>
#include <string>

#include "transport/handshake.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep::transport::tcp {
namespace {

constexpr PeerIdentity kServer{WorkerId(1), Incarnation(1)};
constexpr PeerIdentity kHostile{WorkerId(2), Incarnation(1)};
constexpr std::size_t kWindow = 4;

std::vector<std::byte> Key() { return std::vector<std::byte>(32, std::byte{9}); }

// A peer by hand: blocking sockets, any bytes.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const int at_once = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    const timeval patience{30, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~RawPeer() { ::close(socket_); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void Write(std::span<const std::byte> bytes) {
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
    return body;
  }
  // True when the other end closes before the time-out; what it sends until then is thrown away.
  bool AwaitEnd() {
    std::vector<std::byte> away(65536);
    for (;;) {
      const ssize_t got = ::recv(socket_, away.data(), away.size(), 0);
      if (got == 0) return true;
      if (got < 0) return errno == ECONNRESET;
    }
  }
  void Greet() {
    Handshake handshake(Handshake::Role::kConnector, kHostile, Key(), kServer);
    WriteFrame(FrameType::kHandshake, 0, handshake.Begin());
    while (!handshake.done()) {
      const auto message = ReadFrame();
      ASSERT_TRUE(message.has_value());
      const auto answer = handshake.Consume(*message);
      ASSERT_TRUE(answer.ok()) << answer.error().message;
      if (!answer->empty()) WriteFrame(FrameType::kHandshake, 0, *answer);
    }
    ASSERT_TRUE(ReadFrame().has_value());  // its settings
  }
  void GreetAndSettle() {
    Greet();
    WriteFrame(FrameType::kSettings, kWindow, {});
  }

 private:
  bool ReadAll(std::span<std::byte> bytes) {
    // A read of nothing would wait for something.
    return bytes.empty() || ::recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL) ==
                                static_cast<ssize_t>(bytes.size());
  }
  int socket_ = -1;
};

class HostileTest : public ::testing::Test, public Handler {
 protected:
  void SetUp() override {
    Options options;
    options.self = kServer;
    options.job_key = Key();
    options.fetch_window = kWindow;
    transport_ = std::move(*MakeTcpTransport(options));
    ASSERT_TRUE(transport_->Start(this).ok());
  }
  void TearDown() override {
    // Whatever came before, a peer that keeps to the protocol is served.
    {
      RawPeer good(transport_->address());
      good.GreetAndSettle();
      good.WriteFrame(FrameType::kMessage, 0, std::as_bytes(std::span(std::string_view("good"))));
      std::unique_lock lock(mutex_);
      EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return good_; }));
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

  void OnPeerUp(PeerId, const PeerIdentity&, const PathReport&) override {
    Change([&] { ++ups_; });
  }
  void OnConnectFailed(const PeerIdentity&, const Error&) override {}
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

  template <class Function>
  void Change(Function function) {
    {
      const std::lock_guard lock(mutex_);
      function();
    }
    changed_.notify_all();
  }

  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMaxPieceBytes);
  RegionId region_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ups_ = 0, downs_ = 0, serves_ = 0, served_ = 0;
  bool good_ = false;
  Error last_reason_;
};

TEST_F(HostileTest, GarbageInsteadOfAGreetingEndsTheConnection) {
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    RawPeer peer(transport_->address());
    std::vector<std::byte> garbage(random() % 3000 + 16);
    for (auto& b : garbage) b = static_cast<std::byte>(random());
    peer.Write(garbage);
    EXPECT_TRUE(peer.AwaitEnd());
  }
}

TEST_F(HostileTest, NothingIsAcceptedBeforeTheHandshakeIsOver) {
  for (const FrameType type : {FrameType::kMessage, FrameType::kSettings, FrameType::kFetch,
                               FrameType::kCancel, FrameType::kPiece, FrameType::kGone}) {
    RawPeer peer(transport_->address());
    const std::vector<std::byte> body(type == FrameType::kFetch ? kPieceNameBytes : 0);
    peer.WriteFrame(type, 1, body);
    EXPECT_TRUE(peer.AwaitEnd());
  }
  EXPECT_EQ(serves_, 0u);
}

TEST_F(HostileTest, SilentStrangersDoNotKeepMembersOut) {
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<RawPeer>(transport_->address()));
  // The oldest have been pushed out, long before any time-out.
  EXPECT_TRUE(silent.front()->AwaitEnd());
}

TEST_F(HostileTest, SettingsComeFirstAndOnce) {
  RawPeer early(transport_->address());
  early.Greet();
  early.WriteFrame(FrameType::kMessage, 0, {});
  EXPECT_TRUE(early.AwaitEnd());
  EXPECT_NE(AwaitDown().message.find("protocol error"), std::string::npos);
  RawPeer twice(transport_->address());
  twice.GreetAndSettle();
  twice.WriteFrame(FrameType::kSettings, kWindow, {});
  EXPECT_TRUE(twice.AwaitEnd());
}

TEST_F(HostileTest, MoreFetchesThanTheWindowEndTheConnection) {
  RawPeer peer(transport_->address());
  peer.GreetAndSettle();
  PieceName name;
  name.bytes = kMaxPieceBytes;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    peer.WriteFrame(FrameType::kFetch, i, EncodePieceName(name));
  }
  EXPECT_NE(AwaitDown().message.find("window"), std::string::npos);
  const std::lock_guard lock(mutex_);
  EXPECT_LT(serves_, 100u);
}

TEST_F(HostileTest, AFetchLongerThanAPieceIsNotAskedOfTheHandler) {
  RawPeer peer(transport_->address());
  peer.GreetAndSettle();
  PieceName name;
  name.bytes = kMaxPieceBytes + 1;
  peer.WriteFrame(FrameType::kFetch, 1, EncodePieceName(name));
  EXPECT_TRUE(peer.AwaitEnd());
  EXPECT_EQ(serves_, 0u);
}

TEST_F(HostileTest, AnswersToNoQuestionEndTheConnection) {
  for (const FrameType type : {FrameType::kPiece, FrameType::kGone}) {
    RawPeer peer(transport_->address());
    peer.GreetAndSettle();
    peer.WriteFrame(type, 12, {});
    EXPECT_TRUE(peer.AwaitEnd());
  }
}

TEST_F(HostileTest, ACancelOfWhatWasNotAskedForIsHarmless) {
  RawPeer peer(transport_->address());
  peer.GreetAndSettle();
  for (std::uint64_t i = 0; i < 100; ++i) peer.WriteFrame(FrameType::kCancel, i, {});
  PieceName name;
  name.bytes = 100;
  peer.WriteFrame(FrameType::kFetch, 1, EncodePieceName(name));
  const auto piece = peer.ReadFrame();
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->size(), 100u);
}

TEST_F(HostileTest, RandomFramesOfAMemberEndTheConnectionAtWorst) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    RawPeer peer(transport_->address());
    peer.GreetAndSettle();
    for (int k = 0; k < 20; ++k) {
      std::vector<std::byte> body(random() % 4 == 0 ? kPieceNameBytes : random() % 100);
      for (auto& b : body) b = static_cast<std::byte>(random() % 3 == 0 ? random() : 0);
      peer.WriteFrame(static_cast<FrameType>(random() % 9), random() % 5, body);
    }
  }
}

}  // namespace
}  // namespace lockstep::transport::tcp
