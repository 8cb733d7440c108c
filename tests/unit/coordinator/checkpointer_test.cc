// What becomes of a checkpoint whose writer is out before the round is closed, where the
// optimizer's state is shared out and nobody confirms it.
#include "coordinator/core/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "policies/registry.h"
#include "tests/unit/coordinator/member_states.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint64_t kNumbersOfEach = 4;

class CheckpointerTest : public ::testing::Test {
 protected:
  CheckpointerTest() : job_(Start(), *policies::MakePolicy(PolicySection(), 4), 1), it_(&job_) {
    Edit(job_.out) = &actions_;
    Edit(job_.agreed).parameter_count = kNumbersOfEach;
    Edit(job_.agreed).state_tensors = 1;
    for (std::uint32_t w = 0; w < 4; ++w) {
      Member* member = job_.members.TakeSlot(std::nullopt, ConnectionId(w + 1), Time{});
      Bring(job_.members, *member, MemberState::kLive, Time{});
    }
    commit_.round = RoundId(7);
    commit_.parts = {{At(2).id, PartIndex(0), 1, 8}};
  }
  static StartParameters Start() {
    StartParameters start;
    start.workers = 4;
    start.config.optimizer.replicas = 2;
    start.config.checkpoint.every_rounds = 1;
    return start;
  }
  Member& At(std::uint32_t worker) { return job_.members.at(WorkerId(worker)); }
  std::optional<MemberId> Commit(bool last) {
    return it_.AtCommit(commit_, Sampler(16, 8, 8), /*epoch_ended=*/false, last);
  }
  void Write(std::uint32_t tensors) {
    for (std::uint32_t t = 0; t < tensors; ++t) {
      msg::StateChunk chunk{commit_.round, t, 0, t == 1, {}};
      chunk.bytes.resize(kNumbersOfEach * sizeof(float));
      ASSERT_TRUE(it_.OnStateChunk(At(2), std::move(chunk)).ok());
    }
  }
  void Leave(bool doubtful) {
    const MemberId id = At(2).id;
    job_.members.Free(At(2), job_.now());
    it_.OnOut(id, doubtful);
  }
  template <class What>
  bool Asked() const {
    return std::ranges::any_of(
        actions_, [](const Action& action) { return std::holds_alternative<What>(action); });
  }

  Actions actions_;
  Job job_;
  Checkpointer it_;
  msg::Commit commit_;
};

TEST_F(CheckpointerTest, IsSavedWhenTheRoundIsClosed) {
  ASSERT_EQ(Commit(/*last=*/false), At(2).id);
  Write(2);
  Leave(/*doubtful=*/false);
  EXPECT_TRUE(it_.running());
  it_.OnClosed(commit_.round);
  EXPECT_TRUE(Asked<SaveCheckpoint>());
  EXPECT_FALSE(Asked<DropCheckpoint>());
  it_.CheckInvariants();
}

TEST_F(CheckpointerTest, IsNotWrittenAgainWhenTheRoundBecomesTheLast) {
  ASSERT_EQ(Commit(/*last=*/false), At(2).id);
  Write(2);
  Leave(/*doubtful=*/false);
  EXPECT_EQ(Commit(/*last=*/true), std::nullopt);
  it_.OnClosed(commit_.round);
  EXPECT_TRUE(Asked<SaveCheckpoint>());
  EXPECT_FALSE(Asked<DropCheckpoint>());
}

TEST_F(CheckpointerTest, IsWrittenAgainInAFurtherAttempt) {
  ASSERT_EQ(Commit(/*last=*/true), At(2).id);
  Write(2);
  Leave(/*doubtful=*/false);
  commit_.attempt = commit_.attempt.Next();
  EXPECT_EQ(Commit(/*last=*/true), At(0).id);
  EXPECT_TRUE(Asked<DropCheckpoint>());
}

TEST_F(CheckpointerTest, IsWrittenAgainWhenItWasNotWhole) {
  ASSERT_EQ(Commit(/*last=*/true), At(2).id);
  Write(1);
  Leave(/*doubtful=*/false);
  EXPECT_FALSE(it_.running());
  EXPECT_EQ(Commit(/*last=*/true), At(0).id);
}

TEST_F(CheckpointerTest, IsLoggedForPeopleAtMostOnceAMinute) {
  using std::chrono::seconds;
  std::vector<LogLevel> levels;
  for (const seconds at : {seconds(1), seconds(60), seconds(61), seconds(62)}) {
    actions_.clear();
    Edit(job_.now) = Time(at);
    it_.OnSaved(RoundId(static_cast<std::uint64_t>(at.count())), "");
    for (const Action& action : actions_) {
      if (const auto* line = std::get_if<LogLine>(&action)) levels.push_back(line->level);
    }
  }
  EXPECT_THAT(levels, ::testing::ElementsAre(LogLevel::kInfo, LogLevel::kDebug, LogLevel::kInfo,
                                             LogLevel::kDebug));
}

TEST_F(CheckpointerTest, IsNotKeptFromOneThatIsInDoubt) {
  ASSERT_EQ(Commit(/*last=*/true), At(2).id);
  Write(2);
  Leave(/*doubtful=*/true);
  EXPECT_FALSE(it_.running());
  EXPECT_TRUE(Asked<DropCheckpoint>());
}

}  // namespace
}  // namespace lockstep::coordinator
