// Fetches that the transport refuses for a while.
#include "worker/runtime/fetch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Takes as many fetches as it has room; its turns are the test's.
class FakeTransport final : public transport::Transport {
 public:
  Status Start(transport::Handler*) override { return {}; }
  void Stop() override {}
  void Post(std::function<void()> task) override { posted.push_back(std::move(task)); }
  void PostAt(Time, std::function<void()> task) override { timers.push_back(std::move(task)); }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return {}; }
  void Connect(const MemberId&, const std::string&) override {}
  void Close(transport::PeerId, std::string reason) override { closed.push_back(reason); }
  Result<transport::RegionId> Register(transport::MemoryKind, void*, std::size_t) override {
    return transport::RegionId(1);
  }
  void Unregister(transport::RegionId) override {}
  bool Send(transport::PeerId, std::span<const std::byte>) override { return true; }
  Result<transport::FetchId> Fetch(transport::PeerId, const PieceName& name,
                                   const transport::Slice&) override {
    ++tries;
    if (down) return Error{ErrorCode::kClosed, "down"};
    if (room == 0) return Error{ErrorCode::kUnavailable, "full"};
    --room;
    fetched.push_back(name.offset);
    return transport::FetchId(++last_);
  }
  void GiveUp(transport::FetchId fetch) override { given_up.push_back(fetch.value); }
  void Provide(transport::PeerId, std::uint64_t, const transport::Slice&) override {}

  // What is due now; nothing that these bring about.
  void RunPosted() { RunAll(&posted); }
  void RunTimers() { RunAll(&timers); }

  std::size_t room = 2;
  bool down = false;
  int tries = 0;
  std::vector<std::uint64_t> fetched;   // offsets
  std::vector<std::uint64_t> given_up;  // ids
  std::vector<std::string> closed;
  std::deque<std::function<void()>> posted;
  std::deque<std::function<void()>> timers;

 private:
  static void RunAll(std::deque<std::function<void()>>* tasks) {
    for (auto& task : std::exchange(*tasks, {})) task();
  }
  transport::Capabilities capabilities_;
  std::uint64_t last_ = 0;
};

struct FetchQueueTest : ::testing::Test {
  void Fetch(std::uint64_t number) {
    queue.Fetch(kPeer, number, {.offset = number, .bytes = 8}, {transport::RegionId(1), 0, 8});
  }
  bool Done(std::uint64_t id, FetchStatus status = FetchStatus::kOk) {
    return queue.OnFetchDone(transport::FetchId(id), status);
  }

  static constexpr transport::PeerId kPeer{7};
  FakeTransport transport;
  std::vector<std::pair<std::uint64_t, FetchStatus>> reports;
  Duration patience = std::chrono::hours(1);
  FetchQueue queue{transport, patience, [this](std::uint64_t number, FetchStatus status) {
                     reports.emplace_back(number, status);
                   }};
};

TEST_F(FetchQueueTest, WhatIsRefusedForNowWaitsAndKeepsItsOrder) {
  for (std::uint64_t number = 1; number <= 5; ++number) Fetch(number);
  EXPECT_THAT(transport.fetched, ElementsAre(1, 2));
  EXPECT_EQ(transport.tries, 3);  // the ones behind it are not even tried
  EXPECT_EQ(queue.waiting(kPeer), 3u);
  transport.RunPosted();
  EXPECT_THAT(reports, IsEmpty());
  transport.room = 1;
  EXPECT_TRUE(Done(1));
  EXPECT_THAT(transport.fetched, ElementsAre(1, 2, 3));
  EXPECT_THAT(reports, ElementsAre(Pair(1, FetchStatus::kOk)));
  transport.room = 9;
  transport.RunTimers();
  EXPECT_THAT(transport.fetched, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(queue.waiting(kPeer), 0u);
  EXPECT_TRUE(transport.timers.empty());  // nothing waits, nobody looks
  EXPECT_THAT(transport.closed, IsEmpty());
  EXPECT_FALSE(Done(99));  // not the machine's
}

TEST_F(FetchQueueTest, ManyQueuesOneAfterAnotherKeepOneTimer) {
  transport.room = 0;
  for (std::uint64_t number = 1; number <= 50; ++number) {
    Fetch(number);
    queue.GiveUp(number);
    transport.room = 0;
    transport.RunTimers();
  }
  Fetch(100);
  Fetch(101);
  for (int i = 0; i < 5; ++i) transport.RunTimers();
  EXPECT_EQ(transport.timers.size(), 1u);
}

TEST_F(FetchQueueTest, GivenUpItEndsOnceWhereverItIs) {
  for (std::uint64_t number = 1; number <= 4; ++number) Fetch(number);
  queue.GiveUp(1);
  EXPECT_THAT(transport.given_up, ElementsAre(1));
  queue.GiveUp(3);
  EXPECT_THAT(reports, IsEmpty());  // never from within
  transport.RunPosted();
  EXPECT_THAT(reports, ElementsAre(Pair(3, FetchStatus::kGivenUp)));
  EXPECT_TRUE(Done(1, FetchStatus::kGivenUp));
  transport.room = 5;
  transport.RunTimers();
  EXPECT_THAT(transport.fetched, ElementsAre(1, 2, 4));
}

TEST_F(FetchQueueTest, APeerThatIsDownIsNotWaitedFor) {
  for (std::uint64_t number = 1; number <= 4; ++number) Fetch(number);
  transport.down = true;
  queue.OnPeerDown(kPeer);
  EXPECT_THAT(reports,
              ElementsAre(Pair(3, FetchStatus::kPeerDown), Pair(4, FetchStatus::kPeerDown)));
  Fetch(5);
  queue.Refuse(6);
  EXPECT_EQ(reports.size(), 2u);
  transport.RunPosted();
  EXPECT_EQ(reports.size(), 4u);
  EXPECT_EQ(queue.waiting(kPeer), 0u);
}

struct ImpatientFetchQueueTest : FetchQueueTest {
  ImpatientFetchQueueTest() : hasty(transport, Duration{}, [](std::uint64_t, FetchStatus) {}) {}
  FetchQueue hasty;
};

TEST_F(ImpatientFetchQueueTest, WhoAnswersNothingIsClosedInTheEnd) {
  transport.room = 0;
  hasty.Fetch(kPeer, 1, {.bytes = 8}, {transport::RegionId(1), 0, 8});
  EXPECT_THAT(transport.closed, IsEmpty());
  transport.RunTimers();
  EXPECT_EQ(transport.closed.size(), 1u);
  EXPECT_TRUE(transport.timers.empty());
}

}  // namespace
}  // namespace lockstep::worker
