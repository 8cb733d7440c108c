// Small messages: order, sizes, back-pressure.
#include <fmt/format.h>

#include "tests/conformance/fixture.h"

namespace lockstep::transport {
namespace {

class MessageTest : public PairTest {};

TEST_P(MessageTest, AllSizesArriveWhole) {
  Connect();
  std::vector<std::string> texts;
  const std::size_t largest = server_->capabilities().max_message_bytes;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, largest - 1, largest, std::size_t{3}}) {
    texts.emplace_back(bytes, static_cast<char>('a' + texts.size()));
  }
  fetcher_->SendAll(server_peer_, texts);
  ASSERT_TRUE(
      server_->Await([&](const Node::Seen& s) { return s.messages.size() == texts.size(); }));
  const Node::Seen seen = server_->seen();
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(seen.messages[i].second, texts[i]) << i;
}

TEST_P(MessageTest, ManyArriveInOrderInBothDirectionsAtOnce) {
  Connect();
  std::vector<std::string> texts;
  for (int i = 0; i < 20000; ++i)
    texts.push_back(fmt::format("{}:{}", i, std::string(i % 97, 'x')));
  fetcher_->SendAll(server_peer_, texts);
  server_->SendAll(fetcher_peer_, texts);
  for (Node* node : {server_.get(), fetcher_.get()}) {
    ASSERT_TRUE(
        node->Await([&](const Node::Seen& s) { return s.messages.size() == texts.size(); }));
    const Node::Seen seen = node->seen();
    for (std::size_t i = 0; i < texts.size(); ++i) ASSERT_EQ(seen.messages[i].second, texts[i]);
  }
}

TEST_P(MessageTest, ASenderIsHeldBackByAStoppedPeerAndGoesOnAfterwards) {
  Connect();
  std::promise<void> release;
  server_->transport().Post([held = release.get_future().share()] { held.wait(); });
  const std::string text(16u << 10, 'm');
  // What fits into the queue, into the peer's and into the buffers of the system; then no more,
  // however often one tries.
  constexpr std::size_t kEnough = 256u << 20;
  std::size_t accepted = 0;
  std::size_t refused_in_a_row = 0;
  while (refused_in_a_row < 2000 && accepted * text.size() < kEnough) {
    const bool sent = fetcher_->Send(server_peer_, text);
    accepted += sent ? 1 : 0;
    refused_in_a_row = sent ? 0 : refused_in_a_row + 1;
  }
  EXPECT_LT(accepted * text.size(), kEnough) << "nothing bounds what is queued";
  EXPECT_GT(accepted, 0u);
  release.set_value();
  ASSERT_TRUE(server_->Await([&](const Node::Seen& s) { return s.messages.size() == accepted; }));
  EXPECT_TRUE(fetcher_->Send(server_peer_, "and on"));
  EXPECT_TRUE(
      server_->Await([&](const Node::Seen& s) { return s.messages.size() == accepted + 1; }));
}

TEST_P(MessageTest, NothingCanBeSentToOrFetchedFromAPeerThatIsDown) {
  Connect();
  fetcher_->Run([this](Transport& transport) { transport.Close(server_peer_, "enough"); });
  const auto down = [](const Node::Seen& seen) { return seen.down.size() == 1; };
  ASSERT_TRUE(fetcher_->Await(down));
  ASSERT_TRUE(server_->Await(down));
  EXPECT_FALSE(fetcher_->Send(server_peer_, "too late"));
  EXPECT_FALSE(server_->Send(fetcher_peer_, "too late"));
  const auto fetch = fetcher_->RunFetch(server_peer_, PatternPiece(0, 8), Destination(0, 8));
  ASSERT_FALSE(fetch.ok());
  EXPECT_EQ(fetch.error().code, ErrorCode::kClosed);
  // A new connection is a new peer.
  fetcher_->Connect(serving_identity_, server_->address());
  const PeerId again = fetcher_->AwaitPeer(serving_identity_);
  EXPECT_NE(again, server_peer_);
  EXPECT_TRUE(fetcher_->Send(again, "hello again"));
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.messages.size() == 1; }));
}

TEST_P(MessageTest, AnswersFromWithinACallbackArrive) {
  Connect();
  server_->Run([this](Transport& transport) {
    server_->on_message = [&transport](PeerId peer, std::span<const std::byte> bytes) {
      EXPECT_TRUE(transport.Send(peer, bytes));
    };
  });
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(fetcher_->Send(server_peer_, fmt::format("ping {}", i)));
    ASSERT_TRUE(fetcher_->Await([&](const Node::Seen& seen) {
      return seen.messages.size() == static_cast<std::size_t>(i) + 1;
    }));
  }
  EXPECT_EQ(fetcher_->seen().messages.back().second, "ping 99");
}

INSTANTIATE_TEST_SUITE_P(Transports, MessageTest, ::testing::ValuesIn(AllTransports()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lockstep::transport
