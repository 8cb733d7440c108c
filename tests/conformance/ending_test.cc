// How connections and transports end, with work under way.
#include <thread>

#include "tests/conformance/fixture.h"

namespace lockstep::transport {
namespace {

class EndingTest : public PairTest {
 protected:
  static constexpr std::uint64_t kBytes = 4u << 20;

  // Bulk in both windows that never ends by itself; what is refused is not asked for again.
  void StartEndless() {
    Connect(8, 8 * kBytes);
    fetcher_->Run([this](Transport&) {
      fetcher_->on_fetch_done = [this](FetchId, FetchStatus status) {
        if (status == FetchStatus::kOk) Ask();
      };
      for (int i = 0; i < 8; ++i) Ask();
    });
    ASSERT_TRUE(fetcher_->Await([](const Node::Seen& seen) { return seen.done.size() > 8; }));
  }

  void Ask() {
    const std::uint64_t slot = asked_++ % 8;
    (void)fetcher_->Fetch(server_peer_, PatternPiece(slot, kBytes),
                          Destination(slot * kBytes, kBytes));
  }

  void ExpectBothDown() {
    const auto down = [](const Node::Seen& seen) { return seen.down.size() == 1; };
    EXPECT_TRUE(fetcher_->Await(down));
    EXPECT_TRUE(server_->Await(down));
    EXPECT_EQ(server_->seen().serving, 0u);
    const Node::Seen seen = fetcher_->seen();
    EXPECT_GT(seen.Count(FetchStatus::kPeerDown), 0u);
    EXPECT_EQ(seen.Count(FetchStatus::kGone), 0u);
  }

  std::uint64_t asked_ = 0;
};

TEST_P(EndingTest, TheFetcherClosesInTheMiddle) {
  StartEndless();
  fetcher_->Run([this](Transport& transport) { transport.Close(server_peer_, "for a test"); });
  ExpectBothDown();
  EXPECT_EQ(fetcher_->seen().down.begin()->second.code, ErrorCode::kClosed);
  EXPECT_NE(fetcher_->seen().down.begin()->second.message.find("for a test"), std::string::npos);
}

TEST_P(EndingTest, TheServerClosesInTheMiddle) {
  StartEndless();
  server_->Run([this](Transport& transport) { transport.Close(fetcher_peer_, "for a test"); });
  ExpectBothDown();
}

TEST_P(EndingTest, CloseComesBackBeforeItsEventAndEndsSending) {
  Connect();
  fetcher_->Run([this](Transport& transport) {
    transport.Close(server_peer_, "first");
    transport.Close(server_peer_, "second");
    EXPECT_TRUE(fetcher_->seen().down.empty());
    EXPECT_FALSE(transport.Send(server_peer_, Bytes("late")));
    EXPECT_FALSE(transport.Fetch(server_peer_, PatternPiece(0, 1), Destination(0, 1)).ok());
  });
  EXPECT_TRUE(fetcher_->Await([](const Node::Seen& seen) { return seen.down.size() == 1; }));
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.down.size() == 1; }));
  EXPECT_TRUE(server_->seen().messages.empty());
}

TEST_P(EndingTest, ClosingFromWithinEveryKindOfCallback) {
  for (const std::string where : {"up", "message", "fetch", "done"}) {
    auto server = MakeNode(Identity(11));
    auto client = MakeNode(Identity(12));
    const auto pattern = MakePattern(1u << 20);
    std::vector<std::byte> source(pattern);
    std::vector<std::byte> sink(1u << 20);
    const RegionId source_region = server->Register(source);
    const RegionId sink_region = client->Register(sink);
    server->Run([&](Transport& transport) {
      if (where == "up") {
        server->on_peer_up = [&](PeerId peer) { transport.Close(peer, where); };
      }
      server->on_message = [&](PeerId peer, auto) {
        if (where == "message") transport.Close(peer, where);
      };
      server->on_fetch = [&](PeerId peer, const PieceName& name) {
        if (where == "fetch") transport.Close(peer, where);
        return ServePattern(source_region, name);
      };
    });
    client->Run([&](Transport& transport) {
      client->on_peer_up = [&](PeerId peer) {
        (void)transport.Send(peer, Bytes("hello"));
        (void)client->Fetch(peer, PatternPiece(0, 1u << 20), {sink_region, 0, 1u << 20});
        client->on_fetch_done = [&, peer](FetchId, FetchStatus) {
          if (where == "done") transport.Close(peer, where);
        };
      };
    });
    client->Connect(Identity(11), server->address());
    const auto down = [](const Node::Seen& seen) { return seen.down.size() == 1; };
    EXPECT_TRUE(server->Await(down)) << where;
    // The acceptor may close before the connector has seen that it was accepted.
    EXPECT_TRUE(client->Await([](const Node::Seen& seen) {
      return seen.down.size() == 1 || seen.failed.size() == 1;
    })) << where;
    client->Stop();
    server->Stop();
  }
}

TEST_P(EndingTest, StopOfTheFetcherInTheMiddle) {
  StartEndless();
  fetcher_->Stop();
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.down.size() == 1; }));
  EXPECT_EQ(server_->seen().serving, 0u);
}

TEST_P(EndingTest, StopOfTheServerInTheMiddle) {
  StartEndless();
  server_->Stop();
  EXPECT_EQ(server_->seen().serving, 0u);
  EXPECT_TRUE(fetcher_->Await([](const Node::Seen& seen) { return seen.down.size() == 1; }));
}

TEST_P(EndingTest, StopOfBothAtOnceInTheMiddle) {
  StartEndless();
  std::thread other([this] { server_->Stop(); });
  fetcher_->Stop();
  other.join();
  EXPECT_EQ(server_->seen().serving, 0u);
}

TEST_P(EndingTest, StopWhileConnecting) {
  const int times = Emulated() ? 6 : 20;
  for (int i = 0; i < times; ++i) {
    auto a = MakeNode(Identity(21));
    auto b = MakeNode(Identity(22));
    a->Connect(Identity(22), b->address());
    b->Connect(Identity(21), a->address());
    a->Stop();
    b->Stop();
    // Each Connect has come to one end.
    EXPECT_LE(a->seen().failed.size(), 1u);
    EXPECT_EQ(a->seen().up.size(), a->seen().down.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, EndingTest, ::testing::ValuesIn(AllTransports()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lockstep::transport
