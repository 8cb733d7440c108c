#include "worker/runtime/round_times.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::worker {
namespace {

Time At(std::int64_t us) { return Time(std::chrono::microseconds(us)); }
std::int64_t Ns(std::int64_t us) { return At(us).time_since_epoch().count(); }

class RoundTimesTest : public ::testing::Test {
 protected:
  void Commit(std::int64_t us, std::uint64_t round) {
    msg::Commit commit;
    commit.round = RoundId{round};
    clock_.Saw(At(us), Event(event::FromCoordinator{commit}));
  }
  void Reduced(std::int64_t us, std::uint64_t op) {
    event::OpDone done;
    done.op = op;
    clock_.Saw(At(us), Event(done));
  }
  void Reduce(std::uint64_t op, std::uint64_t round) {
    action::Reduce reduce;
    reduce.op = op;
    reduce.round = RoundId{round};
    clock_.Saw(At(0), Action(reduce));
  }
  void Apply(std::int64_t us, std::uint64_t round) {
    action::Apply apply;
    apply.round = RoundId{round};
    clock_.Saw(At(us), Action(apply));
  }
  template <class Message>
  void Tell(std::int64_t us, Message message, std::uint64_t round) {
    message.round = RoundId{round};
    clock_.Saw(At(us), Action(action::ToCoordinator{std::move(message)}));
  }
  void Sealed(std::int64_t us, std::uint64_t round) {
    msg::Sealed sealed;
    sealed.sealed_ns = Ns(us);
    Tell(us + 1, sealed, round);
  }
  void Applied(std::int64_t us, std::uint64_t round) {
    msg::Applied applied;
    applied.applied_ns = Ns(us);
    Tell(us + 1, applied, round);
  }
  void Copies(std::uint64_t floats) {
    action::Fetch fetch;
    fetch.to.range.count = floats;
    clock_.Saw(At(0), Action(fetch));
  }

  std::vector<RoundTimes> reported_;
  RoundClock clock_{[this](const RoundTimes& times) { reported_.push_back(times); }};
};

TEST_F(RoundTimesTest, ARoundIsReportedWhenItIsApplied) {
  Sealed(10, 4);
  Copies(5);
  Tell(20, msg::Receipts(), 4);
  Commit(30, 4);
  Reduce(7, 4);
  Reduced(35, 6);  // another operation
  Reduced(40, 7);
  Tell(50, msg::Published(), 4);
  const std::array<std::byte, 12> bytes = {};
  clock_.Saw(At(55), Action(action::StoreInline{.to = {}, .bytes = bytes}));
  Apply(60, 4);
  EXPECT_TRUE(reported_.empty());
  Applied(70, 4);
  ASSERT_EQ(reported_.size(), 1u);
  const RoundTimes& times = reported_[0];
  EXPECT_EQ(times.round, RoundId{4});
  EXPECT_EQ(times.sealed, At(10));
  EXPECT_EQ(times.delivered, At(20));
  EXPECT_EQ(times.committed, At(30));
  EXPECT_EQ(times.reduced, At(40));
  EXPECT_EQ(times.published, At(50));
  EXPECT_EQ(times.taken, At(60));
  EXPECT_EQ(times.applied, At(70));
  EXPECT_EQ(times.copied, 5 * sizeof(float) + 12);
}

TEST_F(RoundTimesTest, WhatIsSealedAheadIsKeptAndWhatWasNeverAppliedIsForgotten) {
  Commit(10, 1);
  Copies(3);
  Sealed(12, 3);
  Applied(20, 2);
  Applied(30, 3);
  ASSERT_EQ(reported_.size(), 2u);
  EXPECT_EQ(reported_[0].committed, Time());
  EXPECT_EQ(reported_[0].copied, 3 * sizeof(float));
  EXPECT_EQ(reported_[1].sealed, At(12));
  EXPECT_EQ(reported_[1].copied, 0u);
}

TEST_F(RoundTimesTest, FewRoundsAreOpenAtATime) {
  for (std::uint64_t round = 1; round <= 9; ++round) Commit(10, round);
  Applied(20, 1);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_EQ(reported_[0].committed, Time()) << "the oldest gave way to the ninth";
}

}  // namespace
}  // namespace lockstep::worker
