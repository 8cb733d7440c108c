// Arenas between processes: handing over, publishing and reading, and owners that stop or die at
// the worst moment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/conformance/mapping/child_process.h"
#include "transport/handshake.h"
#include "transport/mapping/address.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/grant.h"
#include "transport/mapping/map_peer.h"

namespace lockstep::transport {
namespace {

const MemberId kOwner{WorkerId(3), Incarnation(2)};
const MemberId kReader{WorkerId(1), Incarnation(1)};
const std::vector<std::byte> kKey(32, std::byte{0x5a});
constexpr std::size_t kWords = 64 * 1024;
constexpr Duration kLong = std::chrono::seconds(30);
constexpr Duration kShort = std::chrono::milliseconds(50);

Arena MakeArena() {
  return Arena::Create(std::vector<BlockSpec>{{.name = "sum", .bytes = kWords * 4}}).value();
}

std::unique_ptr<ArenaServer> Serve(const Arena& arena, Duration handshake_timeout = kLong,
                                   std::size_t max_pending = 64) {
  const ArenaServerOptions options{
      .self = kOwner, .max_pending = max_pending, .handshake_timeout = handshake_timeout};
  return ArenaServer::Start(arena, kKey, options).value();
}

Result<PeerArena> Map(const std::string& address, Duration timeout = kLong) {
  return MapPeer(address, kReader, kOwner, kKey, timeout);
}

std::ptrdiff_t OpenDescriptors() {
  using It = std::filesystem::directory_iterator;
  return std::distance(It("/proc/self/fd"), It());
}

std::uint32_t* Words(const Arena& arena) {
  return reinterpret_cast<std::uint32_t*>(arena.block(0).data());
}

void Fill(const Arena& arena, std::size_t from, std::size_t to, std::uint32_t value) {
  volatile std::uint32_t* words = Words(arena);
  for (std::size_t i = from; i < to; ++i) words[i] = value;
}

// A child that owns an arena and obeys: "write G" fills and publishes; "begin G" fills half and
// publishes on "end".
void Own(const ChildProcess::Parent& parent) {
  Arena arena = MakeArena();
  const auto server = Serve(arena);
  parent.Say(server->address());
  for (std::uint32_t generation = 0;;) {
    const std::string command = parent.Hear();
    const auto space = command.find(' ');
    if (space != std::string::npos) {
      generation = static_cast<std::uint32_t>(std::stoul(command.substr(space)));
    }
    if (command.starts_with("write") || command.starts_with("begin")) {
      arena.BeginWrite(0);
      Fill(arena, 0, kWords / 2, generation);
    }
    if (command.starts_with("write") || command == "end") {
      Fill(arena, kWords / 2, kWords, generation);
      arena.Publish(0, generation);
    }
    if (command == "stop") raise(SIGSTOP);
    parent.Say("done");
  }
}

class Peer : public ::testing::Test {
 protected:
  void Ask(const std::string& command) {
    child_.Say(command);
    ASSERT_EQ(child_.Hear(), "done");
  }
  std::uint32_t Word(const PeerArena& peer, std::size_t i) {
    std::uint32_t word = 0;
    std::memcpy(&word, peer.data(0) + 4 * i, 4);
    return word;
  }
  std::uint64_t Sum(const PeerArena& peer) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kWords; ++i) sum += Word(peer, i);
    return sum;
  }

  ChildProcess child_{Own};
  std::string address_ = child_.Hear();
};

TEST_F(Peer, ReadsWhatAnotherProcessPublishes) {
  const auto peer = Map(address_);
  ASSERT_TRUE(peer.ok()) << peer.error().message;
  EXPECT_EQ(peer->Generation(0), kNoGeneration);
  for (const std::uint32_t generation : {1u, 2u, 700u}) {
    Ask("write " + std::to_string(generation));
    EXPECT_EQ(peer->Generation(0), generation);
    EXPECT_EQ(Sum(*peer), std::uint64_t{generation} * kWords);
    EXPECT_TRUE(peer->StillValid(0, generation));
  }
}

