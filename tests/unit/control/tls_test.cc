#include <gmock/gmock.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ssl.hpp>
#include <thread>

#include "tests/unit/control/control_fixture.h"
#include "transport/control/stream.h"

namespace lockstep::transport::control {
namespace {

namespace ssl = boost::asio::ssl;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TlsTest : public ControlTest {
 protected:
  void ListenWith(std::optional<Secret> secret) {
    ControlServer::Options options;
    options.secret = std::move(secret);
    Listen(std::move(options));
  }

  Result<std::unique_ptr<CoordinatorChannel>> ConnectWith(std::optional<Secret> secret) {
    ControlClient::Options options;
    options.coordinator = server_->address();
    options.secret = std::move(secret);
    return TryConnect(std::move(options));
  }

  void ExpectRejected(const std::string& what) {
    ASSERT_TRUE(RunUntil(io_, [&] { return !rejected_.empty(); }));
    EXPECT_THAT(rejected_[0].message, HasSubstr(what));
    EXPECT_EQ(rejected_[0].code, ErrorCode::kRefused);
    EXPECT_TRUE(workers_.empty());
  }
};

TEST_F(TlsTest, AWrongSecretIsNamedAtBothEnds) {
  ListenWith(SecretOf('a'));
  const auto connected = ConnectWith(SecretOf('b'));
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.error().code, ErrorCode::kRefused);
  EXPECT_THAT(connected.error().message, HasSubstr(": wrong secret: "));
  EXPECT_THAT(connected.error().message, StartsWith(ToString(server_->address())));
  ExpectRejected("wrong secret: ");
}

TEST_F(TlsTest, AWorkerWithoutTheSecretIsTold) {
  ListenWith(SecretOf('a'));
  auto connected = ConnectWith(std::nullopt);
  ASSERT_TRUE(connected.ok());
  WorkerEnd end;
  end.channel = *std::move(connected);
  end.Start();
  end.channel->Send(msg::Hello{});
  ASSERT_TRUE(RunUntil(io_, [&] { return end.closed.has_value(); }));
  ASSERT_EQ(end.received.size(), 1u);
  EXPECT_EQ(end.received[0],
            msg::ToWorker(msg::Refuse{"the coordinator has a --secret-file, the worker has none"}));
  ExpectRejected("the worker has none");
}

TEST_F(TlsTest, ACoordinatorWithoutTheSecretIsNamed) {
  ListenWith(std::nullopt);
  const auto connected = ConnectWith(SecretOf('a'));
  ASSERT_FALSE(connected.ok());
  EXPECT_THAT(connected.error().message, HasSubstr("the other end has no secret"));
  EXPECT_EQ(connected.error().code, ErrorCode::kRefused);
  ExpectRejected("the coordinator has none");
}

TEST_F(TlsTest, AClientThatKnowsNoKeyIsRefused) {
  ListenWith(SecretOf('a'));
  ssl::context context(ssl::context::tlsv13_client);
  ssl::stream<boost::asio::ip::tcp::socket> stream(RawConnection(), context);
  boost::system::error_code failure;
  bool ended = false;
  stream.async_handshake(ssl::stream_base::client, [&](boost::system::error_code got) {
    failure = got;
    ended = true;
  });
  ASSERT_TRUE(RunUntil(io_, [&] { return ended; }));
  EXPECT_TRUE(failure);
  ASSERT_TRUE(RunUntil(io_, [&] { return !rejected_.empty(); }));
  EXPECT_TRUE(workers_.empty());
}

// A server with a certificate of its own making, which ignores the key that the client offers.
class Impostor {
 public:
  explicit Impostor(boost::asio::io_context& io)
      : context_(ssl::context::tlsv13_server),
        acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}),
        stream_(io, context_) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context_.native_handle(), certificate);
    SSL_CTX_use_PrivateKey(context_.native_handle(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
    acceptor_.async_accept(stream_.lowest_layer(), [this](boost::system::error_code failure) {
      if (failure) return;
      stream_.async_handshake(ssl::stream_base::server,
                              [this](boost::system::error_code got) { failure_ = got; });
    });
  }

  HostPort address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }

 private:
  ssl::context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  ssl::stream<boost::asio::ip::tcp::socket> stream_;
  boost::system::error_code failure_;
};

TEST_F(TlsTest, ACertificateInPlaceOfTheKeyIsNotBelieved) {
  Impostor impostor(io_);
  ControlClient::Options options;
  options.coordinator = impostor.address();
  options.secret = SecretOf('a');
  const auto connected = TryConnect(options);
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.error().code, ErrorCode::kRefused);
}

