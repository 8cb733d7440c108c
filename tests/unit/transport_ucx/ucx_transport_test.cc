#include <algorithm>
#include <cstdlib>

#include "tests/unit/transport_ucx/node.h"

namespace lockstep::transport::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;

// Two connected nodes; `b` serves out of `source`, `a` fetches into `target`.
class Pair : public ::testing::Test {
 protected:
  Pair() : Pair(MakeOptions(0), MakeOptions(1)) {}
  Pair(Options options_a, Options options_b)
      : source(Pattern(8 * kMiB)),
        target(8 * kMiB),
        a(std::move(options_a)),
        b(std::move(options_b), [this](PeerId, const PieceName& name) { return Answer(name); }) {}

  void SetUp() override {
    a.Start();
    b.Start();
    source_region = *b.Call(
        [&] { return b.transport().Register(MemoryKind::kHost, source.data(), source.size()); });
    target_region = *a.Call(
        [&] { return a.transport().Register(MemoryKind::kHost, target.data(), target.size()); });
    peer_b = a.ConnectTo({WorkerId(1), Incarnation(1)}, b.transport().address());
    ASSERT_TRUE(b.WaitFor([](const Seen& s) { return s.up.size() == 1; }));
    peer_a = b.seen().up[0].first;
  }

  // kind 0: have it. kind 1: do not.
  ServeAnswer Answer(const PieceName& name) {
    ServeAnswer answer;
    answer.have = name.kind == 0;
    answer.slice = {source_region, name.offset, name.bytes};
    answer.cookie = name.part;
    return answer;
  }

  Result<FetchId> Fetch(std::uint64_t offset, std::uint64_t bytes, std::uint32_t kind = 0,
                        std::uint32_t part = 0) {
    PieceName name;
    name.kind = kind;
    name.part = part;
    name.offset = offset;
    name.bytes = bytes;
    return a.transport().Fetch(peer_b, name, {target_region, offset, bytes});
  }

  bool Arrived(std::uint64_t offset, std::uint64_t bytes) {
    return std::memcmp(source.data() + offset, target.data() + offset, bytes) == 0;
  }

  std::vector<std::byte> source;
  std::vector<std::byte> target;
  Node a;
  Node b;
  RegionId source_region;
  RegionId target_region;
  PeerId peer_b;  // as a knows it
  PeerId peer_a;
};

TEST_F(Pair, KnowsWhoIsThereAndHowBytesTravel) {
  EXPECT_EQ(a.seen().up[0].second, (MemberId{WorkerId(1), Incarnation(1)}));
  EXPECT_EQ(b.seen().up[0].second, (MemberId{WorkerId(0), Incarnation(1)}));
  for (const std::string& path : {a.seen().paths[0], b.seen().paths[0]}) {
    EXPECT_EQ(path.rfind("ucx: ", 0), 0u) << path;
    EXPECT_NE(path.find('/'), std::string::npos) << path;
    EXPECT_EQ(path.find("unknown"), std::string::npos) << path;
  }
}

TEST_F(Pair, MessagesOfAllSizesArriveInOrder) {
  std::vector<std::string> sent;
  for (const std::size_t bytes : {0, 1, 60, 4096, 70'000, 8, 200'000, 3, 256 << 10, 0, 2}) {
    sent.emplace_back(bytes, static_cast<char>('a' + sent.size()));
  }
  a.Call([&] {
    for (const auto& text : sent) EXPECT_TRUE(a.transport().Send(peer_b, Bytes(text)));
  });
  ASSERT_TRUE(b.WaitFor([&](const Seen& s) { return s.messages.size() == sent.size(); }));
  EXPECT_TRUE(b.seen().messages == sent);
  // And the other way, by the end that accepted.
  EXPECT_TRUE(b.Call([&] { return b.transport().Send(peer_a, Bytes("back")); }));
  EXPECT_TRUE(a.WaitFor([](const Seen& s) { return s.messages.size() == 1; }));
}

TEST_F(Pair, RefusesAMessageThatIsTooLong) {
  const std::string text(a.transport().capabilities().max_message_bytes + 1, 'x');
  EXPECT_FALSE(a.Call([&] { return a.transport().Send(peer_b, Bytes(text)); }));
}

TEST_F(Pair, FetchesPiecesOfAllSizes) {
  std::uint64_t offset = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100},
                                    std::uint64_t{65'537}, std::uint64_t{kMiB}, 4 * kMiB}) {
    const auto fetch = a.Call([&] { return Fetch(offset, bytes); });
    ASSERT_TRUE(fetch.ok()) << fetch.error().message;
    ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.contains(*fetch); }));
    EXPECT_EQ(a.seen().fetched[*fetch], FetchStatus::kOk);
    EXPECT_TRUE(Arrived(offset, bytes));
    offset += bytes;
  }
  EXPECT_TRUE(b.WaitFor([](const Seen& s) { return s.served.size() == 6; }));
}

