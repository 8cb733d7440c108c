// What the closing and work rules make of a round: who is left out, whose units move.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, BackupLeavesOutTheSlowOne) {
  Story s("Under `backup` with one spare the slow worker is left out and its samples come back",
          {.policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.From(2, msg::Progress{RoundId(0), 0, 1});
  s.Say(
      "Two of three make the round; worker 2's ranges are in the next plan, first of all, for "
      "those that contributed.");
  s.Sealed(1);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "backup_excludes");
}

TEST(Golden, FlexrrMovesWork) {
  Story s("Under `flexrr` the units of who lags go to who is ahead, each in one pair of hands",
          {.policy = "flexrr", .global_batch = 24, .units = 24});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Progress{RoundId(0), 1, 2});
  s.Say("Workers 0 and 1 are in their third of eight units, worker 2 is in its first.");
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Progress{RoundId(0), 2, 3});
  s.Say("It gives back one; follow-ups double.");
  s.From(2, msg::Revoked{RoundId(0), 7, 1, false});
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Progress{RoundId(0), 3, 4});
  s.Say("It has begun more than it was asked to keep; only what is left goes to others.");
  s.From(2, msg::Revoked{RoundId(0), 6, 3, false});
  s.Sealed(2);
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "flexrr_moves");
}

TEST(Golden, FlexrrFencesWhoIsStuck) {
  Story s("Under `flexrr` a worker that is stuck in a unit is fenced, and its units computed again",
          {.policy = "flexrr", .units = 3});
  s.Begin();
  s.From(2, msg::Progress{RoundId(0), 0, 1});
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Say("Worker 2 is in its unit, and nothing is heard of it.");
  s.Wait(0.03);
  s.Sealed(0, 1);
  CompareWithFile(s.text(), "flexrr_fences");
}

TEST(Golden, WhoIsLeftHasNoPartLeft) {
  Story s("The only one that is left was fenced and has used up its parts: the round begins anew",
          {.policy = "flexrr", .units = 3});
  s.Begin();
  s.From(2, msg::Progress{RoundId(0), 0, 1});
  auto late = s.Seal(2);
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Wait(0.03);
  s.Say("It seals twice before it knows that it is fenced.");
  s.From(2, late);
  late.part = PartIndex(1);
  s.From(2, late);
  s.From(2, msg::Revoked{RoundId(0), 0, 0, true});
  s.Die(1);
  s.Die(0);
  s.Sealed(2);
  s.AllPublishAndApply({2});
  CompareWithFile(s.text(), "no_part_left");
}

TEST(Golden, ARevokeThatIsNotAnswered) {
  Story s("A worker does not answer a revoke: it is fenced, its units are given to others",
          {.policy = "flexrr", .global_batch = 24, .units = 24});
  s.Begin();
  for (std::uint32_t units = 1; units <= 2; ++units) {
    for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Progress{RoundId(0), units, units + 1});
  }
  s.Wait(3);
  s.Say("Its answer comes late and counts no more.");
  s.From(2, msg::Revoked{RoundId(0), 7, 1, false});
  s.From(2, msg::Revoked{RoundId(0), 0, 0, true});
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "revoke_unanswered");
}

// Rounds in which all are done at once, so that the policy knows what is usual.
void UsualRounds(Story* s, int count) {
  s->Quiet(true);
  for (int i = 0; i < count; ++i) {
    for (std::uint32_t w : {0u, 1u, 2u}) s->Sealed(w, 1);
    s->AllPublishAndApply({0, 1, 2});
  }
  s->Quiet(false);
}

TEST(Golden, BackupHandsOverInTheLastRoundOfAnEpoch) {
  Story s("Under `backup` nobody can be left out of an epoch's last round: work moves in it",
          {.policy = "backup", .units = 12, .train_samples = 36});
  s.Begin();
  s.Quiet(true);
  for (int twice = 0; twice < 2; ++twice) {  // three rounds, of two workers each
    for (std::uint32_t w : {0u, 1u, 2u}) {
      s.Wait(0.05);
      s.Sealed(w, 10);
    }
    s.AllPublishAndApply({0, 1, 2});
  }
  s.Quiet(false);
  s.Say("Worker 2 is stopped in its first unit.");
  s.From(2, msg::Progress{RoundId(3), 0, 1});
  for (std::uint32_t done : {1u, 2u, 3u}) {
    for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Progress{RoundId(3), done, done + 1});
    s.Wait(0.01);
  }
  s.Sealed(0, 10);
  s.Sealed(1, 10);
  s.Wait(0.3);
  s.Say("It is fenced, and the others compute its units.");
  s.Sealed(0, 10);
  s.Sealed(1, 10);
  CompareWithFile(s.text(), "backup_hands_over");
}