TEST_F(Peer, ServesAnyNumberOfPeers) {
  Ask("write 4");
  std::vector<PeerArena> peers;
  for (int i = 0; i < 100; ++i) peers.push_back(Map(address_).value());
  for (const PeerArena& peer : peers) EXPECT_EQ(Word(peer, kWords - 1), 4u);
}

TEST_F(Peer, FindsOutThatItsPassWasTorn) {
  Ask("write 1");
  const auto peer = Map(address_).value();
  ASSERT_EQ(peer.Generation(0), 1u);
  EXPECT_EQ(Word(peer, 0), 1u);
  Ask("begin 2");
  EXPECT_EQ(Word(peer, 1), 2u) << "the pass has seen bytes of both";
  EXPECT_EQ(Word(peer, kWords - 1), 1u);
  EXPECT_FALSE(peer.StillValid(0, 1));
  Ask("end");
  EXPECT_FALSE(peer.StillValid(0, 1)) << "also after the rewrite is complete";
  EXPECT_TRUE(peer.StillValid(0, 2));
}

TEST_F(Peer, KeepsTheMemoryOfAnOwnerThatWasKilled) {
  Ask("write 9");
  const auto peer = Map(address_).value();
  child_.Kill();
  EXPECT_EQ(peer.Generation(0), 9u);
  EXPECT_EQ(Sum(peer), 9u * kWords);
  EXPECT_TRUE(peer.StillValid(0, 9));
  const auto again = Map(address_);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kNotFound);
}

TEST_F(Peer, AnOwnerKilledWhileItWritesLeavesNothingToRead) {
  Ask("write 9");
  const auto peer = Map(address_).value();
  Ask("begin 10");
  child_.Kill();
  EXPECT_EQ(peer.Generation(0), kNoGeneration);
  EXPECT_FALSE(peer.StillValid(0, 9));
  EXPECT_FALSE(peer.StillValid(0, 10));
}

TEST_F(Peer, AStoppedOwnerHoldsNobodyUp) {
  Ask("write 1");
  const auto peer = Map(address_).value();
  child_.Stop();
  EXPECT_EQ(Sum(peer), kWords);
  EXPECT_TRUE(peer.StillValid(0, 1));
  const auto late = Map(address_, kShort);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kTimeout);
  EXPECT_NE(late.error().message.find("worker 3 (incarnation 2)"), std::string::npos);
  child_.Continue();
  EXPECT_TRUE(Map(address_).ok());
}

TEST_F(Peer, AnOwnerStoppedWhileItWritesPublishesLater) {
  const auto peer = Map(address_).value();
  Ask("begin 1");
  child_.Say("stop");
  child_.AwaitStopped();
  EXPECT_EQ(peer.Generation(0), kNoGeneration);
  child_.Continue();
  ASSERT_EQ(child_.Hear(), "done");
  Ask("end");
  EXPECT_EQ(peer.Generation(0), 1u);
  EXPECT_EQ(Sum(peer), kWords);
}

TEST_F(Peer, WrongKeyIsRefused) {
  const std::vector<std::byte> other(32, std::byte{1});
  const auto refused = MapPeer(address_, kReader, kOwner, other, kLong);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_TRUE(Map(address_).ok()) << "and the server goes on";
}