TEST_F(Pair, SaysThatAPieceIsGone) {
  const auto fetch = a.Call([&] { return Fetch(0, kMiB, 1); });
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.contains(*fetch); }));
  EXPECT_EQ(a.seen().fetched[*fetch], FetchStatus::kGone);
  EXPECT_TRUE(b.seen().served.empty());
}

TEST_F(Pair, BoundsTheWindowAndReopensIt) {
  const std::size_t window = a.transport().capabilities().fetch_window;
  std::vector<FetchId> fetches;
  a.Call([&] {
    for (std::size_t i = 0; i < window; ++i) fetches.push_back(*Fetch(i * 1000, 1000));
    const auto more = Fetch(0, 1000);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.error().code, ErrorCode::kUnavailable);
  });
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.size() == window; }));
  EXPECT_TRUE(a.Call([&] { return Fetch(0, 1000); }).ok());
}

TEST_F(Pair, RefusesSlicesOutsideTheRegion) {
  a.Call([&] {
    PieceName name;
    name.bytes = 100;
    const std::uint64_t huge = ~std::uint64_t{0} - 10;
    for (const Slice& slice :
         {Slice{target_region, target.size() - 99, 100}, Slice{target_region, huge, 100},
          Slice{RegionId(99), 0, 100}, Slice{target_region, 0, 99}}) {
      const auto fetch = a.transport().Fetch(peer_b, name, slice);
      ASSERT_FALSE(fetch.ok());
      EXPECT_EQ(fetch.error().code, ErrorCode::kInvalid);
    }
  });
}

// All are given up at once after they were asked for, so that nothing may be written to the target
// afterwards.
TEST_F(Pair, AGivenUpFetchLeavesTheDestinationAlone) {
  std::vector<FetchId> fetches;
  a.Call([&] {
    for (std::uint32_t i = 0; i < 4; ++i) fetches.push_back(*Fetch(i * kMiB, kMiB, 0, i));
    for (const FetchId fetch : fetches) a.transport().GiveUp(fetch);
  });
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.size() == 4; }));
  for (const auto& [fetch, status] : a.seen().fetched) EXPECT_EQ(status, FetchStatus::kGivenUp);
  // The refusals end the serves.
  ASSERT_TRUE(b.WaitFor([](const Seen& s) { return s.served.size() == 4; }));
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte x) { return x == std::byte{0}; }));
  // The connection goes on.
  const auto fetch = a.Call([&] { return Fetch(0, kMiB); });
  ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.fetched.contains(*fetch); }));
  EXPECT_TRUE(Arrived(0, kMiB));
}

TEST_F(Pair, CloseEndsEverythingBeforeTheDown) {
  a.Call([&] {
    for (std::uint32_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(Fetch(0, 4 * kMiB, 0, i).ok());
    }
  });
  b.Call([&] { b.transport().Close(peer_a, "enough"); });
  for (Node* node : {&a, &b}) {
    ASSERT_TRUE(node->WaitFor([](const Seen& s) { return s.down.size() == 1; }));
    EXPECT_EQ(node->seen().order.back(), "down");
  }
  EXPECT_EQ(a.seen().fetched.size(), 8u);
  EXPECT_EQ(b.seen().down[0].second.message, "enough");
  EXPECT_FALSE(a.Call([&] { return a.transport().Send(peer_b, Bytes("x")); }));
  EXPECT_FALSE(a.Call([&] { return Fetch(0, 1); }).ok());
}

TEST_F(Pair, CloseInTheMiddleOfReceivingEndsEverythingBeforeTheDown) {
  // Closed by the receiver as soon as the first piece is whole, with others on the way.
  a.Call([&] {
    a.on_fetch_done = [&](FetchId, FetchStatus) { a.transport().Close(peer_b, "enough"); };
    for (std::uint32_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(Fetch(0, 4 * kMiB, 0, i).ok());
    }
  });
  for (Node* node : {&a, &b}) {
    ASSERT_TRUE(node->WaitFor([](const Seen& s) { return s.down.size() == 1; }));
    EXPECT_EQ(node->seen().order.back(), "down");
  }
  EXPECT_EQ(a.seen().fetched.size(), 8u);
}

TEST_F(Pair, CloseFromACallbackIsSafe) {
  b.Call([&] {
    b.on_message = [&](PeerId peer) { b.transport().Close(peer, "because of a message"); };
  });
  a.Call([&] {
    for (int i = 0; i < 100; ++i) static_cast<void>(a.transport().Send(peer_b, Bytes("x")));
  });
  for (Node* node : {&a, &b}) {
    ASSERT_TRUE(node->WaitFor([](const Seen& s) { return s.down.size() == 1; }));
  }
  EXPECT_EQ(b.seen().messages.size(), 1u);
}

