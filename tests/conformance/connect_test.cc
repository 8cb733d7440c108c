// Who gets a connection, and what both ends know of each other.
#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "tests/conformance/fixture.h"
#include "tests/conformance/make.h"

namespace lockstep::transport {
namespace {

class ConnectTest : public TransportTest {};

TEST_P(ConnectTest, BothEndsLearnWhoTheOtherIsAndHowBytesTravel) {
  auto a = MakeNode(Identity(1));
  auto b = MakeNode(Identity(2, 7));
  a->Connect(Identity(2, 7), b->address());
  const PeerId at_a = a->AwaitPeer(Identity(2, 7));
  const PeerId at_b = b->AwaitPeer(Identity(1));
  for (const std::string& text : {a->seen().paths[at_a].text, b->seen().paths[at_b].text}) {
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(text.find("tcp (TLS 1.3") == 0, Encrypts(GetParam())) << text;
    EXPECT_EQ(text.ends_with(", 3 connections"), GetParam().ends_with('3')) << text;
  }
  const bool tcp = GetParam() == "staged" || GetParam() == "tcp3" || Encrypts(GetParam());
  const bool ucx = GetParam() == "ucx_addresses";
  EXPECT_EQ(a->capabilities().name, tcp ? "tcp" : ucx ? "ucx" : GetParam());
  EXPECT_FALSE(a->capabilities().version.empty());
}

TEST_P(ConnectTest, TheDataThreadEntersBeforeStartReturns) {
  std::vector<std::thread::id> entered;
  Options options = OptionsFor(Identity(1));
  options.enter_data_thread = [&]() -> Status {
    entered.push_back(std::this_thread::get_id());
    return {};
  };
  auto node = MakeNode(options);
  const auto data_thread = node->Run([](Transport&) { return std::this_thread::get_id(); });
  EXPECT_THAT(entered, ::testing::ElementsAre(data_thread));
}

TEST_P(ConnectTest, ADataThreadThatCannotEnterDoesNotStart) {
  Options options = OptionsFor(Identity(1));
  options.enter_data_thread = []() -> Status {
    return Error{ErrorCode::kUnavailable, "the device is gone"};
  };
  Node node(MakeUnstarted(options));
  const Status started = node.Start();
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(started.error().message, "the device is gone");
}

TEST_P(ConnectTest, AWrongJobKeyIsRefused) {
  auto a = MakeNode(Identity(1));
  Options options = OptionsFor(Identity(2));
  options.job_key.assign(32, std::byte{43});
  auto stranger = MakeNode(options);
  stranger->Connect(Identity(1), a->address());
  ASSERT_TRUE(stranger->Await([](const Node::Seen& seen) { return !seen.failed.empty(); }));
  const auto [who, error] = stranger->seen().failed.front();
  EXPECT_EQ(who, Identity(1));
  EXPECT_EQ(error.code, ErrorCode::kRefused) << error.message;
  EXPECT_THAT(error.message, ::testing::HasSubstr("key"));
  a->Stop();
  EXPECT_TRUE(a->seen().up.empty());
  EXPECT_TRUE(stranger->seen().up.empty());
}

TEST_P(ConnectTest, AnotherIncarnationThanTheOneAskedForIsRefused) {
  auto a = MakeNode(Identity(1, 2));
  auto b = MakeNode(Identity(2));
  b->Connect(Identity(1, 1), a->address());
  ASSERT_TRUE(b->Await([](const Node::Seen& seen) { return !seen.failed.empty(); }));
  const Error error = b->seen().failed.front().second;
  EXPECT_EQ(error.code, ErrorCode::kRefused) << error.message;
  EXPECT_THAT(error.message, ::testing::HasSubstr("incarnation 2"));
  EXPECT_TRUE(b->seen().up.empty());
}

TEST_P(ConnectTest, AnotherWorkerThanTheOneAskedForIsRefused) {
  auto a = MakeNode(Identity(1));
  auto b = MakeNode(Identity(2));
  b->Connect(Identity(3), a->address());
  ASSERT_TRUE(b->Await([](const Node::Seen& seen) { return !seen.failed.empty(); }));
  EXPECT_EQ(b->seen().failed.front().second.code, ErrorCode::kRefused);
}

TEST_P(ConnectTest, NobodyThereIsAnEvent) {
  auto a = MakeNode(Identity(1));
  const std::string address = a->address();
  a->Stop();
  auto b = MakeNode(Identity(2));
  b->Connect(Identity(1), address);
  ASSERT_TRUE(b->Await([](const Node::Seen& seen) { return !seen.failed.empty(); }));
  EXPECT_FALSE(b->seen().failed.front().second.message.empty());
}

TEST_P(ConnectTest, AnAddressThatIsNoneIsAnEvent) {
  auto a = MakeNode(Identity(1));
  for (const char* address : {"", "nonsense", "127.0.0.1:", "127.0.0.1:99999", ":::::"}) {
    a->Connect(Identity(2), address);
  }
  EXPECT_TRUE(a->Await([](const Node::Seen& seen) { return seen.failed.size() == 5; }));
}

TEST_P(ConnectTest, OneThatDoesNotAnswerRunsIntoTheTimeout) {
  auto a = MakeNode(Identity(1));
  // Its data thread hangs: the kernel may accept, the transport does not greet.
  std::promise<void> release;
  a->transport().Post([held = release.get_future().share()] { held.wait(); });
  Options options = OptionsFor(Identity(2));
  options.connect_timeout = std::chrono::milliseconds(300);
  auto b = MakeNode(options);
  b->Connect(Identity(1), a->address());
  EXPECT_TRUE(b->Await([](const Node::Seen& seen) { return !seen.failed.empty(); }));
  EXPECT_TRUE(b->seen().up.empty());
  release.set_value();
}

TEST_P(ConnectTest, OneThatDidNotAnswerInTimeIsReachedOnceItDoes) {
  auto a = MakeNode(Identity(1));
  std::promise<void> release;
  a->transport().Post([held = release.get_future().share()] { held.wait(); });
  Options options = OptionsFor(Identity(2));
  options.connect_timeout = Emulated() ? std::chrono::seconds(8) : std::chrono::seconds(2);
  auto b = MakeNode(options);
  for (std::size_t failed = 1; failed <= 2; ++failed) {
    b->Connect(Identity(1), a->address());
    ASSERT_TRUE(b->Await([&](const Node::Seen& seen) { return seen.failed.size() == failed; }));
  }
  release.set_value();
  b->Connect(Identity(1), a->address());
  const PeerId peer = b->AwaitPeer(Identity(1));
  ASSERT_TRUE(b->Send(peer, "at last"));
  EXPECT_TRUE(a->Await([](const Node::Seen& seen) { return seen.messages.size() == 1; }));
  EXPECT_EQ(a->seen().messages[0].second, "at last");
}

TEST_P(ConnectTest, BothMayConnectAtOnceAndHaveTwoConnections) {
  auto a = MakeNode(Identity(1));
  auto b = MakeNode(Identity(2));
  a->Connect(Identity(2), b->address());
  b->Connect(Identity(1), a->address());
  const auto two = [](const Node::Seen& seen) { return seen.up.size() == 2; };
  ASSERT_TRUE(a->Await(two));
  ASSERT_TRUE(b->Await(two));
  for (const auto& [peer, who] : a->seen().up) EXPECT_TRUE(a->Send(peer, "over each"));
  EXPECT_TRUE(b->Await([](const Node::Seen& seen) { return seen.messages.size() == 2; }));
  EXPECT_NE(b->seen().messages[0].first, b->seen().messages[1].first);
}

TEST_P(ConnectTest, TwoIncarnationsAreTwoPeersAndTheirMessagesAreToldApart) {
  auto hub = MakeNode(Identity(1));
  auto older = MakeNode(Identity(2, 1));
  auto newer = MakeNode(Identity(2, 2));
  older->Connect(Identity(1), hub->address());
  const PeerId older_peer = hub->AwaitPeer(Identity(2, 1));
  newer->Connect(Identity(1), hub->address());
  const PeerId newer_peer = hub->AwaitPeer(Identity(2, 2));
  EXPECT_NE(older_peer, newer_peer);
  ASSERT_TRUE(newer->Send(newer->AwaitPeer(Identity(1)), "from the newer"));
  ASSERT_TRUE(older->Send(older->AwaitPeer(Identity(1)), "late, from the older"));
  ASSERT_TRUE(hub->Await([](const Node::Seen& seen) { return seen.messages.size() == 2; }));
  const Node::Seen seen = hub->seen();
  for (const auto& [peer, text] : seen.messages) {
    const Incarnation incarnation = seen.up.at(peer).incarnation;
    EXPECT_EQ(text, incarnation == Incarnation(1) ? "late, from the older" : "from the newer");
  }
}

TEST_P(ConnectTest, CudaMemoryIsRefusedWhereItIsNotReached) {
  auto a = MakeNode(Identity(1));
  if (a->capabilities().cuda_memory) GTEST_SKIP() << "this transport reaches CUDA memory";
  std::vector<std::byte> memory(64);
  const bool refused = a->Run([&](Transport& transport) {
    return !transport.Register(MemoryKind::kCuda, memory.data(), memory.size()).ok();
  });
  EXPECT_TRUE(refused);
}

TEST_P(ConnectTest, PostedTasksRunInOrderAndTimedOnesNotBeforeTheirTime) {
  auto a = MakeNode(Identity(1));
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) a->transport().Post([&order, i] { order.push_back(i); });
  const Time asked = MonotonicNow();
  std::promise<Time> ran;
  a->Run([&](Transport& transport) {
    transport.PostAt(asked + std::chrono::milliseconds(20), [&] { ran.set_value(MonotonicNow()); });
  });
  EXPECT_GE(ran.get_future().get(), asked + std::chrono::milliseconds(20));
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST_P(ConnectTest, StopWithoutStartAndTwiceIsFine) {
  MakeUnstarted(OptionsFor(Identity(1)))->Stop();
  auto a = MakeNode(Identity(2));
  a->transport().Stop();
  a->transport().Stop();
}

INSTANTIATE_TEST_SUITE_P(Transports, ConnectTest, ::testing::ValuesIn(AllTransports()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lockstep::transport