// Whatever it knows. The same process as itself may, so that it is the user that is refused.
TEST_F(Peer, AnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  constexpr uid_t kNobody = 65534;
  const auto asks = [](uid_t user) {
    const Arena arena = MakeArena();
    const auto server = Serve(arena);
    const pid_t child = fork();
    if (child == 0) {
      if (setresuid(user, user, user) != 0) _exit(2);
      _exit(Map(server->address()).ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(asks(0), 0);
  EXPECT_EQ(asks(kNobody), 1);
}

TEST_F(Peer, AnotherIncarnationThanWasMeantIsRefused) {
  const auto refused =
      MapPeer(address_, kReader, {kOwner.worker, kOwner.incarnation.Next()}, kKey, kLong);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
}

TEST_F(Peer, ElsewhereIsToldApart) {
  const MappingAddress here = MappingAddress::Parse(address_).value();
  const auto error = [](const MappingAddress& address) { return Map(address.Format()).error(); };

  MappingAddress other = here;
  other.boot = "0123";
  EXPECT_EQ(error(other).code, ErrorCode::kUnavailable);
  EXPECT_NE(error(other).message.find("another host"), std::string::npos);

  other = here;
  other.netns = "1";
  EXPECT_EQ(error(other).code, ErrorCode::kUnavailable);
  EXPECT_NE(error(other).message.find("another network namespace"), std::string::npos);

  other = here;
  other.name += "x";
  EXPECT_EQ(error(other).code, ErrorCode::kNotFound);

  for (const std::string text : {"", "mapping:", "127.0.0.1:99", "mapping:a:b:", "mapping:a:b:c:d",
                                 "mapping:a:b:c d", "/tmp/file"}) {
    EXPECT_EQ(Map(text).error().code, ErrorCode::kInvalid) << text;
  }
  EXPECT_EQ(Map("mapping:-:-:" + std::string(200, 'x')).error().code, ErrorCode::kInvalid);
}

// The owner rewrites without a pause that a reader could rely on. Whatever pass is called valid
// must have seen one generation only; the test ends after enough valid and enough torn passes.
TEST(PeerStress, NoTornPassIsEverValid) {
  ChildProcess child([](const ChildProcess::Parent& parent) {
    Arena arena = MakeArena();
    const auto server = Serve(arena);
    parent.Say(server->address());
    RandomStream random(7);
    for (std::uint32_t generation = 1;; ++generation) {
      arena.BeginWrite(0);
      Fill(arena, 0, kWords, generation);
      arena.Publish(0, generation);
      // A pause of up to four passes, counted in the reader's own steps: a sanitizer slows down
      // both alike.
      const volatile std::uint32_t* words = Words(arena);
      for (std::uint64_t i = random.NextBelow(kWords * 4); i > 0; --i) (void)words[i % kWords];
    }
  });
  const auto peer = Map(child.Hear()).value();
  int valid = 0;
  int torn = 0;
  while (valid < 300 || torn < 30) {
    const std::uint64_t generation = peer.Generation(0);
    if (generation == kNoGeneration) {
      std::this_thread::yield();
      continue;
    }
    std::uint32_t differing = 0;
    const auto* words = reinterpret_cast<const volatile std::uint32_t*>(peer.data(0));
    for (std::size_t i = 0; i < kWords; ++i) {
      differing |= words[i] ^ static_cast<std::uint32_t>(generation);
    }
    if (peer.StillValid(0, generation)) {
      ++valid;
      ASSERT_EQ(differing, 0u) << "generation " << generation;
    } else {
      ++torn;
    }
  }
}

// Talks to a server by hand.
class Strangers : public ::testing::Test {
 protected:
  UniqueFd ConnectTo(const ArenaServer& server) {
    const auto at = MappingAddress::Parse(server.address()).value().ToSocket();
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), at.get(), at.bytes), 0);
    return fd;
  }
  // Waits for the end of the connection; true if nothing but refusals came before, and no
  // descriptor.
  bool EndsEmptyHanded(const UniqueFd& fd) {
    for (;;) {
      std::array<std::byte, 512> buffer;
      std::array<std::byte, 256> control{};
      iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t got = recvmsg(fd.get(), &message, 0);
      if (message.msg_controllen != 0 && got > 0) return false;
      if (got <= 0) return true;
    }
  }

  Arena arena_ = MakeArena();
};

