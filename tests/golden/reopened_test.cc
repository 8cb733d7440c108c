// Of a committed round no contribution is left: it is opened again, as often as it takes.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, NobodyContributesAnyMore) {
  Story s("The only contributor is lost after the commit: the round is computed again",
          {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.Die(0);
  s.Say("With worker 1's no, no contribution is left.");
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Sealed(1);
  s.AllPublishAndApply({1});
  s.Sealed(1);
  CompareWithFile(s.text(), "reopened_round");
}

TEST(Golden, OpenedAgainAsOftenAsItTakes) {
  Story s("Twice the only contributor is lost after the commit, and who is left had sealed a part",
          {.policy = "async"});
  s.Begin();
  auto late = s.Seal(2);
  s.Sealed(0);
  s.Say("Worker 2 has sealed its part before it knows of the commit.");
  s.From(2, late);
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("All begin with their first part again. Worker 2 is too late a second time.");
  late = s.Seal(2);
  s.Sealed(1);
  s.From(2, late);
  s.Die(1);
  s.From(2, msg::HoldAnswer{Term(1), RoundId(0), Attempt(1), false});
  s.Say("What is heard of the plan before counts for nothing.");
  s.From(2, late);
  s.Sealed(2);
  s.AllPublishAndApply({2});
  CompareWithFile(s.text(), "reopened_twice");
}

TEST(Golden, WhoIsLeftInAReopenedRoundDoesNotFollow) {
  Story s("A round is open again, and who is left has not applied the one before, which is closed",
          {.policy = "backup"});
  s.Begin();
  s.NeverReaches(2);
  s.Sealed(0);
  s.Sealed(1);
  s.Published(2);
  s.AllPublishAndApply({0, 1});
  s.Say("Workers 0 and 1 contribute to round 1, so round 0 is closed; worker 2 lacks it.");
  s.Sealed(0);
  s.Sealed(1);
  s.Die(0);
  s.Die(1);
  s.Say("With worker 2's no, no contribution to round 1 is left.");
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Hello(0, 0);
  s.Ready(0);
  s.Reached(2);
  s.Reached(0);
  s.NeverReaches(0);
  s.Say(
      "Worker 2 is alive and says nothing else, and worker 0 finds nobody to copy from: it is not "
      "waited for for ever.");
  s.Wait(60);
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "reopened_and_not_followed");
}

TEST(Golden, ComingBackToAReopenedRound) {
  Story s("A worker comes back while a round that was opened again is computed",
          {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.AllPublishAndApply({0, 1});
  s.Sealed(0);
  s.Die(0);
  s.Say("With worker 1's no, no contribution to round 1 is left.");
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Hello(0, 0);
  s.Ready(0);
  s.Reached(1);
  s.Reached(0);
  s.Say("No round is provisional; what it has copied is the state before the open one.");
  s.From(0, msg::Level{RoundId(0)});
  s.Sealed(1);
  CompareWithFile(s.text(), "reopened_round_rejoin");
}

TEST(Golden, AReopenedRoundIsAbandoned) {
  Story s(
      "SIGINT while a round is computed again: the one before it, which is closed, was the last",
      {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.AllPublishAndApply({0, 1});
  s.Sealed(0);
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Interrupt();
  s.Say("It does not get done in time.");
  for (int i = 0; i < 3; ++i) {
    s.Wait(2);
    s.Pong(1);
  }
  s.From(1, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "reopened_and_abandoned");
}

// What an honest worker says before it has heard that a round begins once more.
TEST(Golden, StaleAnswersToARoundThatIsOpenAgain) {
  Story s("A round is open again, and a worker still speaks of the next one as of the open one",
          {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("What worker 1 says of round 1 is of no matter, but no breach of the protocol.");
  s.From(1, msg::Revoked{RoundId(1), 3, 1, false});
  s.From(1, msg::Revoked{RoundId(1), 0, 1, true});
  s.From(1, msg::Progress{RoundId(1), 1, 1});
  s.From(1, msg::Receipts{RoundId(1), 0, {{s.Id(0), PartIndex(0)}}});
  s.Sealed(1);
  s.Say("Of round 2 nobody can have heard.");
  s.From(1, msg::Progress{RoundId(2), 1, 1});
  CompareWithFile(s.text(), "stale_answers");
}

TEST(Golden, AppliedAndOpenAgain) {
  Story s("A worker was level too late to be asked, and has applied what is computed again",
          {.workers = 3, .min_workers = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Say("Worker 2 comes back, and copies while round 1 is committed.");
  s.Hello(2, 2);
  s.Ready(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  s.Sealed(0);
  s.Sealed(1);
  s.Say(
      "Worker 0 dies; worker 1 promises not to apply. Nobody asks worker 2, "
      "which is level with what it has by then.");
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.From(2, msg::Level{RoundId(0)});
  s.From(2, msg::Applied{RoundId(1), Attempt(0), 0, 0xd, 0});
  s.Say("It copies the state again as soon as somebody has that of the attempt which counts.");
  s.Published(1);
  s.Applied(1);
  s.From(2, msg::Level{RoundId(1)});
  CompareWithFile(s.text(), "applied_and_replaced");
}

}  // namespace
}  // namespace lockstep::coordinator
