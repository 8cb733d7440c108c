// What happens to one process when the other dies or stops.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "tests/unit/transport_ucx/node.h"

namespace lockstep::transport::test {
namespace {

class ChildProcess {
 public:
  ChildProcess() {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    EXPECT_EQ(pipe2(to.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from.data(), O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl(LOCKSTEP_UCX_TEST_PEER, "ucx_test_peer", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    stdin_ = to[1];
    char c = 0;
    while (read(from[0], &c, 1) == 1 && c != '\n') address_ += c;
    close(from[0]);
  }
  ~ChildProcess() {
    Signal(SIGCONT);
    Signal(SIGKILL);
    close(stdin_);
    waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Signal(int number) const { kill(pid_, number); }
  // Returns when the kernel has stopped it.
  void StopAndWait() const {
    Signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  std::string address_;
};

class WithChild : public ::testing::Test {
 protected:
  void SetUp() override {
    a.Start();
    region = *a.Call(
        [&] { return a.transport().Register(MemoryKind::kHost, target.data(), target.size()); });
    peer = a.ConnectTo({WorkerId(1), Incarnation(1)}, child.address());
  }
  Result<FetchId> Fetch() {
    PieceName name;
    name.bytes = target.size();
    return a.transport().Fetch(peer, name, {region, 0, name.bytes});
  }

  std::vector<std::byte> target = std::vector<std::byte>(4u << 20);
  ChildProcess child;
  Node a{MakeOptions(0)};
  RegionId region;
  PeerId peer;
};

TEST_F(WithChild, AKilledPeerIsAnEvent) {
  // Keeps fetching, so that some are under way whenever the kill comes.
  std::atomic<int> refused = 0;  // those asked for between the failure and its event
  a.Call([&] {
    a.on_fetch_done = [&](FetchId, FetchStatus status) {
      if (status == FetchStatus::kOk && !Fetch()) ++refused;
    };
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Fetch().ok());
  });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.fetched.size() >= 20; }));
  const auto killed = std::chrono::steady_clock::now();
  child.Signal(SIGKILL);
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.down.size() == 1; }));
  const auto noticed = std::chrono::steady_clock::now() - killed;
  RecordProperty(
      "noticed_after_us",
      static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(noticed).count()));
  const Seen s = a.seen();
  EXPECT_EQ(s.order.back(), "down");
  int failed = 0;
  for (const auto& [fetch, status] : s.fetched) failed += status == FetchStatus::kPeerDown ? 1 : 0;
  EXPECT_EQ(failed + refused, 4);
}

TEST_F(WithChild, AStoppedPeerIsWaitedForWithinBounds) {
  child.StopAndWait();
  const std::string text(100'000, 'x');
  std::size_t queued = 0;
  const auto fetches = a.Call([&] {
    std::vector<FetchId> ids;
    for (int i = 0; i < 8; ++i) ids.push_back(*Fetch());
    for (int i = 0; i < 4; ++i) a.transport().GiveUp(ids[static_cast<std::size_t>(i)]);
    return ids;
  });
  // The kernel's buffers and then the queue fill up.
  while (a.Call([&] { return a.transport().Send(peer, Bytes(text)); })) {
    ASSERT_LT(++queued, 10'000u) << "the send queue has no bound";
  }
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.fetched.size() == 4; }));
  EXPECT_TRUE(a.seen().down.empty());
  child.Signal(SIGCONT);
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.fetched.size() == 8; }));
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.messages.size() == queued; }));
  const Seen s = a.seen();
  EXPECT_EQ(s.messages.back(), std::to_string(queued));
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(s.fetched.at(fetches[i]), i < 4 ? FetchStatus::kGivenUp : FetchStatus::kOk);
  }
  EXPECT_EQ(target, Pattern(target.size()));
}

TEST_F(WithChild, AskingAStoppedPeerAgainAndAgainHasABound) {
  child.StopAndWait();
  std::size_t asked = 0;
  a.Call([&] {
    while (true) {
      const auto fetch = Fetch();
      if (!fetch) break;
      a.transport().GiveUp(*fetch);
      ASSERT_LT(++asked, 1000u);
    }
  });
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.size() == asked; }));
  child.Signal(SIGCONT);
  // Once the answers have come, which an answered message shows, it may be asked again.
  a.Call([&] { EXPECT_TRUE(a.transport().Send(peer, Bytes("?"))); });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.messages.size() == 1; }));
  const auto fetch = a.Call([&] { return Fetch(); });
  ASSERT_TRUE(fetch.ok());
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.contains(*fetch); }));
}

TEST_F(WithChild, AStoppedPeerCanBeClosed) {
  child.StopAndWait();
  a.Call([&] {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(Fetch().ok());
    while (a.transport().Send(peer, Bytes(std::string(100'000, 'x')))) {
    }
    a.transport().Close(peer, "too slow");
  });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.down.size() == 1; }));
  EXPECT_EQ(a.seen().fetched.size(), 8u);
  EXPECT_EQ(a.seen().down[0].second.message, "too slow");
}

TEST(WithoutAPeer, AStoppedListenerTimesOut) {
  ChildProcess child;
  child.StopAndWait();
  Options options = MakeOptions(0);
  options.connect_timeout = std::chrono::milliseconds(200);
  Node a(std::move(options));
  a.Start();
  a.Call([&] { a.transport().Connect({WorkerId(1), Incarnation(1)}, child.address()); });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.failed.size() == 1; }));
  EXPECT_EQ(a.seen().failed[0].second.code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace lockstep::transport::test
