// Each piece of work is done once, by several threads where there are any, and who asked goes on
// when all of it is done, whether a helper has come or not.
#include "worker/runtime/crew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::worker {
namespace {

TEST(CrewTest, EachPieceIsDoneOnce) {
  Crew crew;
  for (const std::size_t threads : {1, 3, 8, 2, 0}) {
    crew.Use(threads);
    for (const std::size_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> done(count, 0);  // each is written by one thread, and read after all
      crew.ForEach(count, [&](std::size_t i) { ++done[i]; });
      EXPECT_EQ(done, std::vector<int>(count, 1)) << threads << " threads";
    }
  }
}

TEST(CrewTest, AllThreadsWorkAtATime) {
  Crew crew;
  crew.Use(4);
  for (int again = 0; again < 50; ++again) {
    std::latch all(4);  // passed only when four threads are in it
    std::vector<std::thread::id> by(4);
    crew.ForEach(4, [&](std::size_t i) {
      by[i] = std::this_thread::get_id();
      all.arrive_and_wait();
    });
    EXPECT_EQ(std::set(by.begin(), by.end()).size(), 4u);
    EXPECT_THAT(by, testing::Contains(std::this_thread::get_id()));
  }
}

// Helpers that come late find the next operation's work, or none.
TEST(CrewTest, ManyShortOperationsFollowEachOther) {
  Crew crew;
  crew.Use(3);
  for (int again = 0; again < 2000; ++again) {
    std::vector<int> done(2, 0);
    crew.ForEach(2, [&](std::size_t i) { ++done[i]; });
    ASSERT_EQ(done, (std::vector<int>{1, 1}));
  }
}

PeerInfo On(const std::string& host, std::uint32_t id, std::uint32_t incarnation = 1) {
  PeerInfo info;
  info.member = {WorkerId(id), Incarnation(incarnation)};
  info.host_id = host;
  return info;
}

TEST(CrewSizeTest, IsTheShareOfTheHostsProcessors) {
  CrewSize size({.processors = 16, .host_id = "here"});
  EXPECT_EQ(size.threads(), CrewSize::kMostByItself);
  msg::Form form;
  form.connect_to = {On("here", 1), On("there", 2)};
  form.expect = {On("here", 3), On("here", 4)};
  size.Saw(form);
  EXPECT_EQ(size.threads(), 4u);
  EXPECT_EQ(size.Words(),
            "sums and updates by up to 4 threads: 16 processors for 4 workers on this host");
  size.Saw(form);  // once more, as when the job forms anew
  EXPECT_EQ(size.threads(), 4u);
  size.Saw(msg::MemberLeft{{WorkerId(3), Incarnation(1)}, "gone"});
  size.Saw(msg::MemberLeft{{WorkerId(2), Incarnation(1)}, "gone"});
  EXPECT_EQ(size.threads(), 5u);
  form.connect_to.clear();
  form.expect = {On("here", 3, 2)};
  size.Saw(form);
  EXPECT_EQ(size.threads(), 4u);
}

TEST(CrewSizeTest, IsWhatTheEnvironmentSays) {
  msg::Form form;
  form.expect = {On("here", 1), On("here", 2), On("here", 3)};
  CrewSize size({.environment = 3, .processors = 4, .host_id = "here"});
  size.Saw(form);
  EXPECT_EQ(size.threads(), 3u);
  EXPECT_EQ(size.Words(), "sums and updates by up to 3 threads: OMP_NUM_THREADS");
  EXPECT_EQ(CrewSize({.environment = 64, .processors = 64}).threads(), CrewSize::kMostByItself);
  EXPECT_EQ(CrewSize({.configured = 2, .environment = 5}).threads(), 2u);
  EXPECT_EQ(ThreadsOf(nullptr), 0u);
  EXPECT_EQ(ThreadsOf("6"), 6u);
  EXPECT_EQ(ThreadsOf("4,3,2"), 4u);
  for (const char* text : {"", "x", "-2", "4x", "99999999999999"}) EXPECT_EQ(ThreadsOf(text), 0u);
}

TEST(CrewSizeTest, IsOneAtLeastAndWhatWasAskedFor) {
  CrewSize few({.processors = 2, .host_id = "here"});
  msg::Form form;
  form.expect = {On("here", 1), On("here", 2), On("here", 3)};
  few.Saw(form);
  EXPECT_EQ(few.threads(), 1u);
  CrewSize asked({.configured = 12, .processors = 2, .host_id = "here"});
  asked.Saw(form);
  EXPECT_EQ(asked.threads(), 12u);
  EXPECT_EQ(asked.Words(), "sums and updates by up to 12 threads: exchange.threads");
}

}  // namespace
}  // namespace lockstep::worker
