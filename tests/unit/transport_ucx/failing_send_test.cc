// A socket that takes a part of a piece and refuses the rest: the connection ends, and not the
// process. That is how a peer's death may look to whoever is sending to it; which of send and read
// hears of it first is chance, so here the socket's functions are replaced.
#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "tests/unit/transport_ucx/node.h"

namespace {

constexpr std::size_t kBulk = 64u << 10;
constexpr std::size_t kTaken = 1000;

// The next bulk on any socket is cut off after kTaken bytes, and what follows on it fails, once.
std::atomic<bool> armed{false};
std::atomic<int> cut_off{-1};
std::atomic<int> failures{0};

template <class Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool CutsOff(int socket, std::size_t bytes) {
  if (bytes < kBulk || !armed.exchange(false)) return false;
  cut_off = socket;
  return true;
}

bool Fails(int socket) {
  int expected = socket;
  if (!cut_off.compare_exchange_strong(expected, -1)) return false;
  ++failures;
  errno = ECONNRESET;
  return true;
}

}  // namespace

extern "C" ssize_t send(int socket, const void* data, std::size_t bytes, int flags) {
  static auto* const next = Next<decltype(send)>("send");
  if (Fails(socket)) return -1;
  return next(socket, data, CutsOff(socket, bytes) ? kTaken : bytes, flags);
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const next = Next<decltype(sendmsg)>("sendmsg");
  if (Fails(socket)) return -1;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) bytes += message->msg_iov[i].iov_len;
  if (!CutsOff(socket, bytes)) return next(socket, message, flags);
  // Of its first vector, which is never all of it.
  iovec part = message->msg_iov[0];
  part.iov_len = std::min(part.iov_len, kTaken);
  msghdr beginning{};
  beginning.msg_iov = &part;
  beginning.msg_iovlen = 1;
  return next(socket, &beginning, flags);
}

namespace lockstep::transport::test {
namespace {

TEST(FailingSend, EndsTheConnectionAndNotTheProcess) {
  constexpr std::size_t kBytes = 4u << 20;
  std::vector<std::byte> source = Pattern(kBytes);
  std::vector<std::byte> target(kBytes);
  RegionId source_region;
  Node b(MakeOptions(1), [&](PeerId, const PieceName& name) {
    return ServeAnswer{.have = true, .slice = {source_region, name.offset, name.bytes}};
  });
  Node a(MakeOptions(0));
  a.Start();
  b.Start();
  source_region = *b.Call(
      [&] { return b.transport().Register(MemoryKind::kHost, source.data(), source.size()); });
  const RegionId target_region = *a.Call(
      [&] { return a.transport().Register(MemoryKind::kHost, target.data(), target.size()); });
  const PeerId peer = a.ConnectTo({WorkerId(1), Incarnation(1)}, b.transport().address());
  PieceName piece;
  piece.bytes = kBytes;
  armed = true;
  const FetchId fetch = *a.Call([&] {
    return a.transport().Fetch(peer, piece, {target_region, 0, kBytes});
  });
  EXPECT_TRUE(b.WaitFor([](const Seen& seen) { return seen.down.size() == 1; }));
  EXPECT_TRUE(a.WaitFor([](const Seen& seen) { return seen.down.size() == 1; }));
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(b.seen().served.size(), 1u);
  EXPECT_EQ(a.seen().fetched.at(fetch), FetchStatus::kPeerDown);

  // The two go on.
  a.ConnectTo({WorkerId(1), Incarnation(1)}, b.transport().address());
}

}  // namespace
}  // namespace lockstep::transport::test
