// How long a job that has begun waits with too few workers, and what it says when it gives up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/resume_rules.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Who is there answers, for so long or until the job is over; how many seconds that were.
int Wait(Story* s, int seconds, const std::vector<std::uint32_t>& there) {
  for (int waited = 0; waited < seconds; ++waited) {
    s->Wait(1);
    if (s->finished()) return waited;
    for (const std::uint32_t worker : there) s->Pong(worker);
  }
  return seconds;
}

TEST(Quorum, IsNotWaitedForForEver) {
  Story s("test", {.min_workers = 3, .quorum_timeout_s = 60});
  s.Begin();
  s.From(1, msg::Leave{"ValueError: bad"});
  s.Die(2);
  s.Sealed(0);
  EXPECT_THAT(s.Status().waiting_for, HasSubstr("waiting for worker 1, 2, for at most 60s"));
  EXPECT_NEAR(Wait(&s, 200, {0}), 60, 1);
  ASSERT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("job failed: 1 of at least 3 workers have been there for 60s "
                                  "(job.quorum_timeout); missing: worker 1 (it leaves: ValueError: "
                                  "bad), worker 2 (connection closed);"));
  EXPECT_THAT(s.text(), Not(HasSubstr("can be resumed")));
}

TEST(Quorum, WhoIsMissingIsSaidBeforeTheJobHasBegun) {
  Story s("test", {.workers = 4});
  s.Hello(0, 0);
  s.Hello(2, 2);
  s.Ready(0);
  EXPECT_EQ(s.Status().waiting_for,
            "waiting for at most 60s (job.join_timeout): worker 1 is not there, worker 2 is not "
            "ready, worker 3 is not there");
  s.Ready(2);
  for (std::uint32_t w : {1u, 3u}) {
    s.Hello(w, w);
    s.Ready(w);
  }
  s.Reached(0);
  s.Reached(3);
  EXPECT_EQ(s.Status().waiting_for, "waiting for worker 1, 2 to connect to the others");
}

// Nobody is left, and the reason says of each why.
TEST(Quorum, WhereAllAreLostNoCheckpointIsPromisedThatIsNotThere) {
  Story s("test", {.workers = 2});
  s.Begin();
  s.Die(0);
  s.Die(1);
  ASSERT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("job failed: no worker holds the parameters any more; missing: "
                                  "worker 0 (connection closed), worker 1 (connection closed);"));
  EXPECT_THAT(s.text(), Not(HasSubstr("can be resumed")));
}

TEST(Quorum, IsWaitedForForEverWhereTheJobIsToldSo) {
  Story s("test", {.min_workers = 3, .quorum_timeout_s = 0});
  s.Begin();
  s.Die(1);
  s.Sealed(0);
  s.Sealed(2);
  EXPECT_THAT(s.Status().waiting_for, HasSubstr("waiting for worker 1"));
  EXPECT_THAT(s.Status().waiting_for, Not(HasSubstr("at most")));
  Wait(&s, 7200, {0, 2});
  EXPECT_FALSE(s.finished());
}

TEST(Quorum, IsWaitedForAnewWhenItWasThereMeanwhile) {
  Story s("test", {.workers = 2, .min_workers = 2, .quorum_timeout_s = 60});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  s.Die(1);
  s.Sealed(0);
  Wait(&s, 50, {0});
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(1);
  s.From(1, msg::Level{RoundId(0)});
  ASSERT_EQ(s.Commit(0).round, RoundId(1));
  s.Published(0);
  for (std::uint32_t w : {0u, 1u}) s.Applied(w);
  s.Die(1);
  s.Sealed(0);
  EXPECT_NEAR(Wait(&s, 200, {0}), 60, 1);
  EXPECT_THAT(s.text(), HasSubstr("for 60s (job.quorum_timeout); missing: worker 1"));
}

// A quorum guards against the loss of workers; one that is late is not lost.
TEST(Quorum, AWorkerThatIsBehindIsThere) {
  Story s("test", {.workers = 3, .min_workers = 3});
  s.Begin();
  s.From(2, msg::Behind{RoundId(0), false, "9 rounds wait to be applied"});
  s.Sealed(0);
  s.Sealed(1);
  EXPECT_EQ(s.Commit(0).round, RoundId(0));
  EXPECT_THAT(s.text(), Not(HasSubstr("of at least 3 workers")));
}

TEST(Quorum, TheSettingThatWouldDoWithoutTheMissingIsSaid) {
  Story s("test", {.workers = 3, .min_workers = 3});
  s.Begin();
  s.Die(2);
  s.Sealed(0);
  s.Sealed(1);
  EXPECT_THAT(s.Status().waiting_for,
              HasSubstr("2 of at least 3 workers are there; waiting for worker 2"));
  EXPECT_THAT(s.Status().waiting_for, HasSubstr("job.min_workers = 2"));
}

// Who copies is not there yet, and the line says where it is.
TEST(Quorum, WhoHasNotCaughtUpIsMissing) {
  Story s("test", {.workers = 2, .min_workers = 2, .quorum_timeout_s = 3});
  s.Begin();
  s.Die(1);
  s.Hello(1, 1);
  Wait(&s, 10, {0, 1});
  ASSERT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("missing: worker 1 (joining)"));
}

JobState Saved() {
  JobState state;
  state.next_round = RoundId(7);
  state.updates = state.totals.rounds = 7;
  state.sampler = {120, Epoch(1), {{4, 8}, {96, 120}}};
  state.dataset_digest = "abc";
  state.parameter_count = 2;
  state.state_tensors = 1;
  state.settings = SettingsToRemember(JobConfig());
  return state;
}

// Before a round is closed it waits as long as a start does: nothing is lost.
TEST(Quorum, OfAResumedJobIsTheStartsAtFirst) {
  Story s("test", {.workers = 2, .min_workers = 2, .quorum_timeout_s = 300, .resume = Saved()});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::CheckpointTaken{16});
  s.Die(1);
  EXPECT_NEAR(Wait(&s, 400, {0}), 60, 1);
  EXPECT_THAT(s.text(), HasSubstr("for 60s (job.join_timeout); missing: worker 1 (connection "
                                  "closed); the job can be resumed from its checkpoint after "
                                  "round 6"));
}

TEST(Quorum, OfAResumedJobIsThatOfEveryJobOnceARoundIsClosed) {
  Story s("test", {.workers = 2, .min_workers = 2, .quorum_timeout_s = 300, .resume = Saved()});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::CheckpointTaken{16});
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
    s.AllPublishAndApply({0, 1});
  }
  s.Die(1);
  s.Sealed(0);
  EXPECT_NEAR(Wait(&s, 400, {0}), 300, 1);
  EXPECT_THAT(s.text(), HasSubstr("for 300s (job.quorum_timeout); missing: worker 1"));
}

}  // namespace
}  // namespace lockstep::coordinator
