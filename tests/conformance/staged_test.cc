// What staging adds to a transport.
#include "transport/staging/staged_transport.h"

#include <algorithm>

#include "tests/conformance/fixture.h"

namespace lockstep::transport {
namespace {

class StagedTest : public PairTest {
 protected:
  // The server's pattern as memory of the host.
  void ServeFromHost() {
    const RegionId region = server_->Run([&](Transport& transport) {
      return *transport.Register(MemoryKind::kHost, pattern_.data(), pattern_.size());
    });
    server_->Run([&](Transport&) {
      server_->on_fetch = [=](PeerId, const PieceName& name) { return ServePattern(region, name); };
    });
  }
};

TEST_P(StagedTest, SaysSoInThePath) {
  Connect();
  EXPECT_TRUE(fetcher_->capabilities().cuda_memory);
  const PathReport path = fetcher_->seen().paths.at(server_peer_);
  EXPECT_EQ(path.text, "tcp, staged through pinned memory");
  EXPECT_TRUE(path.staged);
  EXPECT_FALSE(path.rdma);
}

TEST_P(StagedTest, TakesTheHostsMemoryAsItIs) {
  Connect();
  ServeFromHost();
  std::vector<std::byte> own(4096);
  const RegionId region = fetcher_->Run([&](Transport& transport) {
    return *transport.Register(MemoryKind::kHost, own.data(), own.size());
  });
  copies_.fail = true;  // there are none
  const PieceName name = PatternPiece(7, own.size());
  const auto fetch = fetcher_->RunFetch(server_peer_, name, {region, 0, own.size()});
  ASSERT_TRUE(fetch.ok());
  EXPECT_TRUE(fetcher_->Await([&](const Node::Seen& seen) { return seen.done.contains(*fetch); }));
  EXPECT_EQ(fetcher_->seen().done.at(*fetch), FetchStatus::kOk);
  EXPECT_TRUE(IsPattern(pattern_, name, own));
  fetcher_->Stop();  // before `own` goes
}

// What lies in a buffer then is nobody's gradient.
TEST_P(StagedTest, ADeviceThatFailsEndsTheConnection) {
  Connect();
  std::ranges::fill(destination_, std::byte{0xEE});
  copies_.fail = true;
  // More than there are buffers, at once.
  const auto fetches = fetcher_->Run([&](Transport&) {
    std::vector<FetchId> asked;
    for (std::uint64_t i = 0; i < 8; ++i) {
      asked.push_back(
          *fetcher_->Fetch(server_peer_, PatternPiece(i, 5000), Destination(i * 5000, 5000)));
    }
    return asked;
  });
  const auto down = [](const Node::Seen& seen) { return !seen.down.empty(); };
  ASSERT_TRUE(server_->Await(down));
  ASSERT_TRUE(fetcher_->Await(down));
  for (const FetchId fetch : fetches) {
    EXPECT_EQ(fetcher_->seen().done.at(fetch), FetchStatus::kPeerDown);
  }
  EXPECT_EQ(server_->seen().serving, 0u);
  EXPECT_TRUE(std::ranges::all_of(destination_, [](std::byte b) { return b == std::byte{0xEE}; }));
}

TEST_P(StagedTest, APieceThatArrivesOnADeviceThatFailsIsNotThere) {
  Connect();
  ServeFromHost();
  copies_.fail = true;
  const auto fetch = fetcher_->RunFetch(server_peer_, PatternPiece(0, 5000), Destination(0, 5000));
  ASSERT_TRUE(fetch.ok());
  ASSERT_TRUE(fetcher_->Await([](const Node::Seen& seen) { return !seen.down.empty(); }));
  EXPECT_EQ(fetcher_->seen().done.at(*fetch), FetchStatus::kPeerDown);
}

// One that cannot even be asked.
TEST_P(StagedTest, ADeviceThatIsDeadEndsTheConnectionAndLetsNobodyUp) {
  Connect();
  copies_.dead = true;
  const auto fetch = fetcher_->RunFetch(server_peer_, PatternPiece(0, 5000), Destination(0, 5000));
  ASSERT_TRUE(fetch.ok());
  const auto down = [](const Node::Seen& seen) { return !seen.down.empty(); };
  ASSERT_TRUE(server_->Await(down));
  ASSERT_TRUE(fetcher_->Await(down));
  EXPECT_EQ(fetcher_->seen().done.at(*fetch), FetchStatus::kPeerDown);
  EXPECT_EQ(server_->seen().serving, 0u);
  // The rings of the one that is down are there for the next one, and none for a second.
  const auto up = [](std::size_t peers) {
    return [peers](const Node::Seen& seen) { return seen.up.size() == peers; };
  };
  auto second = MakeNode(Identity(3));
  second->Connect(serving_identity_, server_->address());
  ASSERT_TRUE(server_->Await(up(2)));
  second->Stop();
  EXPECT_TRUE(second->seen().up.empty());
}

INSTANTIATE_TEST_SUITE_P(Transports, StagedTest, ::testing::Values("staged"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace lockstep::transport
