#include <gmock/gmock.h>

#include <algorithm>
#include <future>
#include <thread>

#include "base/free_memory.h"
#include "tests/unit/control/control_fixture.h"

namespace lockstep::transport::control {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ChannelTest : public ControlTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ControlServer::Options server;
    ControlClient::Options client;
    if (GetParam()) {
      server.secret = SecretOf('s');
      client.secret = SecretOf('s');
    }
    ConnectPair(std::move(server), std::move(client));
  }
};

INSTANTIATE_TEST_SUITE_P(, ChannelTest, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "Tls" : "Plain"; });

TEST_P(ChannelTest, MessagesGoBothWaysInOrder) {
  ASSERT_EQ(hellos_.size(), 1u);
  EXPECT_EQ(hellos_[0].host, "host");
  for (std::uint64_t i = 0; i < 1000; ++i) {
    coordinator().channel->Send(msg::FenceRound{RoundId(i)});
    worker().channel->Send(msg::Level{RoundId(i)});
  }
  ASSERT_TRUE(RunUntil(io_, [&] {
    return coordinator().received.size() == 1000 && worker().received.size() == 1000;
  }));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(worker().received[i], msg::ToWorker(msg::FenceRound{RoundId(i)}));
    EXPECT_EQ(coordinator().received[i], msg::FromWorker(msg::Level{RoundId(i)}));
  }
  EXPECT_EQ(worker().channel->local_host(), "127.0.0.1");
  EXPECT_THAT(worker().channel->remote(), StartsWith("127.0.0.1:"));
}

TEST_P(ChannelTest, LargeMessagesBothWaysAtOnce) {
  msg::StateChunk chunk{RoundId(1), 0, 0, false, std::vector<std::byte>(kMaxChunkBytes)};
  for (std::size_t i = 0; i < chunk.bytes.size(); ++i) {
    chunk.bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  for (int i = 0; i < 5; ++i) {
    coordinator().channel->Send(chunk);
    worker().channel->Send(chunk);
  }
  EXPECT_GT(worker().channel->queued_bytes(), kMaxChunkBytes);  // the socket takes some at once
  ASSERT_TRUE(RunUntil(
      io_, [&] { return coordinator().received.size() == 5 && worker().received.size() == 5; }));
  EXPECT_EQ(worker().received[4], msg::ToWorker(chunk));
  EXPECT_EQ(coordinator().received[4], msg::FromWorker(chunk));
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().channel->queued_bytes() == 0; }));
}

// Whatever was heard before: the other end itself answers.
TEST_P(ChannelTest, APingIsAnsweredByTheOtherEnd) {
  worker().channel->Send(msg::Level{RoundId(1)});
  ASSERT_TRUE(RunUntil(io_, [&] { return !coordinator().received.empty(); }));
  const std::uint64_t ping = coordinator().channel->Ping();
  EXPECT_TRUE(std::ranges::find(coordinator().pongs, ping) == coordinator().pongs.end());
  ASSERT_TRUE(RunUntil(io_, [&] {
    return std::ranges::find(coordinator().pongs, ping) != coordinator().pongs.end();
  }));
  EXPECT_TRUE(coordinator().channel->clock());
}

TEST_P(ChannelTest, DrainedComesWhenTheQueueIsEmpty) {
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().drained > 0; }));  // of Hello
  const int before = worker().drained;
  worker().channel->Send(msg::Level{RoundId(1)});
  EXPECT_EQ(worker().drained, before) << "never from within Send";
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().drained > before; }));
  EXPECT_EQ(worker().channel->queued_bytes(), 0u);
}

TEST_P(ChannelTest, OneFrameServesMany) {
  auto second = Connect([&] {
    ControlClient::Options options;
    if (GetParam()) options.secret = SecretOf('s');
    return options;
  }());
  ASSERT_TRUE(second);
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 2; }));
  const Frame frame = MakeFrame(msg::ToWorker(msg::FenceRound{RoundId(7)}));
  for (const auto& end : workers_) end->channel->Send(frame);
  ASSERT_TRUE(
      RunUntil(io_, [&] { return worker().received.size() == 1 && second->received.size() == 1; }));
  EXPECT_EQ(second->received[0], msg::ToWorker(msg::FenceRound{RoundId(7)}));
}

