// What a person reads of a running job.
#include "coordinator/shell/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/resume_rules.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

MemberStatus Member(std::uint32_t worker, MemberState state) {
  MemberStatus status;
  status.member = {WorkerId(worker), Incarnation(1)};
  status.state = state;
  return status;
}

TEST(ProgressLine, SaysWhatIsKnown) {
  JobStatus status;
  status.phase = Phase::kTraining;
  status.epoch = Epoch(2);
  status.round = RoundId(418);
  status.loss = 0.3127;
  status.test_accuracy = 0.874;
  status.samples_per_second = 31'200;
  status.workers = 1;
  status.taking_part = 1;
  status.members = {Member(0, MemberState::kLive)};
  status.waiting_for = "waiting for worker 0";
  EXPECT_EQ(ProgressText(status),
            "epoch 2  round 418  loss 0.3127  test 87.40 %  31.2 k samples/s  1 of 1 workers  "
            "waiting for worker 0");
  status.phase = Phase::kGathering;
  EXPECT_EQ(ProgressText(status), "gathering: waiting for worker 0");
}

TEST(ProgressLine, NamesTheOneThatIsMissingAndCountsSeveral) {
  JobStatus status;
  status.phase = Phase::kTraining;
  status.workers = 5;
  status.taking_part = 4;
  const auto set = [&status](std::vector<std::pair<std::uint32_t, MemberState>> members) {
    status.members.clear();
    for (const auto& [worker, state] : members) {
      status.members.push_back(Member(worker, state));
    }
  };
  constexpr auto kLive = MemberState::kLive;
  set({{0, kLive}, {1, kLive}, {3, kLive}, {4, kLive}});  // a slot that nobody ever had
  EXPECT_THAT(ProgressText(status), HasSubstr("  4 of 5 workers (worker 2 is missing)"));
  set({{0, kLive}, {1, kLive}, {2, kLive}, {3, kLive}, {4, MemberState::kCatchingUp}});
  EXPECT_THAT(ProgressText(status), HasSubstr("  4 of 5 workers (worker 4 is catching up)"));
  set({{0, kLive}, {1, MemberState::kLost}, {2, MemberState::kBehind}, {3, kLive}});
  status.taking_part = 2;
  EXPECT_THAT(ProgressText(status), HasSubstr("  2 of 5 workers (1 is behind, 2 are missing)"));
}

// Two rounds later a lost worker has no units, so no commit leaves it out.
TEST(ProgressLine, CountsWhoIsLostUntilItIsReplaced) {
  Story s("", {});
  s.Begin();
  s.OrdinaryRounds(1);
  EXPECT_THAT(ProgressText(s.Status()),
              AllOf(HasSubstr("  3 of 3 workers"), Not(HasSubstr("workers ("))));
  s.Die(2);
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  2 of 3 workers (worker 2 is missing)"));
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
    s.AllPublishAndApply({0, 1});
  }
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  2 of 3 workers (worker 2 is missing)"));
  s.Hello(2, 2);
  s.Ready(2);
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  2 of 3 workers (worker 2 is forming)"));
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  2 of 3 workers (worker 2 is catching up)"));
  s.From(2, msg::Level{s.Commit(0).round});
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  3 of 3 workers"));
}

TEST(ProgressLine, AResumedJobIsWhereItGoesOn) {
  JobState state;
  state.next_round = RoundId(7);
  state.updates = 7;
  state.sampler = {120, Epoch(1), {{4, 8}, {96, 120}}};
  state.dataset_digest = "abc";
  state.parameter_count = 2;
  state.state_tensors = 1;
  state.settings = SettingsToRemember(JobConfig());
  Story s("", {.workers = 2, .resume = state});
  for (const bool begun : {false, true}) {
    if (begun) s.Begin();
    const JobStatus status = s.Status();
    EXPECT_EQ(status.epoch, Epoch(1)) << begun;
    EXPECT_EQ(status.round, RoundId(7)) << begun;
    EXPECT_EQ(status.updates, 7u) << begun;
  }
}

