#include <gmock/gmock.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <boost/asio/ssl.hpp>
#include <thread>

#include "tests/unit/control/control_fixture.h"

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
