// The TCP transport with encryption, against peers without it, without the key, and with both that
// break TLS.
#include <random>

#include "tests/unit/transport/hostile_fixture.h"
#include "transport/transport.h"

namespace lockstep::transport::tcp {
namespace {

using namespace std::chrono_literals;

class TlsTest : public HostileFixture {
 protected:
  // Longer than the peers' patience: nothing here ends because its time is over.
  explicit TlsTest(Duration connect_timeout = 1h) : HostileFixture(true) {
    options_.connect_timeout = connect_timeout;
  }

  Options Member(bool encryption) const {
    Options options = options_;
    options.self = kHostile;
    options.encryption = encryption;
    return options;
  }
};

// The record header of what follows.
std::vector<std::byte> Record(std::uint8_t type, std::size_t bytes) {
  return {std::byte{type}, std::byte{3}, std::byte{3}, static_cast<std::byte>(bytes >> 8),
          static_cast<std::byte>(bytes)};
}

std::vector<std::byte> Random(std::mt19937& random, std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (auto& b : all) b = static_cast<std::byte>(random());
  return all;
}

// A real one.
std::vector<std::byte> ClientHello() {
  const auto context = tls::MakeContext(tls::Role::kClient, tls::Key{1});
  const tls::SslPtr ssl(SSL_new(context.get()));
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(ssl.get());
  (void)SSL_do_handshake(ssl.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  const auto all = std::as_bytes(std::span(bytes, static_cast<std::size_t>(size)));
  return {all.begin(), all.end()};
}

TEST_F(TlsTest, AMemberThatDoesNotEncryptIsToldSo) {
  const Error why = WhyRefused(Member(false), transport_->address());
  EXPECT_EQ(why.code, ErrorCode::kRefused);
  EXPECT_NE(why.message.find("refused by the other end: worker 1 (incarnation 1) encrypts "
                             "(exchange.encryption), the other end does not"),
            std::string::npos)
      << why.message;
}

TEST_F(TlsTest, AMemberThatEncryptsLearnsThatTheOtherEndDoesNot) {
  Options plain = options_;
  plain.encryption = false;
  auto server = std::move(*MakeTcpTransport(plain));
  ASSERT_TRUE(server->Start(this).ok());
  const Error why = WhyRefused(Member(true), server->address());
  server->Stop();
  EXPECT_EQ(why.code, ErrorCode::kRefused);
  EXPECT_NE(why.message.find("this end encrypts (exchange.encryption = on), the other does not"),
            std::string::npos)
      << why.message;
}

TEST_F(TlsTest, WithoutTheKeyThereIsNoConnection) {
  Options other = Member(true);
  other.job_key.back() = std::byte{1};
  const Error why = WhyRefused(other, transport_->address());
  EXPECT_EQ(why.code, ErrorCode::kRefused);
  EXPECT_NE(why.message.find("the other end does not have the same job key"), std::string::npos)
      << why.message;
}

TEST_F(TlsTest, OnlyTcpEncrypts) {
  auto made = MakeTransport("ucx", Member(true));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnavailable);
  auto plain = MakeTransport("ucx", Member(false));
  EXPECT_TRUE(plain.ok() || plain.error().message.find("encrypt") == std::string::npos);
  if (plain.ok()) {
    EXPECT_NE(made.error().message.find("exchange.encryption"), std::string::npos);
  }
}

TEST_F(TlsTest, GarbageInsteadOfAHandshakeEndsTheConnection) {
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    RawPeer peer(transport_->address());
    const std::size_t bytes = random() % 3000 + 1;
    peer.Write(Record(22, bytes));
    peer.Write(Random(random, bytes));
    peer.Write(Random(random, 16));
    EXPECT_TRUE(peer.AwaitEnd());
  }
}

TEST_F(TlsTest, AMutatedHelloEndsTheConnection) {
  std::mt19937 random(2);
  const std::vector<std::byte> good = ClientHello();
  for (int i = 0; i < 200; ++i) {
    std::vector<std::byte> bytes = good;
    for (int k = 0; k < 3; ++k) bytes[5 + random() % (bytes.size() - 5)] ^= std::byte{1};
    RawPeer peer(transport_->address());
    peer.Write(bytes);
    peer.Write(Random(random, 600));
    EXPECT_TRUE(peer.AwaitEnd());
  }
}

class TlsTimeTest : public TlsTest {
 protected:
  TlsTimeTest() : TlsTest(3s) {}
};

// Whoever says no more is gone when the time for greetings is over.
TEST_F(TlsTimeTest, AHandshakeThatStopsEndsInBoundedTime) {
  const std::vector<std::byte> hello = ClientHello();
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{5}, hello.size() / 2, hello.size()}) {
    peers.push_back(std::make_unique<RawPeer>(transport_->address()));
    peers.back()->Write(std::span(hello).first(bytes));
  }
  for (const auto& peer : peers) EXPECT_TRUE(peer->AwaitEnd());
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(ups_, 0u);
}

TEST_F(TlsTest, AHandshakeHasABound) {
  RawPeer peer(transport_->address());
  const std::vector<std::byte> hello = {std::byte{1}, std::byte{1}, std::byte{0xff},
                                        std::byte{0xff}};  // of 131071 bytes
  std::vector<std::byte> body(16384);
  std::copy(hello.begin(), hello.end(), body.begin());
  peer.Write(Record(22, body.size()));
  peer.Write(body);
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_F(TlsTest, WhatWasChangedOnItsWayEndsTheConnection) {
  TlsPeer peer(transport_->address());
  peer.GreetAndSettle();
  std::mt19937 random(3);
  peer.WriteBelow(Record(23, 100));
  peer.WriteBelow(Random(random, 100));
  const Error why = AwaitDown();
  EXPECT_EQ(why.code, ErrorCode::kInvalid);
  EXPECT_EQ(why.message, "bytes from the other end were changed on the way");
  EXPECT_TRUE(peer.AwaitEnd());
}

TEST_F(TlsTest, AnEndThatIsNotAnnouncedIsTold) {
  TlsPeer peer(transport_->address());
  peer.GreetAndSettle();
  peer.CutWriting();
  EXPECT_NE(AwaitDown().message.find("was cut"), std::string::npos);
}

TEST_F(TlsTest, AnEndThatIsAnnouncedIsTold) {
  TlsPeer peer(transport_->address());
  peer.GreetAndSettle();
  (void)SSL_shutdown(peer.ssl());
  EXPECT_EQ(AwaitDown().message, "the other end closed the connection");
}

TEST_F(TlsTest, NewKeysOnDemandAreHad) {
  TlsPeer peer(transport_->address());
  peer.GreetAndSettle();
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    PieceName name;
    name.bytes = 100000;
    peer.WriteFrame(FrameType::kFetch, i, EncodePieceName(name));
    const auto piece = peer.ReadFrame();
    ASSERT_TRUE(piece.has_value());
    EXPECT_EQ(piece->size(), name.bytes);
  }
}

TEST_F(TlsTest, AFloodOfNewKeysEndsTheConnection) {
  TlsPeer peer(transport_->address());
  peer.GreetAndSettle();
  for (int i = 0; i < 10000; ++i) {
    if (SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_REQUESTED) != 1 ||
        SSL_do_handshake(peer.ssl()) != 1) {
      break;
    }
  }
  EXPECT_NE(AwaitDown().message.find("changes its keys"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::transport::tcp