// Of one end: how often the other one has changed its keys.
std::shared_ptr<TlsContext> CountKeyUpdates(TlsRole role, int* count) {
  auto tls = std::make_shared<TlsContext>(role, SecretOf('a'));
  SSL_CTX* context = tls->context().native_handle();
  SSL_CTX_set_msg_callback(context, [](int written, int /*version*/, int type, const void* bytes,
                                       std::size_t size, SSL* /*ssl*/, void* counted) {
    const auto* message = static_cast<const unsigned char*>(bytes);
    if (written == 0 && type == SSL3_RT_HANDSHAKE && size > 0 && message[0] == SSL3_MT_KEY_UPDATE) {
      ++*static_cast<int*>(counted);
    }
  });
  SSL_CTX_set_msg_callback_arg(context, count);
  return tls;
}

// Both ends write at once, so that keys change while the other direction is under way.
TEST(ControlStream, ChangesItsKeys) {
  namespace asio = boost::asio;
  using asio::ip::tcp;
  constexpr std::size_t kChunk = 40000;
  constexpr std::size_t kChunks = 60;
  constexpr std::uint64_t kRecordsPerKey = 50;
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  tcp::socket connecting(io);
  connecting.connect(acceptor.local_endpoint());
  Stream client(std::move(connecting), kRecordsPerKey);
  Stream server(acceptor.accept(), kRecordsPerKey);
  std::array<int, 2> changed{};
  std::array<std::size_t, 2> wrong{};
  std::array<std::size_t, 2> came{};
  const auto write = [&](Stream& stream) -> asio::awaitable<void> {
    const std::string chunk(kChunk, 'x');
    const std::vector<asio::const_buffer> buffers = {asio::buffer(chunk)};
    for (std::size_t i = 0; i < kChunks; ++i) {
      Stream::Failure failure;
      co_await stream.Write(buffers, failure);
      EXPECT_FALSE(failure) << failure.message();
    }
  };
  const auto run = [&](Stream& stream, TlsRole role, std::size_t end) -> asio::awaitable<void> {
    const Status secured = co_await stream.Secure(CountKeyUpdates(role, &changed[end]), role);
    EXPECT_TRUE(secured.ok());
    asio::co_spawn(io, write(stream), asio::detached);
    std::string buffer(30000, '\0');
    Stream::Failure failure;
    while (came[end] < kChunk * kChunks && !failure) {
      const std::size_t got = co_await stream.ReadSome(asio::buffer(buffer), failure);
      came[end] += got;
      wrong[end] +=
          got - static_cast<std::size_t>(std::count(
                    buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(got), 'x'));
    }
    EXPECT_FALSE(failure) << failure.message();
  };
  asio::co_spawn(io, run(client, TlsRole::kClient, 0), asio::detached);
  asio::co_spawn(io, run(server, TlsRole::kServer, 1), asio::detached);
  io.run_for(std::chrono::seconds(60));
  EXPECT_EQ(came, (std::array<std::size_t, 2>{kChunk * kChunks, kChunk * kChunks}));
  EXPECT_EQ(wrong, (std::array<std::size_t, 2>{}));
  EXPECT_GE(changed[0], 3);
  EXPECT_GE(changed[1], 3);
}

TEST_F(TlsTest, NothingIsReadableOnTheWire) {
  // A relay between the two that keeps what it sees.
  ListenWith(SecretOf('a'));
  boost::asio::io_context relay_io;
  boost::asio::ip::tcp::acceptor acceptor(relay_io, {boost::asio::ip::address_v4::loopback(), 0});
  std::string seen;
  const HostPort to = server_->address();
  std::thread relay([&] {
    boost::asio::ip::tcp::socket in = acceptor.accept();
    boost::asio::ip::tcp::socket out(relay_io);
    out.connect({boost::asio::ip::make_address(to.host), to.port});
    std::thread back([&] {
      char buffer[4096];
      boost::system::error_code failure;
      while (const std::size_t got = out.read_some(boost::asio::buffer(buffer), failure)) {
        boost::asio::write(in, boost::asio::buffer(buffer, got), failure);
      }
      in.shutdown(boost::asio::ip::tcp::socket::shutdown_both, failure);
    });
    char buffer[4096];
    boost::system::error_code failure;
    while (const std::size_t got = in.read_some(boost::asio::buffer(buffer), failure)) {
      seen.append(buffer, got);
      boost::asio::write(out, boost::asio::buffer(buffer, got), failure);
    }
    out.shutdown(boost::asio::ip::tcp::socket::shutdown_both, failure);
    back.join();
  });
  ControlClient::Options options;
  options.coordinator = {"127.0.0.1", acceptor.local_endpoint().port()};
  options.secret = SecretOf('a');
  auto worker = Connect(options);
  ASSERT_TRUE(worker);
  worker->channel->Send(msg::Leave{"a reason in plain words"});
  ASSERT_TRUE(
      RunUntil(io_, [&] { return workers_.size() == 1 && coordinator().received.size() == 1; }));
  worker->channel->Close();
  ASSERT_TRUE(RunUntil(io_, [&] { return worker->closed && coordinator().closed; }));
  relay.join();
  EXPECT_GT(seen.size(), 100u);
  EXPECT_EQ(seen.find("plain words"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::transport::control