// Of one unit for each worker.
void WholeRounds(Story* s, std::uint32_t workers, int count) {
  std::vector<std::uint32_t> all(workers);
  std::iota(all.begin(), all.end(), 0u);
  for (int i = 0; i < count; ++i) {
    s->Wait(0.01);
    for (const std::uint32_t w : all) s->Sealed(w, 10);
    s->AllPublishAndApply(all);
  }
}

TEST(Golden, TheLastUnitOfAnEpochIsWithWhoIsStopped) {
  Story s("The last round of an epoch is one unit, and who has it is stopped",
          {.policy = "deadline", .units = 3, .train_samples = 52});
  s.Begin();
  s.Quiet(true);
  WholeRounds(&s, 3, 3);
  s.Quiet(false);
  WholeRounds(&s, 3, 1);
  s.From(0, msg::Progress{RoundId(4), 0, 1});
  s.Say("The others have no units.");
  s.Wait(0.05);
  s.Say("Worker 1 computes it.");
  s.Sealed(1, 10);
  CompareWithFile(s.text(), "last_unit_is_stopped");
}

TEST(Golden, TwoOfFourAreStoppedInTheLastRoundOfAnEpoch) {
  Story s("Two of four workers are stopped in an epoch's last round: both are fenced",
          {.workers = 4, .policy = "deadline", .units = 4, .train_samples = 48});
  s.Begin();
  s.Quiet(true);
  WholeRounds(&s, 4, 3);
  s.Quiet(false);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.From(w, msg::Progress{RoundId(3), 0, 1});
  s.Wait(0.01);
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w, 10);
  s.Say("Nothing is heard of workers 2 and 3.");
  s.Wait(0.2);
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w, 10);
  CompareWithFile(s.text(), "two_are_stopped");
}

TEST(Golden, DeadlineLeavesOutTheLate) {
  Story s("Under `deadline` a round closes at median + k x MAD of recent arrivals",
          {.policy = "deadline", .train_samples = 1200});
  s.Begin();
  UsualRounds(&s, 20);
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Wait(0.1);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("Worker 2's units come again, and go to those that contributed.");
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Sealed(2, 1);
  CompareWithFile(s.text(), "deadline_leaves_out");
}

TEST(Golden, AutoLeavesOutWhomWaitingForIsWorthLess) {
  Story s("Under `auto` a round closes without who takes longer than its samples are worth",
          {.policy = "auto", .units = 3});
  const auto begin = [&s](std::uint64_t round) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Progress{RoundId(round), 0, 1});
    s.Wait(0.03);
  };
  s.Begin();
  s.Quiet(true);
  for (std::uint64_t round = 0; round < 8; ++round) {
    begin(round);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w, 30);
    s.AllPublishAndApply({0, 1, 2});
  }
  begin(8);
  s.Quiet(false);
  s.Sealed(0, 30);
  s.Sealed(1, 30);
  s.Say("Worker 2 is in its unit, and nothing is heard of it.");
  s.Wait(0.02);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("Its samples are in the next plan, worker 0 computes them; all are there in time.");
  begin(9);
  s.Sealed(0, 30);
  s.Sealed(1, 30);
  s.Sealed(2, 30);
  CompareWithFile(s.text(), "auto_leaves_out");
}

TEST(Golden, PartialTakesWhatIsDone) {
  Story s("Under `partial` everybody gives what it has at the deadline",
          {.policy = "partial", .global_batch = 24, .units = 24, .train_samples = 1200});
  s.Begin();
  UsualRounds(&s, 20);
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.From(2, msg::Progress{RoundId(20), 3, 4});
  s.Wait(0.004);
  s.Say("It is in its fourth unit and gives the other four back; they come again.");
  s.From(2, msg::Revoked{RoundId(20), 4, 1, false});
  s.Sealed(2, 20, 4);
  CompareWithFile(s.text(), "partial_takes_what_is_done");
}

TEST(Golden, BalanceSharesBySpeed) {
  Story s("Under `balance` units are shared out by speed",
          {.policy = "balance", .global_batch = 21, .units = 21, .train_samples = 210});
  s.Begin();
  s.Wait(0.07);
  s.Sealed(0, 10);
  s.Sealed(1, 10);
  s.Wait(0.21);
  s.Say("Worker 2 takes four times as long for a unit; the plan of round 1 knows it.");
  s.Sealed(2, 40);
  CompareWithFile(s.text(), "balance_shares");
}

TEST(Golden, PolicyIsExchangedBetweenRounds) {
  Story s("The policy is exchanged at run time", {});
  s.Begin();
  s.Ask(PolicyRequested{"backap"}, "operator: policy backap");
  s.Ask(PolicyRequested{"backup"}, "operator: policy backup");
  s.Say("The open round still waits for all.");
  s.Sealed(0);
  s.Sealed(1);
  s.Sealed(2);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("The next one closes over the first two.");
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "policy_exchange");
}

}  // namespace
}  // namespace lockstep::coordinator
