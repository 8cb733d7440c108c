// What the kernel is told about ends that say nothing any more.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>

#include "transport/tcp/tcp_transport.h"

namespace lockstep::transport::tcp {
namespace {

class Member final : public Handler {
 public:
  Member(std::uint32_t worker, Duration silence) {
    Options options;
    options.self = {WorkerId(worker), Incarnation(1)};
    options.job_key.assign(32, std::byte{5});
    options.silence_timeout = silence;
    transport = std::move(*MakeTcpTransport(options));
    EXPECT_TRUE(transport->Start(this).ok());
  }
  ~Member() override { transport->Stop(); }
  void OnPeerUp(PeerId, const MemberId&, const PathReport&) override { up.set_value(); }
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(PeerId, const Error&) override {}
  void OnMessage(PeerId, std::span<const std::byte>) override {}
  ServeAnswer OnFetch(PeerId, const PieceName&) override { return {}; }
  void OnServed(PeerId, std::uint64_t) override {}
  void OnFetchDone(FetchId, FetchStatus) override {}

  std::unique_ptr<Transport> transport;
  std::promise<void> up;
};

// The connected sockets of this process; there are none but the transports'.
std::vector<int> ConnectedSockets() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.ss_family == AF_INET) {
      found.push_back(fd);
    }
  }
  return found;
}

int Option(int socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(socket, level, option, &value, &size), 0);
  return value;
}

void ExpectBound(Duration silence, int milliseconds, int probe_seconds) {
  Member one(1, silence);
  Member two(2, silence);
  one.transport->Post([&] {
    one.transport->Connect({WorkerId(2), Incarnation(1)}, two.transport->address());
  });
  one.up.get_future().wait();
  two.up.get_future().wait();
  const std::vector<int> sockets = ConnectedSockets();
  ASSERT_EQ(sockets.size(), 2u);
  for (const int socket : sockets) {
    EXPECT_EQ(Option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), milliseconds);
    EXPECT_EQ(Option(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(Option(socket, IPPROTO_TCP, TCP_KEEPIDLE), probe_seconds);
    EXPECT_EQ(Option(socket, IPPROTO_TCP, TCP_KEEPINTVL), probe_seconds);
    EXPECT_EQ(Option(socket, IPPROTO_TCP, TCP_KEEPCNT), 4);
  }
}

TEST(SilenceTest, IsBoundedAtBothEnds) { ExpectBound(std::chrono::seconds(20), 20000, 5); }
TEST(SilenceTest, IsAtLeastASecond) { ExpectBound(std::chrono::milliseconds(200), 1000, 1); }
TEST(SilenceTest, IsWhatTheKernelCanTake) {
  ExpectBound(std::chrono::hours(1000), 1 << 30, 9 * 3600);
}

}  // namespace
}  // namespace lockstep::transport::tcp