TEST_F(Strangers, WhoSaysNonsenseIsDropped) {
  const auto server = Serve(arena_);
  for (const std::size_t bytes : {1u, 8u, 256u, 257u, 5000u}) {
    const UniqueFd fd = ConnectTo(*server);
    const std::vector<std::byte> nonsense(bytes, std::byte{0xff});
    ASSERT_EQ(send(fd.get(), nonsense.data(), bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_TRUE(EndsEmptyHanded(fd));
  }
  EXPECT_TRUE(Map(server->address()).ok());
}

TEST_F(Strangers, WhoDoesNotProveItselfGetsNothing) {
  const auto server = Serve(arena_, kShort);
  const UniqueFd silent = ConnectTo(*server);
  EXPECT_TRUE(EndsEmptyHanded(silent));

  const UniqueFd half_way = ConnectTo(*server);
  Handshake handshake(Handshake::Role::kConnector, kReader, kKey, kOwner);
  const auto hello = handshake.Begin();
  ASSERT_EQ(send(half_way.get(), hello.data(), hello.size(), 0),
            static_cast<ssize_t>(hello.size()));
  EXPECT_TRUE(EndsEmptyHanded(half_way));
}

TEST_F(Strangers, ManyOfThemDoNotLockPeersOut) {
  constexpr int kPending = 2;
  constexpr int kSilent = 4;
  // Also the honest peer has to be through within it, on a loaded machine.
  constexpr Duration kEnough = std::chrono::milliseconds(500);
  const auto server = Serve(arena_, kEnough, kPending);
  const std::ptrdiff_t before = OpenDescriptors();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < kSilent; ++i) silent.push_back(ConnectTo(*server));
  EXPECT_TRUE(Map(server->address()).ok());
  EXPECT_LE(OpenDescriptors() - before, kSilent + kPending) << "the server's ends are bounded";
}

TEST_F(Strangers, AServerEndsWithConnectionsOpen) {
  auto server = Serve(arena_);
  const UniqueFd silent = ConnectTo(*server);
  server.reset();
  EXPECT_TRUE(EndsEmptyHanded(silent));
}

// A server that has the key and sends something strange.
class StrangeServer : public ::testing::Test {
 protected:
  Result<PeerArena> MapWhatIsSent(const ArenaGrant& grant, const std::vector<int>& fds) {
    const MappingAddress address = MappingAddress::Make();
    const auto at = address.ToSocket();
    const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listener.get(), at.get(), at.bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    std::thread thread([&] {
      const UniqueFd fd(accept(listener.get(), nullptr, nullptr));
      Handshake handshake(Handshake::Role::kAcceptor, kOwner, kKey, std::nullopt);
      while (!handshake.done()) {
        std::array<std::byte, 256> buffer;
        const ssize_t got = recv(fd.get(), buffer.data(), buffer.size(), 0);
        ASSERT_GT(got, 0);
        const auto answer =
            handshake.Consume({buffer.data(), static_cast<std::size_t>(got)}).value();
        ASSERT_EQ(send(fd.get(), answer.data(), answer.size(), 0),
                  static_cast<ssize_t>(answer.size()));
      }
      SendFds(fd, grant, fds);
    });
    auto mapped = Map(address.Format());
    thread.join();
    return mapped;
  }

  static void SendFds(const UniqueFd& fd, ArenaGrant grant, const std::vector<int>& fds) {
    iovec part{.iov_base = &grant, .iov_len = sizeof(grant)};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(8 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(fd.get(), &message, 0), static_cast<ssize_t>(sizeof(grant)));
  }

  Arena arena_ = MakeArena();
  ArenaGrant grant_{.magic = ArenaGrant::kMagic, .nonce = arena_.nonce(), .device = {}};
};

TEST_F(StrangeServer, TheRightThingIsTaken) {
  EXPECT_TRUE(MapWhatIsSent(grant_, {arena_.fd()}).ok());
}

TEST_F(StrangeServer, AnythingElseIsAnErrorAndLeaksNoDescriptor) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Arena other = MakeArena();
  const std::ptrdiff_t before = OpenDescriptors();
  ArenaGrant wrong_magic = grant_;
  wrong_magic.magic ^= 1;
  for (const auto& mapped :
       {MapWhatIsSent(grant_, {}), MapWhatIsSent(grant_, {null.get()}),
        MapWhatIsSent(grant_, {other.fd()}), MapWhatIsSent(wrong_magic, {arena_.fd()}),
        MapWhatIsSent(grant_, {arena_.fd(), arena_.fd()}),
        MapWhatIsSent(grant_, {arena_.fd(), arena_.fd(), arena_.fd(), arena_.fd()})}) {
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalid) << mapped.error().message;
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(StrangeServer, AnotherKindOfSocketIsAnError) {
  const MappingAddress address = MappingAddress::Make();
  const auto at = address.ToSocket();
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), at.get(), at.bytes), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(Map(address.Format()).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::transport