TEST_P(ChannelTest, CloseDeliversWhatWasQueued) {
  const msg::StateChunk chunk{RoundId(1), 0, 0, false, std::vector<std::byte>(1 << 20)};
  for (int i = 0; i < 8; ++i) coordinator().channel->Send(chunk);
  coordinator().channel->Send(msg::Finish{"done", false});
  coordinator().channel->Close();
  // What the worker says meanwhile must not make its system throw away what it has been sent.
  for (int i = 0; i < 100; ++i) worker().channel->Send(msg::Level{RoundId(1)});
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().closed && coordinator().closed; }));
  ASSERT_EQ(worker().received.size(), 9u);
  EXPECT_EQ(worker().received.back(), msg::ToWorker(msg::Finish{"done", false}));
  EXPECT_EQ(worker().closed->message, "the other end closed the connection");
  EXPECT_EQ(coordinator().closed->message, "closed here");
  EXPECT_TRUE(coordinator().received.empty()) << "nothing is received after Close";
}

// What may wait is not handed to the system before something else is, or before its time is over.
TEST_P(ChannelTest, WhatMayWaitGoesOutWithTheNextMessage) {
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().channel->queued_bytes() == 0; }));  // of Hello
  const Frame soon = MakeFrame(msg::FromWorker(msg::Level{RoundId(1)}));
  for (int i = 0; i < 3; ++i) worker().channel->SendSoon(soon);
  EXPECT_EQ(worker().channel->queued_bytes(), 3 * soon.bytes->size());
  worker().channel->Send(msg::Level{RoundId(2)});
  ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().received.size() == 4; }));
  EXPECT_EQ(worker().channel->queued_bytes(), 0u);
  EXPECT_EQ(coordinator().received[0], msg::FromWorker(msg::Level{RoundId(1)}));
  EXPECT_EQ(coordinator().received[3], msg::FromWorker(msg::Level{RoundId(2)}));
}

TEST_P(ChannelTest, WhatMayWaitGoesOutWithoutAnother) {
  for (std::size_t i = 0; i < 20; ++i) {
    worker().channel->SendSoon(MakeFrame(msg::FromWorker(msg::Level{RoundId(i)})));
    ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().received.size() == i + 1; }));
    EXPECT_EQ(coordinator().received[i], msg::FromWorker(msg::Level{RoundId(i)}));
  }
}

// Long ones and many: the order stays, whatever is joined.
TEST_P(ChannelTest, NothingOvertakesWhatMayWait) {
  const auto sent = [](std::size_t i) {
    const std::size_t bytes = i % 7 == 0 ? 20'000 : i % 3 == 0 ? 5'000 : 1;
    return msg::FromWorker(msg::StateChunk{RoundId(i), 0, 0, false, std::vector<std::byte>(bytes)});
  };
  for (std::size_t i = 0; i < 200; ++i) {
    const Frame frame = MakeFrame(sent(i));
    i % 5 == 4 ? worker().channel->Send(frame) : worker().channel->SendSoon(frame);
    if (i % 50 == 10) coordinator().channel->Ping();  // its Pong goes between
    if (i % 20 == 19) io_.poll();
  }
  ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().received.size() == 200; }));
  for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(coordinator().received[i], sent(i)) << i;
}

// The coordinator takes a Pong to say that all that was sent before it has come.
TEST_P(ChannelTest, APongComesBehindWhatWaits) {
  ASSERT_TRUE(RunUntil(io_, [&] { return !coordinator().pongs.empty(); }));
  for (std::size_t i = 0; i < 50; ++i) {
    const std::uint64_t ping = coordinator().channel->Ping();
    worker().channel->SendSoon(MakeFrame(msg::FromWorker(msg::Level{RoundId(i)})));
    ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().pongs.back() == ping; }));
    EXPECT_EQ(coordinator().received.size(), i + 1);
  }
}

TEST_P(ChannelTest, TheEndDeliversWhatWaits) {
  worker().channel->SendSoon(MakeFrame(msg::FromWorker(msg::Level{RoundId(1)})));
  worker().channel->Close();
  worker().channel->SendSoon(MakeFrame(msg::FromWorker(msg::Level{RoundId(2)})));
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().closed && coordinator().closed; }));
  ASSERT_EQ(coordinator().received.size(), 1u);
  EXPECT_EQ(coordinator().received[0], msg::FromWorker(msg::Level{RoundId(1)}));
}

TEST_P(ChannelTest, ADestroyedChannelStillSendsItsLastWords) {
  coordinator().channel->Send(msg::Refuse{"no"});
  coordinator().channel = nullptr;
  ASSERT_TRUE(RunUntil(io_, [&] { return worker().closed.has_value(); }));
  ASSERT_EQ(worker().received.size(), 1u);
  EXPECT_EQ(worker().received[0], msg::ToWorker(msg::Refuse{"no"}));
  EXPECT_FALSE(coordinator().closed) << "no callback after the end of the object";
}

