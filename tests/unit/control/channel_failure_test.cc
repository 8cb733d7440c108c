#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/unit/control/control_fixture.h"

namespace lockstep::transport::control {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ChannelFailureTest : public ControlTest {
 protected:
  // A worker that is a bare socket: it has said Hello, and what comes after that is the test's.
  boost::asio::ip::tcp::socket RawWorker() {
    auto socket = RawConnection();
    boost::asio::write(socket, boost::asio::buffer(FrameOf(Encode(msg::FromWorker(msg::Hello{})))));
    const std::size_t before = workers_.size();
    EXPECT_TRUE(RunUntil(io_, [&] { return workers_.size() == before + 1; }));
    return socket;
  }

  std::string ReasonOfEnd() {
    EXPECT_TRUE(RunUntil(io_, [&] { return coordinator().closed.has_value(); }));
    return coordinator().closed ? coordinator().closed->message : "";
  }
};

TEST_F(ChannelFailureTest, APeerThatIsGoneIsNoticed) {
  Listen();
  auto socket = RawWorker();
  socket.close();
  EXPECT_THAT(ReasonOfEnd(),
              ::testing::AnyOf("the other end closed the connection", HasSubstr("reset by peer")));
  EXPECT_EQ(coordinator().closed->code, ErrorCode::kClosed);
  coordinator().channel->Send(msg::FenceRound{});  // does nothing
  coordinator().channel->Close();
}

TEST_F(ChannelFailureTest, AKilledProcessIsNoticed) {
  Listen();
  const HostPort to = server_->address();
  const ::pid_t child = ::fork();
  if (child == 0) {  // only calls that are safe after fork
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    ::sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(to.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool connected =
        ::connect(fd, reinterpret_cast<::sockaddr*>(&address), sizeof address) == 0;
    // Hello with protocol 1: kind 1, of two bytes.
    const bool said = ::write(fd, "\0\0\0\4\x0a\2\x08\1", 8) == 8;
    if (!connected || !said) ::_exit(1);
    while (true) ::pause();
  }
  ASSERT_GT(child, 0);
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 1; }));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_NE(ReasonOfEnd(), "");
  ::waitpid(child, nullptr, 0);
}

TEST_F(ChannelFailureTest, AnOversizeFrameEndsTheConnection) {
  Listen();
  auto socket = RawWorker();
  boost::asio::write(socket, boost::asio::buffer(std::string("\x7f\xff\xff\xff", 4)));
  EXPECT_THAT(ReasonOfEnd(), HasSubstr("a message of 2147483647 bytes"));
  EXPECT_EQ(coordinator().closed->code, ErrorCode::kInvalid);
}

TEST_F(ChannelFailureTest, GarbageEndsTheConnection) {
  Listen();
  auto socket = RawWorker();
  boost::asio::write(socket, boost::asio::buffer(FrameOf("no message of ours")));
  EXPECT_THAT(ReasonOfEnd(), HasSubstr("no message of a worker"));
  EXPECT_EQ(coordinator().closed->code, ErrorCode::kInvalid);
}

TEST_F(ChannelFailureTest, AMessageThatIsTooLargeToSendEndsTheConnection) {
  ControlServer::Options options;
  options.channel.max_message_bytes = 1000;
  ConnectPair(std::move(options));
  coordinator().channel->Send(msg::SetSlowdown{std::string(900, 'x')});
  coordinator().channel->Send(msg::SetSlowdown{std::string(1001, 'x')});
  EXPECT_FALSE(coordinator().closed) << "never from within Send";
  EXPECT_THAT(ReasonOfEnd(), HasSubstr("a message to send has"));
}

TEST_F(ChannelFailureTest, WhoDoesNotReadIsCutOff) {
  ControlServer::Options options;
  options.channel.send_queue_bytes = 4u << 20;
  Listen(std::move(options));
  auto socket = RawWorker();  // never reads
  const msg::StateChunk chunk{RoundId(1), 0, 0, false, std::vector<std::byte>(1 << 20)};
  std::size_t most = 0;
  ASSERT_TRUE(RunUntil(io_, [&] {
    if (!coordinator().closed) coordinator().channel->Send(chunk);
    most = std::max(most, coordinator().channel->queued_bytes());
    return coordinator().closed.has_value();
  }));
  EXPECT_LE(most, 4u << 20);
  EXPECT_THAT(coordinator().closed->message,
              StartsWith("the other end does not take what is sent"));
}

TEST_F(ChannelFailureTest, SilenceIsNoticedAndNamed) {
  ControlServer::Options options;
  options.channel.timeout = 200ms;
  Listen(std::move(options));
  auto socket = RawWorker();  // open, and never answers
  EXPECT_EQ(ReasonOfEnd(), "no heartbeat for 0.2 s");
  EXPECT_EQ(coordinator().closed->code, ErrorCode::kTimeout);
}

TEST_F(ChannelFailureTest, TheWorkerNoticesASilentCoordinator) {
  ControlServer::Options server;
  server.channel.timeout = 3600s;  // it pings every quarter of an hour
  ControlClient::Options client;
  client.channel.timeout = 200ms;
  ConnectPair(std::move(server), std::move(client));
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().closed.has_value(); }));
  EXPECT_EQ(worker().closed->message, "no heartbeat for 0.2 s");
}

TEST_F(ChannelFailureTest, HeartbeatsKeepAnIdleConnection) {
  ControlServer::Options server;
  server.channel.timeout = 400ms;
  ControlClient::Options client;
  client.channel.timeout = 400ms;
  ConnectPair(std::move(server), std::move(client));
  // Four time-outs' worth of pings: the worker has heard each, and the coordinator each answer.
  ASSERT_TRUE(RunUntil(io_, [&] {
    return coordinator().pongs.size() >= 16 || coordinator().closed || worker().closed;
  }));
  EXPECT_FALSE(worker().closed);
  EXPECT_FALSE(coordinator().closed);
}

TEST_F(ChannelFailureTest, AStopOfOurOwnKillsNobody) {
  ControlServer::Options server;
  server.channel.timeout = 400ms;
  ControlClient::Options client;  // its time-out is longer: it has not given up on us meanwhile
  ConnectPair(std::move(server), std::move(client));
  ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().channel->clock().has_value(); }));
  std::this_thread::sleep_for(1500ms);  // what SIGSTOP does to this loop
  // Answers go on for more than a time-out: a ping is a quarter of it.
  const std::size_t before = coordinator().pongs.size();
  ASSERT_TRUE(RunUntil(
      io_, [&] { return coordinator().pongs.size() >= before + 6 || coordinator().closed; }));
  EXPECT_FALSE(coordinator().closed);
}

TEST_F(ChannelFailureTest, LastWordsOutliveAFailedSend) {
  ConnectPair();
  coordinator().channel->Send(msg::Refuse{"go away"});
  coordinator().channel = nullptr;
  // The worker keeps talking to somebody who has turned away; it still hears why.
  ASSERT_TRUE(RunUntil(io_, [&] {
    if (!worker().closed) worker().channel->Send(msg::Level{RoundId(1)});
    return worker().closed.has_value();
  }));
  ASSERT_FALSE(worker().received.empty());
  EXPECT_EQ(worker().received[0], msg::ToWorker(msg::Refuse{"go away"}));
}

}  // namespace
}  // namespace lockstep::transport::control
