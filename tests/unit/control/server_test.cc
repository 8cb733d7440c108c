#include <gmock/gmock.h>

#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "tests/unit/control/control_fixture.h"
#include "transport/control/tls.h"

namespace lockstep::transport::control {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ServerTest : public ControlTest {
 protected:
  Error ListenError(HostPort where, std::optional<Secret> secret = std::nullopt) {
    ControlServer::Options options;
    options.listen = std::move(where);
    options.secret = std::move(secret);
    const auto server = ControlServer::Listen(
        io_, std::move(options), {[](std::unique_ptr<WorkerChannel>, msg::Hello) {}, nullptr});
    return server.ok() ? Error{ErrorCode::kInvalid, ""} : server.error();
  }

  Error ConnectError(ControlClient::Options options) {
    auto result = TryConnect(std::move(options));
    EXPECT_FALSE(result.ok());
    return result.ok() ? Error{} : result.error();
  }

  // Nobody listens there, and no other process is given it: it is taken. The server can still have
  // it, whose socket reuses addresses as this one does.
  HostPort ClosedPort() {
    using boost::asio::ip::tcp;
    taken_.open(tcp::v4());
    taken_.set_option(boost::asio::socket_base::reuse_address(true));
    taken_.bind({boost::asio::ip::address_v4::loopback(), 0});
    return {"127.0.0.1", taken_.local_endpoint().port()};
  }

