// Workers whose programs do something else for a while, and say so.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

msg::Away AwayFor(int seconds) {
  return {std::chrono::nanoseconds(std::chrono::seconds(seconds)).count(), "validation"};
}

// All that live are heard of, for so long.
void WaitAndPong(Story& s, int seconds, const std::vector<std::uint32_t>& workers) {
  for (int i = 0; i < seconds; ++i) {
    s.Wait(1);
    for (const std::uint32_t w : workers) s.Pong(w);
  }
}

TEST(Golden, AwayAndWaitedFor) {
  Story s("Under `full` a worker that is away is waited for, far beyond liveness.timeout", {});
  s.Begin();
  s.From(2, AwayFor(600));
  s.Sealed(0);
  s.Sealed(1);
  WaitAndPong(s, 120, {0, 1, 2});
  EXPECT_EQ(s.Status().waiting_for.find("worker 2 is away: validation") != std::string::npos, true)
      << s.Status().waiting_for;
  s.From(2, msg::Back{});
  s.Sealed(2);
  s.AllPublishAndApply({0, 1, 2});
  CompareWithFile(s.text(), "away_and_waited_for");
}

TEST(Golden, AwayAndPlanned) {
  Story s("Under `full` a round has the same members whoever is away when it is planned", {});
  s.Begin();
  s.Sealed(2);
  s.From(2, AwayFor(600));
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1, 2});
  CompareWithFile(s.text(), "away_and_planned");
}

TEST(Golden, AwayAndNobodyHasAPartLeft) {
  Story s("Who is away has a unit in hand, and the other has begun both of its parts: without it",
          {.workers = 2, .policy = "flexrr", .units = 4});
  s.Begin();
  s.Sealed(0, 1);
  s.From(1, msg::Progress{RoundId(0), 0, 1});
  s.Wait(0.01);
  s.From(1, msg::Revoked{RoundId(0), 1, 1, false});
  s.From(1, AwayFor(600));
  s.Sealed(0, 1);
  s.Say("Nobody can be given what worker 1 has in hand; another round has it.");
  s.Wait(0.3);
  s.From(1, msg::Revoked{RoundId(0), 0, 3, true});
  s.AllPublishAndApply({0});
  s.Published(1);
  s.Wait(0.3);
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  CompareWithFile(s.text(), "away_and_nobody_has_a_part_left");
}

TEST(Golden, AwayAndGoneOnWithout) {
  Story s("Under `flexrr` the other goes on without who is away; that one copies when it is back",
          {.workers = 2, .policy = "flexrr", .units = 2});
  s.Begin();
  s.From(1, msg::Progress{RoundId(0), 0, 1});
  s.From(1, AwayFor(600));
  s.Sealed(0, 1);
  s.Wait(0.03);
  s.From(1, msg::Revoked{RoundId(0), 0, 1, true});
  s.Sealed(0, 1);
  s.Say("The next plan has nothing for worker 1, and nobody waits until it has applied this one.");
  s.AllPublishAndApply({0});
  s.Published(1);
  s.Wait(0.3);
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  WaitAndPong(s, 5, {0, 1});
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  s.Say("It is back.");
  s.From(1, msg::Back{});
  s.From(1, msg::Level{RoundId(2), s.CopyOrder(1)});
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  s.Applied(1);
  s.Say("From the next round on it has units.");
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.AllPublishAndApply({0, 1});
  CompareWithFile(s.text(), "away_and_gone_on_without");
}

TEST(Golden, AwayAndCounted) {
  Story s("A worker that is away counts for job.min_workers, and the others go on without it",
          {.workers = 2, .policy = "flexrr", .min_workers = 2, .units = 2});
  s.Begin();
  s.From(1, msg::Progress{RoundId(0), 0, 1});
  s.From(1, AwayFor(36000));
  s.Sealed(0, 1);
  s.Wait(0.03);
  s.From(1, msg::Revoked{RoundId(0), 0, 1, true});
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  s.Published(1);
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  s.Say("It has what it can keep of rounds that it does not apply.");
  s.From(1, msg::Behind{{}, false, "2 rounds have closed that it has not applied"});
  s.Sealed(0, 1);
  s.AllPublishAndApply({0});
  s.Say("It is back.");
  s.From(1, msg::Back{});
  s.From(1, msg::Level{RoundId(2), s.CopyOrder(1)});
  s.Sealed(0, 1);
  CompareWithFile(s.text(), "away_and_counted");
}

TEST(Golden, AllAreAway) {
  Story s("All workers validate: nobody's units move, and the round goes on as they come back",
          {.policy = "flexrr", .units = 3});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Progress{RoundId(0), 0, 1});
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, AwayFor(600));
  WaitAndPong(s, 30, {0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) {
    s.From(w, msg::Back{});
    s.Sealed(w, 1);
  }
  s.AllPublishAndApply({0, 1, 2});
  CompareWithFile(s.text(), "all_are_away");
}

TEST(Golden, AwayForTooLong) {
  Story s("Who is away for longer than it has said is expected to get on, and is lost", {});
  s.Begin();
  s.OrdinaryRounds(4);
  s.From(2, AwayFor(30));
  s.Sealed(0);
  s.Sealed(1);
  WaitAndPong(s, 31, {0, 1, 2});
  s.Say("Its time is up.");
  WaitAndPong(s, 12, {0, 1, 2});
  EXPECT_FALSE(s.IsConnected(2));
  CompareWithFile(s.text(), "away_for_too_long");
}

TEST(Golden, AwayAtTheEnd) {
  Story s("The job's last round is over while a worker is away: it ends with the job's parameters",
          {.policy = "flexrr", .rounds = 1, .units = 3});
  s.Begin();
  s.From(2, msg::Progress{RoundId(0), 0, 1});
  s.From(2, AwayFor(600));
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Wait(0.03);
  s.From(2, msg::Revoked{RoundId(0), 0, 1, true});
  s.Sealed(0, 1);
  s.AllPublishAndApply({0, 1});
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(0, 0);
  s.Saved(0);
  WaitAndPong(s, 60, {0, 1, 2});
  EXPECT_FALSE(s.finished());
  EXPECT_EQ(s.Status().waiting_for, "waiting for worker 2, which is away: validation");
  s.From(2, msg::Back{});
  s.From(2, msg::Level{RoundId(0), s.CopyOrder(2)});
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "away_at_the_end");
}

}  // namespace
}  // namespace lockstep::coordinator
