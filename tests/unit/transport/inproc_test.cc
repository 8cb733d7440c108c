// The faults of the in-process transport. That it keeps the contract is tests/conformance's to
// show.
#include "transport/inproc/inproc.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <string>

namespace lockstep::transport {
namespace {

class End : public Handler {
 public:
  End(InprocNetwork& network, std::uint32_t worker) : memory(1000, static_cast<std::byte>(worker)) {
    Options options;
    options.self = {WorkerId(worker), Incarnation(1)};
    options.job_key.assign(32, std::byte{1});
    transport = network.MakeTransport(options);
    EXPECT_TRUE(transport->Start(this).ok());
    Run([this] { region = *transport->Register(MemoryKind::kHost, memory.data(), memory.size()); });
  }
  ~End() override { transport->Stop(); }

  template <class Task>
  void Run(Task task) {
    std::promise<void> finished;
    transport->Post([&] {
      task();
      finished.set_value();
    });
    finished.get_future().wait();
  }
  bool Send(std::string_view text) {
    bool sent = false;
    Run([&] { sent = transport->Send(peer, std::as_bytes(std::span(text))); });
    return sent;
  }
  void Fetch() {
    Run([&] {
      PieceName name;
      name.bytes = memory.size();
      EXPECT_TRUE(transport->Fetch(peer, name, {region, 0, memory.size()}).ok());
    });
  }
  template <class Predicate>
  bool Await(Predicate holds) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), holds);
  }
  template <class Predicate>
  bool Holds(Predicate holds) {
    const std::lock_guard lock(mutex);
    return holds();
  }

  void OnPeerUp(PeerId id, const MemberId&, const PathReport&) override {
    Change([&] { peer = id; });
  }
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(PeerId, const Error&) override {
    Change([&] { ++downs; });
  }
  void OnMessage(PeerId, std::span<const std::byte>) override {
    Change([&] { message_at = MonotonicNow(), ++messages; });
  }
  ServeAnswer OnFetch(PeerId, const PieceName& name) override {
    return {.have = true, .slice = {region, 0, name.bytes}};
  }
  void OnServed(PeerId, std::uint64_t) override {
    Change([&] { ++served; });
  }
  void OnFetchDone(FetchId, FetchStatus) override {
    Change([&] { done_at = MonotonicNow(), ++done; });
  }
  template <class Function>
  void Change(Function function) {
    {
      const std::lock_guard lock(mutex);
      function();
    }
    changed.notify_all();
  }

  std::unique_ptr<Transport> transport;
  std::vector<std::byte> memory;
  RegionId region;
  std::mutex mutex;
  std::condition_variable changed;
  PeerId peer;
  int downs = 0, messages = 0, served = 0, done = 0;
  Time message_at, done_at;
};

class InprocTest : public ::testing::Test {
 protected:
  void SetUp() override {
    a_.Run([this] { a_.transport->Connect({kB, Incarnation(1)}, b_.transport->address()); });
    ASSERT_TRUE(a_.Await([this] { return a_.peer != PeerId(); }));
    ASSERT_TRUE(b_.Await([this] { return b_.peer != PeerId(); }));
  }

  const WorkerId kA{1};
  const WorkerId kB{2};
  std::shared_ptr<InprocNetwork> network_ = InprocNetwork::Make();
  End a_{*network_, 1};
  End b_{*network_, 2};
};

TEST_F(InprocTest, ADelayedMessageArrivesNotBeforeItsTimeAndNotOutOfOrder) {
  const auto delay = std::chrono::milliseconds(50);
  network_->DelayMessages(kA, kB, delay);
  const Time sent = MonotonicNow();
  ASSERT_TRUE(a_.Send("slow"));
  network_->DelayMessages(kA, kB, Duration(0));
  ASSERT_TRUE(a_.Send("fast, but behind the slow one"));
  ASSERT_TRUE(b_.Await([&] { return b_.messages == 2; }));
  EXPECT_GE(b_.message_at - sent, delay);
}

TEST_F(InprocTest, ADelayedBodyPinsItsSourceUntilItHasArrived) {
  const auto delay = std::chrono::milliseconds(50);
  network_->DelayBodies(kB, kA, delay);
  const Time asked = MonotonicNow();
  a_.Fetch();
  ASSERT_TRUE(b_.Await([&] { return b_.served == 1; }));
  EXPECT_GE(MonotonicNow() - asked, delay);
  ASSERT_TRUE(a_.Await([&] { return a_.done == 1; }));
  EXPECT_GE(a_.done_at - asked, delay);
  EXPECT_EQ(a_.memory, b_.memory);
}

TEST_F(InprocTest, ADroppedConnectionIsSeenByBothEnds) {
  network_->DropConnections(kA, kB);
  EXPECT_TRUE(a_.Await([&] { return a_.downs == 1; }));
  EXPECT_TRUE(b_.Await([&] { return b_.downs == 1; }));
}

TEST_F(InprocTest, AStalledPeerDoesNothingUntilItIsReleased) {
  network_->Stall(kB, true);
  ASSERT_TRUE(a_.Send("hello"));
  a_.Fetch();
  EXPECT_EQ(a_.Holds([&] { return a_.done; }), 0);
  EXPECT_EQ(b_.Holds([&] { return b_.messages; }), 0);
  network_->Stall(kB, false);
  EXPECT_TRUE(a_.Await([&] { return a_.done == 1; }));
  EXPECT_TRUE(b_.Await([&] { return b_.messages == 1 && b_.served == 1; }));
}

TEST_F(InprocTest, AStalledReceiverPinsWhatIsServedToIt) {
  network_->DelayBodies(kB, kA, std::chrono::milliseconds(20));
  a_.Fetch();
  network_->Stall(kA, true);
  // The delay is over and the body is due; only the receiver could take it.
  std::promise<void> later;
  b_.Run([&] {
    b_.transport->PostAt(MonotonicNow() + std::chrono::milliseconds(60),
                         [&] { later.set_value(); });
  });
  later.get_future().wait();
  EXPECT_EQ(b_.Holds([&] { return b_.served; }), 0);
  network_->Stall(kA, false);
  EXPECT_TRUE(b_.Await([&] { return b_.served == 1; }));
}

TEST_F(InprocTest, RefusedSendsAreRefusedInOneDirection) {
  network_->RefuseSends(kA, kB, true);
  EXPECT_FALSE(a_.Send("no"));
  EXPECT_TRUE(b_.Send("yes"));
  network_->RefuseSends(kA, kB, false);
  EXPECT_TRUE(a_.Send("now"));
}

TEST_F(InprocTest, StopEndsAStall) {
  network_->Stall(kB, true);
  b_.transport->Stop();
  EXPECT_TRUE(a_.Await([&] { return a_.downs == 1; }));
}

}  // namespace
}  // namespace lockstep::transport
