#include "worker/runtime/operation_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "worker/runtime/task_thread.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The thread that asks is the test's: it runs what is posted to it when it is told to.
class Order : public ::testing::Test {
 protected:
  std::function<std::optional<event::OpDone>()> Numbered(std::uint64_t op) {
    return [this, op] {
      done_.push_back({op, std::this_thread::get_id()});
      event::OpDone done;
      done.op = op;
      return done;
    };
  }
  // Runs the next task that is posted here.
  void RunNext() {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !posted_.empty(); });
      task = std::move(posted_.front());
      posted_.pop_front();
    }
    task();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  std::vector<std::pair<std::uint64_t, std::thread::id>> done_;
  std::vector<std::uint64_t> heard_;
  std::optional<TaskThread> other_{"other"};
  OperationOrder order_{
      {.own =
           [this](std::function<void()> task) {
             const std::lock_guard lock(mutex_);
             posted_.push_back(std::move(task));
             changed_.notify_all();
           },
       .other = [this](std::function<void()> task) { other_->Post(std::move(task)); }},
      [this](const event::OpDone& done) { heard_.push_back(done.op); }};
};

// As an update that the program makes: what comes behind it does not wait for its end.
TEST_F(Order, OneThatGoesOnElsewhereIsHeardOfWhenItEnds) {
  order_.Do(true, [] { return std::nullopt; });
  order_.Do(false, Numbered(2));
  RunNext();
  EXPECT_THAT(heard_, ElementsAre(2));
  event::OpDone first;
  first.op = 1;
  order_.Report(first);
  RunNext();
  EXPECT_THAT(heard_, ElementsAre(2, 1));
  order_.Do(true, Numbered(3));  // nothing is under way any more
  EXPECT_EQ(done_.back().second, std::this_thread::get_id());
  RunNext();
}

TEST_F(Order, ASmallOneIsDoneAtOnceAndHeardOfLater) {
  order_.Do(true, Numbered(1));
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].second, std::this_thread::get_id());
  EXPECT_THAT(heard_, IsEmpty());
  RunNext();
  EXPECT_THAT(heard_, ElementsAre(1));
}

TEST_F(Order, ALargeOneIsDoneElsewhere) {
  order_.Do(false, Numbered(1));
  RunNext();
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_NE(done_[0].second, std::this_thread::get_id());
  EXPECT_THAT(heard_, ElementsAre(1));
}

TEST_F(Order, ASmallOneWaitsForTheLargeOneInFrontOfIt) {
  std::promise<void> go;
  order_.Do(false, [this, may = go.get_future().share()] {
    may.wait();
    return Numbered(1)();
  });
  order_.Do(true, Numbered(2));
  go.set_value();
  RunNext();
  // The second one may be done by now, but is not heard of yet.
  order_.Do(true, Numbered(3));
  RunNext();
  RunNext();
  EXPECT_THAT(heard_, ElementsAre(1, 2, 3));
  ASSERT_EQ(done_.size(), 3u);
  for (std::size_t i = 0; i < done_.size(); ++i) {
    EXPECT_EQ(done_[i].first, i + 1);
    EXPECT_NE(done_[i].second, std::this_thread::get_id());
  }
  order_.Do(true, Numbered(4));
  ASSERT_EQ(done_.size(), 4u);
  EXPECT_EQ(done_[3].second, std::this_thread::get_id());
}

}  // namespace
}  // namespace lockstep::worker