 private:
  boost::asio::ip::tcp::socket taken_{io_};
};

TEST_F(ServerTest, APortInUseIsNamed) {
  Listen();
  const HostPort taken = server_->address();
  EXPECT_NE(taken.port, 0);
  const Error error = ListenError(taken);
  EXPECT_EQ(error.message, ToString(taken) + ": Address already in use");
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  server_ = nullptr;
  EXPECT_EQ(ListenError(taken).message, "") << "free again";
}

TEST_F(ServerTest, BeyondLoopbackASecretIsRequired) {
  EXPECT_EQ(ListenError({"0.0.0.0", 0}).message,
            "0.0.0.0:0: beyond loopback a --secret-file is required");
  EXPECT_EQ(ListenError({"0.0.0.0", 0}, SecretOf('s')).message, "");
  EXPECT_EQ(ListenError({"127.0.0.2", 0}).message, "");
  ControlClient::Options options;
  options.coordinator = {"192.0.2.1", 7070};  // an address for examples, nobody's
  EXPECT_EQ(ConnectError(options).message,
            "192.0.2.1:7070: beyond loopback a --secret-file is required");
}

TEST_F(ServerTest, AHostThatIsNoneIsNamed) {
  EXPECT_THAT(ListenError({"no-such-host.invalid", 1}).message,
              StartsWith("no-such-host.invalid:1: "));
  EXPECT_THAT(ListenError({"192.0.2.1", 1}, SecretOf('s')).message, StartsWith("192.0.2.1:1: "));
}

TEST_F(ServerTest, NamesAndIPv6Work) {
  Listen([] {
    ControlServer::Options options;
    options.listen = {"localhost", 0};
    return options;
  }());
  ControlClient::Options options;
  options.coordinator = {"localhost", server_->address().port};
  EXPECT_TRUE(Connect(options));

  ControlServer::Options v6;
  v6.listen = {"::1", 0};
  auto server =
      ControlServer::Listen(io_, v6, {[](std::unique_ptr<WorkerChannel>, msg::Hello) {}, {}});
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.error().message;
  options.coordinator = (*server)->address();
  EXPECT_TRUE(TryConnect(options).ok());
}

TEST_F(ServerTest, TheClientTriesAgainUntilSomebodyListens) {
  const HostPort address = ClosedPort();
  std::optional<Result<std::unique_ptr<CoordinatorChannel>>> result;
  ControlClient::Options options;
  options.coordinator = address;
  ControlClient client(io_, options, [&](auto got) { result = std::move(got); });
  // The first attempt is refused before the server is there: that much the loop has run.
  io_.run_for(20ms);
  EXPECT_FALSE(result.has_value());
  ControlServer::Options server;
  server.listen = address;
  Listen(std::move(server));
  ASSERT_TRUE(RunUntil(io_, [&] { return result.has_value(); }));
  EXPECT_TRUE(result->ok());
}

TEST_F(ServerTest, TheClientGivesUpWithTheReason) {
  const HostPort address = ClosedPort();
  ControlClient::Options options;
  options.coordinator = address;
  options.connect_timeout = 300ms;
  const Error error = ConnectError(options);
  EXPECT_EQ(error.message, ToString(address) + ": not reached within 0.3 s: Connection refused");
  EXPECT_EQ(error.code, ErrorCode::kTimeout);
}

// A process that was stopped finds the coordinator's answer and the end of its time together.
TEST_F(ServerTest, AnAnswerThatComesWithTheEndOfTheTimeIsNoConnection) {
  Listen([] {
    ControlServer::Options options;
    options.secret = SecretOf('s');
    return options;
  }());
  boost::asio::io_context own;
  std::optional<Result<std::unique_ptr<CoordinatorChannel>>> result;
  ControlClient::Options options;
  options.coordinator = server_->address();
  options.secret = SecretOf('s');
  options.connect_timeout = 300ms;
  boost::asio::steady_timer time(io_, options.connect_timeout + 1ms);
  bool is_up = false;
  ControlClient client(own, std::move(options), [&](auto got) { result = std::move(got); });
  time.async_wait([&](boost::system::error_code) { is_up = true; });
  while (own.poll() > 0) {  // to its TLS hello
  }
  ASSERT_TRUE(RunUntil(io_, [&] { return is_up; }));
  ASSERT_TRUE(RunUntil(own, [&] { return result.has_value(); }));
  ASSERT_FALSE(result->ok());
  EXPECT_EQ(result->error().code, ErrorCode::kTimeout);
}

TEST_F(ServerTest, AClientMayTryOnce) {
  ControlClient::Options options;
  options.coordinator = ClosedPort();
  options.once = true;
  const Error error = ConnectError(options);
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_EQ(error.message, ToString(options.coordinator) + ": Connection refused");
}

TEST_F(ServerTest, ADestroyedClientCallsNobody) {
  Listen();
  const HostPort address = server_->address();
  bool called = false;
  for (int turns = 0; turns < 20; ++turns) {
    ControlClient::Options options;
    options.coordinator = address;
    options.secret = SecretOf('s');
    auto client = std::make_unique<ControlClient>(io_, options, [&](auto) { called = true; });
    io_.restart();
    for (int i = 0; i < turns && !called; ++i) io_.poll_one();
    if (called) break;
    client = nullptr;
    io_.restart();
    io_.poll();
    EXPECT_FALSE(called);
  }
}

TEST_F(ServerTest, WhoSaysNothingIsSentAway) {
  Listen([] {
    ControlServer::Options options;
    options.handshake_timeout = 200ms;
    return options;
  }());
  auto silent = RawConnection();
  auto slow = RawConnection();  // a byte of its Hello, and no more
  boost::asio::write(slow, boost::asio::buffer(std::string("\0", 1)));
  EXPECT_EQ(ReadToEnd(silent), "");
  EXPECT_EQ(ReadToEnd(slow), "");
  ASSERT_TRUE(RunUntil(io_, [&] { return rejected_.size() == 2; }));
  for (const Error& why : rejected_) EXPECT_EQ(why.message, "said no Hello within 0.2 s");
  EXPECT_TRUE(workers_.empty());
}

TEST_F(ServerTest, IdleConnectionsDoNotKeepWorkersOut) {
  Listen([] {
    ControlServer::Options options;
    options.max_pending = 4;
    options.handshake_timeout = 3600s;
    return options;
  }());
  std::vector<boost::asio::ip::tcp::socket> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(RawConnection());
  auto worker = Connect();
  ASSERT_TRUE(worker);
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 1; }));
  ASSERT_GE(rejected_.size(), 5u);
  EXPECT_EQ(rejected_[0].message, "too many connections that say no Hello");
}

