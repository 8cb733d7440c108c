#include "transport/tcp_sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep::transport {
namespace {

TEST(TcpSockets, ReadsTheKernelsTable) {
  const auto sockets = ReadTcpTable(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
      "4242 1 0\n"
      "   1: 0100007F:1F90 0200007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 "
      "0 1 0\n"
      "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A "
      "00000000:00000000 00:00000000 00000000     0        0 7 1 0\n"
      "   2: nonsense 1 2 3 4 5 6 7 8 9\n"
      "   3: 0100007F:1F90 00000000:0000 0A\n");
  ASSERT_EQ(sockets.size(), 3u);
  EXPECT_EQ(sockets[0].local, "127.0.0.1:8080");
  EXPECT_EQ(sockets[0].port, 8080);
  EXPECT_TRUE(sockets[0].listening && !sockets[0].established);
  EXPECT_EQ(sockets[0].inode, 4242u);
  EXPECT_TRUE(sockets[1].established && !sockets[1].listening);
  EXPECT_EQ(sockets[2].local, "[::1]:80");
}

TEST(TcpSockets, FindsWhatThisProcessListensOn) {
  const auto before = ListeningAddresses();
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(ListeningAddresses(), before);  // bound, and deaf
  ASSERT_EQ(::listen(socket, 1), 0);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto after = ListeningAddresses();
  EXPECT_EQ(after.size(), before.size() + 1);
  EXPECT_EQ(std::ranges::count(after, fmt::format("127.0.0.1:{}", ntohs(address.sin_port))), 1);
  ::close(socket);
  EXPECT_EQ(ListeningAddresses(), before);
}

TEST(TcpSockets, NothingToReadIsNothing) { EXPECT_TRUE(ListeningAddresses("/nowhere").empty()); }

}  // namespace
}  // namespace lockstep::transport