TEST_P(ChannelTest, ACallbackMayDestroyItsChannel) {
  auto second = Connect([&] {
    ControlClient::Options options;
    options.secret = GetParam() ? std::optional(SecretOf('s')) : std::nullopt;
    return options;
  }());
  ASSERT_TRUE(second);
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 2; }));
  second = nullptr;
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_[1]->closed.has_value(); }));

  struct Suicidal {
    std::unique_ptr<CoordinatorChannel> channel;
    std::string text = std::string(100, 'x');  // on the heap, for the sanitizer to see
    int called = 0;
  } end;
  auto connected = TryConnect([&] {
    ControlClient::Options options;
    options.coordinator = server_->address();
    options.secret = GetParam() ? std::optional(SecretOf('s')) : std::nullopt;
    return options;
  }());
  ASSERT_TRUE(connected.ok());
  end.channel = *std::move(connected);
  end.channel->Send(msg::Hello{});
  end.channel->Start({[&end, text = end.text](msg::ToWorker) {
                        end.channel = nullptr;
                        end.called += text == end.text ? 1 : 100;
                      },
                      [&end](const Error&) { end.called += 1000; }, nullptr});
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 3; }));
  workers_[2]->channel->Send(msg::FenceRound{});
  workers_[2]->channel->Send(msg::FenceRound{});
  ASSERT_TRUE(RunUntil(io_, [&] { return workers_[2]->closed.has_value(); }));
  EXPECT_EQ(end.called, 1);
}

TEST_P(ChannelTest, ThePeersClockIsEstimated) {
  ASSERT_TRUE(RunUntil(io_, [&] { return coordinator().channel->clock().has_value(); }));
  const ClockEstimate clock = *coordinator().channel->clock();
  EXPECT_GT(clock.rtt, Duration::zero());
  EXPECT_LE(std::chrono::abs(clock.offset), clock.rtt) << "both ends have the same clock";
  EXPECT_FALSE(worker().channel->clock());
  EXPECT_TRUE(coordinator().received.empty()) << "a Pong is not passed on";
  EXPECT_TRUE(worker().received.empty()) << "nor is a Ping";
}

// Both ends are this process, whose memory does not double or halve meanwhile.
TEST_P(ChannelTest, APongTellsTheMemoryOfItsProcess) {
  const std::uint64_t ping = coordinator().channel->Ping();
  ASSERT_TRUE(RunUntil(io_, [&] {
    return std::ranges::find(coordinator().pongs, ping) != coordinator().pongs.end();
  }));
  const std::uint64_t ours = ResidentBytes();
  ASSERT_GT(ours, 0u);
  EXPECT_GT(coordinator().resident_bytes, ours / 2);
  EXPECT_LT(coordinator().resident_bytes, ours * 2);
}

// Each end in a loop and thread of its own, as in a job.
TEST(ChannelThreads, TwoLoopsTalk) {
  constexpr std::uint64_t kMessages = 2000;
  std::promise<HostPort> address;
  std::thread coordinator([&] {
    boost::asio::io_context io;
    std::unique_ptr<WorkerChannel> channel;
    std::uint64_t got = 0;
    bool closed = false;
    ControlServer::Options options;
    options.secret = SecretOf('s');
    auto server = ControlServer::Listen(
        io, options,
        {[&](std::unique_ptr<WorkerChannel> made, msg::Hello) {
           channel = std::move(made);
           channel->Start({[&](msg::FromWorker message) {
                             ++got;
                             channel->Send(msg::FenceRound{std::get<msg::Level>(message).round});
                           },
                           [&](const Error&) { closed = true; }, nullptr});
         },
         nullptr});
    EXPECT_TRUE(server.ok());
    address.set_value((*server)->address());
    EXPECT_TRUE(RunUntil(io, [&] { return closed; }));
    EXPECT_EQ(got, kMessages);
  });
  boost::asio::io_context io;
  std::unique_ptr<CoordinatorChannel> channel;
  std::uint64_t got = 0;
  ControlClient::Options options;
  options.coordinator = address.get_future().get();
  options.secret = SecretOf('s');
  ControlClient client(io, options, [&](auto connected) {
    ASSERT_TRUE(connected.ok()) << connected.error().message;
    channel = *std::move(connected);
    channel->Send(msg::Hello{});
    for (std::uint64_t i = 0; i < kMessages; ++i) channel->Send(msg::Level{RoundId(i)});
    channel->Start({[&](msg::ToWorker message) {
                      EXPECT_EQ(message, msg::ToWorker(msg::FenceRound{RoundId(got)}));
                      ++got;
                    },
                    [](const Error&) {}, nullptr});
  });
  EXPECT_TRUE(RunUntil(io, [&] { return got == kMessages; }));
  channel = nullptr;
  EXPECT_TRUE(RunUntil(io, [&] { return io.stopped(); }));
  coordinator.join();
}

}  // namespace
}  // namespace lockstep::transport::control