TEST_F(Pair, StopEndsWhatIsUnderWay) {
  a.Call([&] {
    for (std::uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(Fetch(0, 4 * kMiB, 0, i).ok());
  });
  a.transport().Stop();
  EXPECT_EQ(a.seen().fetched.size(), 8u);
  EXPECT_EQ(a.seen().order.back(), "down");
  EXPECT_TRUE(b.WaitFor([](const Seen& s) { return s.down.size() == 1; }));
}

TEST_F(Pair, ConnectsAgainAfterADown) {
  for (int i = 0; i < 20; ++i) {
    const std::size_t downs = a.seen().down.size() + 1;
    b.Call([&] { b.transport().Close(b.seen().up.back().first, "again"); });
    ASSERT_TRUE(a.WaitFor([&](const Seen& s) { return s.down.size() == downs; }));
    const PeerId again = a.ConnectTo({WorkerId(1), Incarnation(1)}, b.transport().address());
    EXPECT_NE(again, peer_b);
    ASSERT_TRUE(b.WaitFor([&](const Seen& s) { return s.up.size() == downs + 1; }));
  }
}

TEST(UcxTransport, RefusesAnotherKeyAndSaysSo) {
  Options other = MakeOptions(0);
  other.job_key.assign(32, std::byte{8});
  Node a(std::move(other));
  Node b(MakeOptions(1));
  a.Start();
  b.Start();
  a.Call([&] { a.transport().Connect({WorkerId(1), Incarnation(1)}, b.transport().address()); });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.failed.size() == 1; }));
  EXPECT_EQ(a.seen().failed[0].second.code, ErrorCode::kRefused);
  EXPECT_TRUE(a.seen().up.empty());
  EXPECT_TRUE(b.seen().up.empty());
}

TEST(UcxTransport, AConnectToNobodyFails) {
  std::string address;
  {
    Node gone(MakeOptions(1));
    gone.Start();
    address = gone.transport().address();
  }
  Options options = MakeOptions(0);
  options.connect_timeout = std::chrono::seconds(2);
  Node a(std::move(options));
  a.Start();
  a.Call([&] { a.transport().Connect({WorkerId(1), Incarnation(1)}, address); });
  a.Call([&] { a.transport().Connect({WorkerId(2), Incarnation(1)}, "nonsense"); });
  ASSERT_TRUE(a.WaitFor([](const Seen& s) { return s.failed.size() == 2; }));
}

TEST(UcxTransport, PostAndTimersRunInOrderOnOneThread) {
  Node a(MakeOptions(0));
  std::vector<int> ran;
  a.transport().Post([&] { ran.push_back(0); });
  a.Start();
  for (int i = 1; i < 100; ++i) a.transport().Post([&ran, i] { ran.push_back(i); });
  std::promise<Time> fired;
  const Time due = MonotonicNow() + std::chrono::milliseconds(20);
  a.Call([&] { a.transport().PostAt(due, [&] { fired.set_value(MonotonicNow()); }); });
  EXPECT_GE(fired.get_future().get(), due);
  a.Call([&] {
    ASSERT_EQ(ran.size(), 100u);
    EXPECT_TRUE(std::ranges::is_sorted(ran));
  });
}

TEST(UcxTransport, RefusesCudaMemoryWithoutCuda) {
  Node a(MakeOptions(0));
  if (a.transport().capabilities().cuda_memory) GTEST_SKIP() << "this UCX has CUDA";
  a.Start();
  int x = 0;
  const auto region =
      a.Call([&] { return a.transport().Register(MemoryKind::kCuda, &x, sizeof x); });
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(region.error().message.find("CUDA"), std::string::npos);
}

TEST(UcxTransport, IsUnavailableWhereUcxDoesNotStart) {
  ASSERT_EQ(setenv("UCX_TLS", "bogus", 1), 0);
  const auto made = MakeUcxTransport(MakeOptions(0));
  unsetenv("UCX_TLS");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(made.error().message.find("bogus"), std::string::npos) << made.error().message;
  EXPECT_EQ(made.error().message.find('\n'), std::string::npos);
}

TEST(UcxTransport, DoesNotListenWhereItHasNoAddress) {
  for (const char* host : {"203.0.113.7", "0.0.0.0", "nonsense"}) {
    Options options = MakeOptions(0);
    options.listen_host = host;
    auto made = MakeUcxTransport(std::move(options));
    ASSERT_TRUE(made.ok());
    Node node(MakeOptions(1));
    const Status status = (*made)->Start(&node);
    ASSERT_FALSE(status.ok()) << host;
    EXPECT_NE(status.error().message.find(host), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace lockstep::transport::test