// With a secret nobody waits behind strangers: they have no place for longer than others leave
// them, and none at all among those who have proven it.
TEST_F(ServerTest, AFloodDoesNotKeepOutWhoKnowsTheSecret) {
  Listen([] {
    ControlServer::Options options;
    options.secret = SecretOf('s');
    options.max_pending = 16;
    options.handshake_timeout = 3600s;
    return options;
  }());
  std::vector<boost::asio::ip::tcp::socket> flood;
  const auto more = [&](int count) {
    for (int i = 0; i < count; ++i) {
      flood.push_back(RawConnection());
      // Half of them begin a TLS handshake and leave it at that.
      if (i % 2 == 0) boost::asio::write(flood.back(), boost::asio::buffer("\x16", 1));
    }
  };
  more(400);
  for (std::size_t worker = 1; worker <= 5; ++worker) {
    ControlClient::Options options;
    options.secret = SecretOf('s');
    std::unique_ptr<WorkerEnd> joined = Connect(options);
    ASSERT_TRUE(joined);
    more(100);
    ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == worker; }));
    EXPECT_FALSE(joined->closed);
  }
}

// It has a place among those that know the secret from its TLS hello on: a busy machine may let it
// wait after that, and for the worker's end the handshake is over before it is for the server's.
TEST_F(ServerTest, AFloodDoesNotEndAHandshakeOfWhoKnowsTheSecret) {
  namespace asio = boost::asio;
  Listen([] {
    ControlServer::Options options;
    options.secret = SecretOf('s');
    options.max_pending = 16;
    options.handshake_timeout = 3600s;
    return options;
  }());
  asio::io_context own;  // so that the worker does nothing before the test says so
  asio::ip::tcp::socket socket(own);
  const HostPort to = server_->address();
  socket.connect({asio::ip::make_address(to.host), to.port});
  TlsContext tls(TlsRole::kClient, SecretOf('s'));
  asio::ssl::stream<asio::ip::tcp::socket&> worker(socket, tls.context());
  std::optional<boost::system::error_code> outcome;
  worker.async_handshake(asio::ssl::stream_base::client,
                         [&](boost::system::error_code failure) { outcome = failure; });
  own.poll();  // its hello is sent
  ASSERT_TRUE(RunUntil(io_, [&] { return socket.available() > 0; }));
  std::vector<asio::ip::tcp::socket> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(RawConnection());
  ASSERT_TRUE(RunUntil(io_, [&] { return rejected_.size() >= 84; }));
  ASSERT_TRUE(RunUntil(own, [&] { return outcome.has_value(); }));
  EXPECT_FALSE(*outcome) << outcome->message();
  asio::write(worker, asio::buffer(FrameOf(Encode(msg::FromWorker(msg::Hello{})))));
  EXPECT_TRUE(RunUntil(io_, [&] { return workers_.size() == 1; }));
}

// A refusal is no use if it is lost: what the other end has sent meanwhile must not destroy it.
TEST_F(ServerTest, ARefusalArrivesWhateverWasSent) {
  Listen([] {
    ControlServer::Options options;
    options.secret = SecretOf('s');
    return options;
  }());
  for (int i = 0; i < 20; ++i) {
    auto plain = RawConnection();
    std::string sent = FrameOf(Encode(msg::FromWorker(msg::Hello{})));
    sent += std::string(100000, '\0');
    plain.non_blocking(true);
    boost::system::error_code ignored;
    boost::asio::write(plain, boost::asio::buffer(sent), ignored);
    EXPECT_THAT(ReadToEnd(plain), HasSubstr("the coordinator has a --secret-file"));
  }
}

