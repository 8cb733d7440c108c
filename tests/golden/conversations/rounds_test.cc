// Rounds as they should be: full, with work that moves, without a slow worker, relaxed.
#include <gtest/gtest.h>

#include "tests/golden/conversations/conversation.h"
#include "tests/golden/golden.h"

namespace lockstep::simulate {
namespace {

using namespace std::chrono_literals;

TEST(Conversation, AFullRound) {
  Conversation c("Two workers compute a round, exchange it and update their parameters", {});
  c.Until("round 0 closed");
  CompareWithFile(c.text(), "full_round");
}

TEST(Conversation, AMappedRound) {
  Conversation c("The same on one host: who reads the other's memory fetches nothing",
                 {.mapped = true});
  c.Until("round 0 closed");
  CompareWithFile(c.text(), "mapped_round");
}

TEST(Conversation, WorkMoves) {
  Conversation c("Under `flexrr` the units of who lags go to who is ahead",
                 {.policy = "flexrr", .units = 12});
  c.Slow(1, 5);
  c.Until("Commit 0");
  CompareWithFile(c.text(), "work_moves");
}

TEST(Conversation, TheSlowOneIsLeftOut) {
  Conversation c("Under `backup` a slow worker is left out; its samples come again, and it follows",
                 {.workers = 3, .policy = "backup", .units = 3});
  c.Slow(2, 3);
  c.Until("round 0 closed");
  CompareWithFile(c.text(), "left_out");
}

TEST(Conversation, ARelaxedRoundCarriesWorkOver) {
  Conversation c("Under `async` a contribution that comes late is committed in a later round",
                 {.policy = "async", .rounds = 4, .units = 2});
  c.Slow(1, 2);
  c.Until("round 1 closed");
  CompareWithFile(c.text(), "relaxed");
}

TEST(Conversation, TheEndAndItsCheckpoint) {
  Conversation c("The last round, the evaluation, the checkpoint that one worker streams, the end",
                 {.rounds = 1, .units = 2, .test_samples = 2});
  c.PlayToTheEnd();
  CompareWithFile(c.text(), "checkpoint");
}

}  // namespace
}  // namespace lockstep::simulate
