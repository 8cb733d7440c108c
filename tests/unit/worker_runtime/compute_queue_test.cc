// What the compute thread hears of commits, in whatever order they come.

#include "worker/runtime/compute_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

namespace lockstep::worker {
namespace {

class CommittedCountsTest : public ::testing::Test {
 protected:
  void Commit(std::uint64_t round, std::uint32_t attempt, double loss) {
    msg::Commit commit;
    commit.round = RoundId(round);
    commit.attempt = Attempt(attempt);
    commit.loss = loss;
    queue_.Committed(commit);
  }
  double LossAtUpdate(std::uint64_t round) {
    ProgramUpdate update;
    update.round = RoundId(round);
    queue_.Update(update);
    const ComputeQueue::Pick pick = queue_.Next(Duration::max());
    EXPECT_EQ(pick.kind, ComputeQueue::Pick::Kind::kUpdate);
    return pick.counts ? pick.counts->loss : -1;
  }

  ComputeQueue queue_;
};

TEST_F(CommittedCountsTest, AnUpdateComesWithThoseOfItsOwnRound) {
  for (std::uint64_t round = 0; round < 4; ++round) Commit(round, 0, static_cast<double>(round));
  EXPECT_EQ(LossAtUpdate(2), 2);
  EXPECT_EQ(LossAtUpdate(3), 3);
}

// A worker that was behind is told of a round when it is to take its sums.
TEST_F(CommittedCountsTest, OneThatIsToldLateIsKnownAtItsUpdate) {
  Commit(5, 0, 5);
  Commit(3, 0, 3);
  Commit(4, 0, 4);
  Commit(4, 0, 40);  // the same once more
  EXPECT_EQ(LossAtUpdate(3), 3);
  EXPECT_EQ(LossAtUpdate(4), 4);
  EXPECT_EQ(LossAtUpdate(5), 5);
}

TEST_F(CommittedCountsTest, ALaterAttemptTakesThePlaceOfAnEarlierOneAlsoIfThatComesLast) {
  Commit(3, 1, 31);
  Commit(3, 0, 30);
  EXPECT_EQ(LossAtUpdate(3), 31);
}

TEST_F(CommittedCountsTest, OfARoundThatIsNotKnownItIsTheNewest) {
  for (std::uint64_t round = 0; round < 40; ++round) Commit(round, 0, static_cast<double>(round));
  Commit(1, 0, 1);  // so old that nobody needs it
  EXPECT_EQ(LossAtUpdate(1), 39);
  EXPECT_EQ(LossAtUpdate(39), 39);
}

}  // namespace
}  // namespace lockstep::worker