TEST_F(ServerTest, ManyWorkersAtOnceAllGetInThoughPlacesAreFew) {
  Listen([] {
    ControlServer::Options options;
    options.max_pending = 4;
    return options;
  }());
  constexpr std::size_t kWorkers = 40;
  std::vector<std::unique_ptr<ControlClient>> clients;
  std::vector<std::unique_ptr<CoordinatorChannel>> channels;
  for (std::size_t i = 0; i < kWorkers; ++i) {
    ControlClient::Options options;
    options.coordinator = server_->address();
    clients.push_back(std::make_unique<ControlClient>(io_, options, [&](auto got) {
      ASSERT_TRUE(got.ok());
      (*got)->Send(msg::Hello{});
      channels.push_back(*std::move(got));
    }));
  }
  EXPECT_TRUE(RunUntil(io_, [&] { return workers_.size() == kWorkers; }));
  EXPECT_TRUE(rejected_.empty());
}

TEST_F(ServerTest, TheFirstMessageIsHello) {
  Listen();
  auto socket = RawConnection();
  boost::asio::write(socket, boost::asio::buffer(FrameOf(Encode(msg::FromWorker(msg::Level{})))));
  EXPECT_EQ(ReadToEnd(socket), "");
  ASSERT_TRUE(RunUntil(io_, [&] { return rejected_.size() == 1; }));
  EXPECT_EQ(rejected_[0].message, "the first message is not Hello");
}

TEST_F(ServerTest, AStrangersBytesAreRefusedEarly) {
  Listen();
  auto browser = RawConnection();
  boost::asio::write(browser, boost::asio::buffer(std::string("GET / HTTP/1.1\r\n\r\n")));
  EXPECT_EQ(ReadToEnd(browser), "");
  auto large = RawConnection();  // more than a Hello may have
  boost::asio::write(large, boost::asio::buffer(std::string("\0\2\0\0", 4)));
  EXPECT_EQ(ReadToEnd(large), "");
  ASSERT_TRUE(RunUntil(io_, [&] { return rejected_.size() == 2; }));
  EXPECT_THAT(rejected_[1].message, HasSubstr("131072 bytes where 1 to 65536 are allowed"));
}

TEST_F(ServerTest, WhatFollowsTheHelloAtOnceIsNotLost) {
  Listen();
  auto socket = RawConnection();
  boost::asio::write(socket,
                     boost::asio::buffer(FrameOf(Encode(msg::FromWorker(msg::Hello{}))) +
                                         FrameOf(Encode(msg::FromWorker(msg::Level{RoundId(3)}))) +
                                         FrameOf(Encode(msg::FromWorker(msg::Level{RoundId(4)})))));
  ASSERT_TRUE(
      RunUntil(io_, [&] { return workers_.size() == 1 && coordinator().received.size() == 2; }));
  EXPECT_EQ(coordinator().received[1], msg::FromWorker(msg::Level{RoundId(4)}));
}

TEST_F(ServerTest, ChannelsOutliveTheServer) {
  ConnectPair();
  server_ = nullptr;
  worker().channel->Send(msg::Level{RoundId(3)});
  EXPECT_TRUE(RunUntil(io_, [&] { return coordinator().received.size() == 1; }));
}

TEST_F(ServerTest, ACallbackMayDestroyTheServer) {
  std::unique_ptr<ControlServer> server;
  bool called = false;
  auto made = ControlServer::Listen(io_, {},
                                    {[&](std::unique_ptr<WorkerChannel>, msg::Hello) {
                                       server = nullptr;
                                       called = true;
                                     },
                                     nullptr});
  ASSERT_TRUE(made.ok());
  server = *std::move(made);
  ControlClient::Options options;
  options.coordinator = server->address();
  auto worker = Connect(options);
  ASSERT_TRUE(worker);
  EXPECT_TRUE(RunUntil(io_, [&] { return called && worker->closed; }));
}

}  // namespace
}  // namespace lockstep::transport::control