TEST(ProgressLine, SaysWhatTheEndWaitsFor) {
  Story s("", {.rounds = 1, .test_samples = 12});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  EXPECT_THAT(ProgressText(s.Status()), EndsWith("  waiting for the last evaluation"));
  for (std::uint32_t i = 0; i < 12; ++i) {
    s.From(i % 3, msg::EvaluationResult{1, {i, i + 1}, 1.0, 1});
  }
  EXPECT_THAT(ProgressText(s.Status()),
              EndsWith("  waiting for worker 0, which writes the last checkpoint"));
  s.Upload(0, 0, true);
  s.TellState(0, 0, true);
  s.TellState(1, 0);
  s.TellState(2, 0);
  EXPECT_THAT(ProgressText(s.Status()),
              EndsWith("  waiting for worker 1, which writes the last checkpoint"));
  s.Upload(1, 0);
  s.TellState(1, 0);
  s.TellState(2, 0);
  s.Saved(0);
  EXPECT_THAT(ProgressText(s.Status()), EndsWith("  waiting for worker 0, which catches up"));
  s.From(0, msg::Pong{0, 0, 0});
  s.From(0, msg::Level{RoundId(0)});
  EXPECT_THAT(ProgressText(s.Status()),
              EndsWith("  waiting for worker 0 to say what it ends with"));
}

TEST(Status, SaysTheMemoryThatAWorkerHasSaid) {
  Story s("", {});
  s.Begin();
  const auto pong = [&](std::uint64_t bytes) { s.From(1, msg::Pong{0, 0, 0, bytes}); };
  EXPECT_EQ(s.Status().members[1].resident_bytes, 0u);
  pong(1 << 20);
  EXPECT_EQ(s.Status().members[1].resident_bytes, 1u << 20);
  pong(0);  // says nothing of it
  EXPECT_EQ(s.Status().members[1].resident_bytes, 1u << 20);
  EXPECT_EQ(s.Status().members[0].resident_bytes, 0u);
  s.Die(1);
  EXPECT_EQ(s.Status().members[1].resident_bytes, 0u) << "there is no process";
}

// Each as it says with what it has applied, whether or not its work was counted.
TEST(Status, SaysHowReadingKeepsUp) {
  Story s("", {});
  s.Begin();
  s.Wait(1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w, 1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  const auto applied = [&](std::uint32_t worker, const msg::RunTotals& runs) {
    const msg::Commit& commit = s.Commit(worker);
    s.From(worker, msg::Applied{commit.round, commit.attempt, 0, 0xd, 0, runs});
  };
  applied(0, {8, 200'000'000, {}});
  applied(1, {8, 200'000'000, {50'000'000, 7}});
  applied(2, {8, std::int64_t{1} << 60, {std::uint64_t{1} << 60, {}}});  // longer than the job
  auto members = s.Status().members;
  EXPECT_NEAR(members[0].run_seconds, 0.2, 1e-9);
  EXPECT_FALSE(members[0].input_wait_seconds);
  EXPECT_FALSE(members[0].samples_ahead);
  EXPECT_NEAR(members[1].input_wait_seconds.value(), 0.05, 1e-9);
  EXPECT_EQ(members[1].samples_ahead, 7u);
  EXPECT_LT(members[2].run_seconds, 10);
  EXPECT_EQ(members[2].input_wait_seconds, members[2].run_seconds);
}

TEST(ProgressLine, CountsWhoWasLeftOut) {
  Story s("", {.policy = "backup"});
  s.Begin();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
    s.AllPublishAndApply({0, 1, 2});
  }
  EXPECT_THAT(ProgressText(s.Status()), HasSubstr("  2 of 3 workers"));
  EXPECT_THAT(ProgressText(s.Status()), Not(HasSubstr("missing")));
}

}  // namespace
}  // namespace lockstep::coordinator
