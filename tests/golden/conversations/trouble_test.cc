// Workers that die, stop and come back.
#include <gtest/gtest.h>

#include "tests/golden/conversations/conversation.h"
#include "tests/golden/golden.h"

namespace lockstep::simulate {
namespace {

using namespace std::chrono_literals;

TEST(Conversation, AnOwnerIsLostAndOneHoldsItsSums) {
  Conversation c("An owner dies after the commit; one worker has its sums, the other takes them",
                 {.workers = 3, .units = 3});
  c.Until("Commit 0");
  c.Hold(2, 0, 300ms);
  c.Until("1 -> coordinator: Applied");
  c.Kill(2);
  c.Until("0 -> coordinator: Applied");
  CompareWithFile(c.text(), "sums_held");
}

TEST(Conversation, AnOwnerIsLostAndNobodyHoldsItsSums) {
  Conversation c("An owner dies after the commit with sums that nobody has: the next attempt",
                 {.workers = 3, .units = 3});
  c.HangReduction(2, 1s);
  c.Until("0 -> coordinator: Published");
  c.Kill(2);
  c.Until("1 -> coordinator: Applied");
  CompareWithFile(c.text(), "sums_lost");
}

TEST(Conversation, AnOwnerIsStoppedAndAnotherOneStandsIn) {
  Conversation c(
      "An owner is stopped after the commit: another one makes its sums, as all parts are "
      "mapped, and the round goes on",
      {.workers = 3, .policy = "backup", .mapped = true, .rounds = 1000, .units = 3});
  c.Say("Four rounds go by, so that it is known how long an owner takes.");
  c.Quiet(true);
  c.Until("Commit 4");
  c.Quiet(false);
  c.Stop(2, 1s);
  c.Until("Commit 5");
  CompareWithFile(c.text(), "stood_in_for");
}

TEST(Conversation, AnOwnerStopsRightAfterItHasPublished) {
  Conversation c(
      "An owner stops when it has said that its sums are there, and gives them to nobody",
      {.workers = 3, .policy = "backup", .rounds = 1000, .units = 3});
  c.Say("Ten rounds go by, so that it is known how long a round takes.");
  c.Quiet(true);
  c.Until("round 9 closed");
  c.Quiet(false);
  c.Until("2 -> coordinator: Published");
  c.Stop(2, 1900ms);
  c.Until("1 -> coordinator: Applied");
  CompareWithFile(c.text(), "published_and_stopped");
}

TEST(Conversation, ASilentLinkHoldsUpOneRound) {
  Conversation c("What one worker sends the other is held up for a moment", {});
  c.Until("Commit 0");
  c.Hold(0, 1, 50ms);
  c.Until("1 -> coordinator: Applied");
  CompareWithFile(c.text(), "held_link");
}

TEST(Conversation, AStoppedWorkerCatchesUp) {
  Conversation c("An owner is stopped: the others go on without it, and it copies what it missed",
                 {.workers = 3, .policy = "backup", .rounds = 1000, .units = 3});
  c.Say("Ten rounds go by, so that it is known how long an owner takes.");
  c.Quiet(true);
  c.Until("round 9 closed");
  c.Quiet(false);
  c.Stop(2, 1900ms);
  c.Until("1 -> coordinator: Applied");
  c.Say("They do without it for more than a second. Then it goes on, and hears all of that.");
  c.Quiet(true);
  c.Until("catches up from");
  c.Quiet(false);
  c.Until("2 -> coordinator: Level");
  CompareWithFile(c.text(), "catching_up");
}

TEST(Conversation, ALostWorkerComesBack) {
  Conversation c("A worker dies and joins anew: its peers connect, it copies, it is in a plan",
                 {.rounds = 100, .units = 2});
  c.Say("Round 0 goes by.");
  c.Quiet(true);
  c.Until("1: begins its units of round 1");
  c.Quiet(false);
  c.Kill(1);
  c.Until("Assign");
  c.Say("Worker 0 goes on alone. Worker 1 is started again and asks for its slot.");
  c.Quiet(true);
  c.Until("hears from a newcomer: Hello");
  c.Quiet(false);
  c.Until("1 -> coordinator: Level");
  c.Until("1=#");
  CompareWithFile(c.text(), "joiner");
}

}  // namespace
}  // namespace lockstep::simulate
