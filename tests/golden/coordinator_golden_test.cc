// The protocol as stories: each test plays one and compares what was said and done with its file.
// `coordinator_golden_test --rewrite` writes the files anew; read the difference before it is
// committed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "coordinator/record/resume_rules.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

bool rewrite = false;

void Compare(const Story& story, const std::string& name) {
  const std::string path = std::string(LOCKSTEP_GOLDEN_DIR) + "/" + name + ".txt";
  if (rewrite) {
    std::ofstream(path) << story.text();
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing: run with --rewrite";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(story.text(), expected.str()) << path;
}

TEST(Golden, FullRound) {
  Story s("A round of three workers under `full`: it closes when all have delivered", {});
  s.Begin();
  s.Say("Worker 1 is the last; Commit(0) carries the plan of round 1.");
  s.Sealed(0);
  s.Sealed(2);
  s.From(1, Progress{RoundId(0), 1, 2});
  s.Sealed(1);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("Commit(1) closes round 0.");
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  Compare(s, "full_round");
}

TEST(Golden, UnmappedPartsAreDeliveredByReceipts) {
  Story s("Without mappings a part counts when every owner has a receipt of it", {.mapped = false});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  s.Receipts(2, {0});
  s.Say("The last receipt closes the round.");
  s.Receipts(2, {1});
  Compare(s, "receipts");
}

TEST(Golden, BackupLeavesOutTheSlowOne) {
  Story s("Under `backup` with one spare the slow worker is left out and its samples come back",
          {.policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.From(2, Progress{RoundId(0), 0, 1});
  s.Say(
      "Two of three make the round; worker 2's ranges are in the next plan, first of all, for "
      "those that contributed.");
  s.Sealed(1);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "backup_excludes");
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

TEST(Golden, FlexrrMovesWork) {
  Story s("Under `flexrr` the units of who lags go to who is ahead, each in one pair of hands",
          {.policy = "flexrr", .global_batch = 24, .units = 24});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.From(w, Progress{RoundId(0), 1, 2});
  s.Say("Workers 0 and 1 are in their third of eight units, worker 2 is in its first.");
  for (std::uint32_t w : {0u, 1u}) s.From(w, Progress{RoundId(0), 2, 3});
  s.Say("It gives back one; follow-ups double.");
  s.From(2, Revoked{RoundId(0), 7, 1, false});
  for (std::uint32_t w : {0u, 1u}) s.From(w, Progress{RoundId(0), 3, 4});
  s.Say("It has begun more than it was asked to keep; only what is left goes to others.");
  s.From(2, Revoked{RoundId(0), 6, 3, false});
  s.Sealed(2);
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "flexrr_moves");
}

TEST(Golden, FlexrrFencesWhoIsStuck) {
  Story s("Under `flexrr` a worker that is stuck in a unit is fenced, and its units computed again",
          {.policy = "flexrr", .units = 3});
  s.Begin();
  s.From(2, Progress{RoundId(0), 0, 1});
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Say("Worker 2 is in its unit, and nothing is heard of it.");
  s.Wait(0.03);
  s.Sealed(0, 1);
  Compare(s, "flexrr_fences");
}

TEST(Golden, WhoIsLeftHasNoPartLeft) {
  Story s("The only one that is left was fenced and has used up its parts: the round begins anew",
          {.policy = "flexrr", .units = 3});
  s.Begin();
  s.From(2, Progress{RoundId(0), 0, 1});
  auto late = s.Seal(2);
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.Wait(0.03);
  s.Say("It seals twice before it knows that it is fenced.");
  s.From(2, late);
  late.part = PartIndex(1);
  s.From(2, late);
  s.From(2, Revoked{RoundId(0), 0, 0, true});
  s.Die(1);
  s.Die(0);
  s.Sealed(2);
  s.AllPublishAndApply({2});
  Compare(s, "no_part_left");
}

TEST(Golden, ARevokeThatIsNotAnswered) {
  Story s("A worker does not answer a revoke: it is fenced, its units are given to others",
          {.policy = "flexrr", .global_batch = 24, .units = 24});
  s.Begin();
  for (std::uint32_t units = 1; units <= 2; ++units) {
    for (std::uint32_t w : {0u, 1u}) s.From(w, Progress{RoundId(0), units, units + 1});
  }
  s.Wait(3);
  s.Say("Its answer comes late and counts no more.");
  s.From(2, Revoked{RoundId(0), 7, 1, false});
  s.From(2, Revoked{RoundId(0), 0, 0, true});
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "revoke_unanswered");
}

TEST(Golden, DeadlineLeavesOutTheLate) {
  Story s("Under `deadline` a round closes at median + k x MAD of recent arrivals",
          {.policy = "deadline"});
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
  Compare(s, "deadline_leaves_out");
}

TEST(Golden, AutoLeavesOutWhomWaitingForIsWorthLess) {
  Story s("Under `auto` a round closes without who takes longer than its samples are worth",
          {.policy = "auto", .units = 3});
  const auto begin = [&s](std::uint64_t round) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, Progress{RoundId(round), 0, 1});
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
  Compare(s, "auto_leaves_out");
}

TEST(Golden, PartialTakesWhatIsDone) {
  Story s("Under `partial` everybody gives what it has at the deadline",
          {.policy = "partial", .global_batch = 24, .units = 24});
  s.Begin();
  UsualRounds(&s, 20);
  s.Sealed(0, 1);
  s.Sealed(1, 1);
  s.From(2, Progress{RoundId(20), 3, 4});
  s.Wait(0.004);
  s.Say("It is in its fourth unit and gives the other four back; they come again.");
  s.From(2, Revoked{RoundId(20), 4, 1, false});
  s.Sealed(2, 20, 4);
  Compare(s, "partial_takes_what_is_done");
}

TEST(Golden, BalanceSharesBySpeed) {
  Story s("Under `balance` units are shared out by speed",
          {.policy = "balance", .global_batch = 21, .units = 21, .train_samples = 210});
  s.Begin();
  s.Sealed(0, 10);
  s.Sealed(1, 10);
  s.Say("Worker 2 takes four times as long for a unit; the plan of round 1 knows it.");
  s.Sealed(2, 40);
  Compare(s, "balance_shares");
}

TEST(Golden, LostWorkerUnderFull) {
  Story s("A worker is lost within a round under `full`: the others do its units", {});
  s.Begin();
  s.Sealed(0);
  s.Say("Worker 0 has sealed, so its new unit makes a second part; worker 2 has not.");
  s.Die(1);
  s.Sealed(0);
  s.Sealed(2);
  Compare(s, "lost_under_full");
}

TEST(Golden, LostWorkerUnderBackup) {
  Story s("A worker is lost within a round under `backup`: the round does without it",
          {.workers = 4, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.Die(1);
  s.Sealed(2);
  s.Sealed(3);
  s.Say("A second loss is more than the rule can spare: now the units go to the others.");
  s.AllPublishAndApply({0, 2, 3});
  s.Die(3);
  s.Sealed(0);
  s.Sealed(2);
  Compare(s, "lost_under_backup");
}

TEST(Golden, SilentOwnerBeforeTheCommit) {
  Story s("An owner is silent before the commit: its slices go to the others", {.mapped = false});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  s.Say("Worker 2 is stopped: it says nothing. The others answer the ping.");
  s.Wait(1.3);
  s.Pong(0);
  s.Pong(1);
  s.Wait(1.4);
  s.Say("Receipts under the new map close the round, with the contribution of worker 2 in it.");
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  s.Say("It owns again once it has contributed to a later round.");
  s.AllPublishAndApply({0, 1});
  s.Applied(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  Compare(s, "silent_owner_before_commit");
}

TEST(Golden, OwnerLostAndSomebodyHoldsTheSums) {
  Story s(
      "An owner is lost after the commit, and one worker has all sums: the others take them "
      "from it",
      {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Published(2);
  s.Say("Nobody has said Applied; so all are asked, and a yes is the truth.");
  s.Die(2);
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Applied(1);
  s.Applied(0);
  s.Say("The units of worker 2 in round 1 have gone to the others.");
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "owner_lost_with_holder");
}

TEST(Golden, HolderThatIsNotReached) {
  Story s(
      "Who takes the sums from a holder loses it: another holder, then the way of who is behind",
      {.workers = 4});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Published(w);
  s.Applied(1);
  s.Die(3);
  s.Say("Worker 1 holds them. Worker 0 does not reach it; worker 2 has what it wanted by then.");
  s.Applied(2);
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.Applied(0);
  s.Sealed(0);
  s.Sealed(1);
  s.Sealed(2);
  Compare(s, "holder_not_reached");
}

TEST(Golden, OnlyHolderIsNotReached) {
  Story s("Who takes the sums from the only holder loses it, once both were heard it is behind",
          {.workers = 4});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Published(w);
  s.Applied(1);
  s.Die(3);
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  s.Say("The link cannot be made again.");
  for (std::uint32_t w : {0u, 1u, 2u}) s.NeverReaches(w);
  s.Wait(6);
  s.Say("Worker 2, whom it reaches, has them now; so worker 0 can copy from it.");
  s.Applied(2);
  s.From(0, Level{RoundId(0)});
  Compare(s, "only_holder_not_reached");
}

TEST(Golden, WhoHasCopiedTheRoundIsLeft) {
  Story s("Of those that had applied a round only one is left that copied it: the round stands",
          {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(1);
  s.Sealed(0);
  s.Sealed(2);
  s.Published(0);
  s.Published(2);
  s.Applied(0);
  s.Say("Worker 1 comes back and copies from worker 0, which has applied round 1.");
  s.Hello(1, 1);
  s.Ready(1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  s.From(1, Level{RoundId(1)});
  s.Say("Worker 2 is stopped and worker 0 dies. Worker 1 has none of the sums.");
  s.Die(0);
  s.From(1, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Wait(0.5);
  s.Say("Worker 2 goes on: with its sums nobody can help it, so it copies.");
  s.From(2, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.From(2, Level{RoundId(1)});
  Compare(s, "copied_round_stands");
}

TEST(Golden, OwnerLostAndNobodyHoldsTheSums) {
  Story s(
      "An owner is lost after the commit and nobody has all sums: the next attempt, without its "
      "contribution",
      {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Die(2);
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("With the last no, attempt 0 is void for ever; worker 2's ranges are planned again.");
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.AllPublishAndApply({0, 1});
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "owner_lost_without_holder");
}

TEST(Golden, NobodyContributesAnyMore) {
  Story s("The only contributor is lost after the commit: the round is computed again",
          {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.Die(0);
  s.Say("With worker 1's no, no contribution is left.");
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Sealed(1);
  s.AllPublishAndApply({1});
  s.Sealed(1);
  Compare(s, "reopened_round");
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
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("All begin with their first part again. Worker 2 is too late a second time.");
  late = s.Seal(2);
  s.Sealed(1);
  s.From(2, late);
  s.Die(1);
  s.From(2, HoldAnswer{Term(1), RoundId(0), Attempt(1), false});
  s.Say("What is heard of the plan before counts for nothing.");
  s.From(2, late);
  s.Sealed(2);
  s.AllPublishAndApply({2});
  Compare(s, "reopened_twice");
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
  s.From(2, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
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
  Compare(s, "reopened_and_not_followed");
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
  s.From(1, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Hello(0, 0);
  s.Ready(0);
  s.Reached(1);
  s.Reached(0);
  s.Say("No round is provisional; what it has copied is the state before the open one.");
  s.From(0, Level{RoundId(0)});
  s.Sealed(1);
  Compare(s, "reopened_round_rejoin");
}

TEST(Golden, SilentOwnerAfterTheCommit) {
  Story s("An owner is stopped after the commit: it is not waited for, and catches up later", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Say("The deadline for publication passes without a word of worker 2.");
  s.Wait(1.3);
  s.Pong(0);
  s.Pong(1);
  s.Wait(1.3);
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("It does not answer either: it is behind.");
  s.Wait(0.145);
  s.AllPublishAndApply({0, 1});
  s.Say("It runs again; what it says of the round is ignored, and it copies the parameters.");
  s.From(2, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, Level{RoundId(0)});
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "silent_owner_after_commit");
}

TEST(Golden, BehindAndBackBeforeTheNextAttempt) {
  Story s("A contributor is put behind and is back before the next attempt: its part is lost",
          {.min_workers = 2});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Say("Workers 1 and 2 stop.");
  s.Wait(0.3);
  s.From(0, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Say("With one worker there is no quorum for the next attempt.");
  s.Wait(0.3);
  s.From(1, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.From(1, Level{RoundId(0)});
  s.Say("The new owners could not get worker 1's pieces: it has dropped them to catch up.");
  s.AllPublishAndApply({0, 1});
  Compare(s, "behind_and_back");
}

TEST(Golden, BehindAndCutOff) {
  Story s("Of two workers one is put behind and cannot reach the other: it has to connect anew",
          {.workers = 2, .min_workers = 2});
  s.Begin();
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1});
  s.Sealed(0);
  s.Sealed(1);
  s.Published(0);
  s.Say("Worker 1 stops.");
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.Wait(0.3);
  s.From(0, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Wait(0.3);
  s.Say("It goes on, and could only copy from worker 0.");
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(6);
  Compare(s, "behind_and_cut_off");
}

TEST(Golden, Rejoin) {
  Story s("A worker is lost and comes back: it connects, copies, is level and gets units", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(1);
  s.Say("A new process takes the slot.");
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(2);
  s.Reached(1);
  s.Say("The next commit goes to it as well.");
  s.Sealed(0);
  s.Sealed(2);
  s.AllPublishAndApply({0, 2});
  s.From(1, Level{RoundId(1)});
  s.Say("It has units in the plan after that.");
  s.Sealed(0);
  s.Sealed(2);
  Compare(s, "rejoin");
}

TEST(Golden, NewcomerThatLosesWhomItHadReached) {
  Story s("A newcomer and a member lose each other before it is let in: it has to connect anew",
          {.workers = 2});
  s.Begin();
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1});
  s.Die(1);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Say("Worker 1 stops, and the connection ends. Nobody knows yet whether it is alive.");
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.Say("It goes on, with what it had to say before it knew.");
  s.From(0, Progress{RoundId(1), 1, 2});
  s.Reached(1);
  s.Say("They do not reach each other any more.");
  s.Pong(1);
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(7);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(1);
  Compare(s, "newcomer_lost_again");
}

TEST(Golden, NewcomerLosesOneThatDies) {
  Story s("A newcomer first sees the end of a member that it had reached: it is let in", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(1);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(2);
  s.From(1, Unreachable{s.Id(2), "connection closed by peer"});
  s.Reached(1);
  s.Die(2);
  Compare(s, "newcomer_sees_an_end");
}

TEST(Golden, QuorumIsWaitedFor) {
  Story s("Without a quorum nothing is committed; the worker that comes back makes it",
          {.min_workers = 3});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(1);
  s.Sealed(0);
  s.Say("All units of round 1 are there, and only two workers.");
  s.Sealed(2);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(2);
  s.Reached(1);
  s.From(1, Level{RoundId(0)});
  Compare(s, "quorum");
}

TEST(Golden, EndOfAnEpoch) {
  Story s("The tail of an epoch: fewer units than workers, closed exactly even under `backup`",
          {.policy = "backup", .epochs = 2, .train_samples = 14, .test_samples = 6});
  s.Begin();
  s.Sealed(0);
  s.Sealed(2);
  s.AllPublishAndApply({0, 2, 1});
  s.Say("Round 1 is the tail, with what worker 1 did not do; all of it is awaited.");
  s.Sealed(0);
  s.Say("The next plan is of epoch 1.");
  s.Sealed(2);
  s.AllPublishAndApply({0, 1, 2});
  Compare(s, "epoch_end");
}

TEST(Golden, FormationFallsBack) {
  Story s("Two workers do not reach each other over UCX: the whole job uses TCP", {});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w);
  s.Reached(0);
  s.From(1, Reached{1,
                    {{s.Id(0), true, "", false, "ucx", 1},
                     {s.Id(2), false, "no route to host", false, "", 0}}});
  s.Reached(0);
  s.Reached(1);
  s.Reached(2);
  Compare(s, "formation_fallback");
}

TEST(Golden, FormationWithoutUcx) {
  Story s("Nobody has RDMA: the job uses TCP, which is nothing to warn of", {});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w, false);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  Compare(s, "formation_without_ucx");
}

TEST(Golden, Refusals) {
  Story s("Who is not let in, and why", {.workers = 3, .transport = "auto"});
  s.Say("Another version of the protocol.");
  s.Connect(0);
  Hello old;
  old.protocol = 7;
  old.version = "3.1";
  s.From(0, old);
  s.Say("Other data: who comes first does not decide.");
  s.Hello(0);
  s.Hello(1);
  s.Hello(2);
  Ready other;
  other.transports = {{"tcp", "t", ""}};
  other.dataset_digest = "xyz";
  other.train_samples = other.parameter_count = 1;
  s.From(1, other);
  s.Ready(0, false);
  s.Ready(2);
  s.Hello(1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(1);
  s.Reached(2);
  s.Say("No slot is free.");
  s.Hello(3);
  s.Say("A message that cannot be.");
  s.From(1, Published{RoundId(9), Attempt(0)});
  s.Say("A later joiner without the job's transport.");
  s.Hello(1);
  Ready without = s.ReadyOf(0);
  without.transports = {{"ucx", "u", ""}};
  s.From(1, without);
  Compare(s, "refusals");
}

TEST(Golden, NoMajority) {
  Story s("Two workers, two kinds of data: nobody can say which is right", {.workers = 2});
  s.Hello(0);
  s.Ready(0);
  s.Hello(1);
  Ready other = s.ReadyOf(0);
  other.dataset_digest = "xyz";
  s.From(1, other);
  Compare(s, "no_majority");
}

TEST(Golden, Interrupt) {
  Story s("SIGINT: the open round is the last, its state is saved", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Interrupt();
  s.Sealed(1);
  s.Sealed(2);
  s.AllPublishAndApply({0, 1, 2});
  s.Upload(0, 1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 1);
  s.Saved(1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, Final{RoundId(1), "f00d"});
  Compare(s, "interrupt");
}

TEST(Golden, InterruptAbandonsTheRound) {
  Story s("SIGINT, and the open round does not close in time: the one before it was the last", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Interrupt();
  for (int i = 0; i < 3; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Pong(w);
  }
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, Final{RoundId(0), "f00d"});
  Compare(s, "interrupt_abandons");
}

TEST(Golden, TheEnd) {
  Story s("The last round: evaluation, checkpoint, digests",
          {.workers = 2, .rounds = 1, .test_samples = 8});
  s.Begin();
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1});
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(0, 0);
  s.Saved(0);
  for (std::uint64_t i = 0; i < 8; ++i) {
    s.From(i % 2, EvaluationResult{1, {i, i + 1}, 1.0, i % 4 == 0 ? 0u : 1u});
  }
  s.From(0, Final{RoundId(0), "f00d"});
  s.From(1, Final{RoundId(0), "f00d"});
  Compare(s, "the_end");
}

JobState Resumable() {
  JobState state;
  state.next_round = RoundId(7);
  state.updates = 7;
  state.sampler = {120, Epoch(1), {{4, 8}, {96, 120}}};
  state.dataset_digest = "abc";
  state.parameter_count = 2;
  state.state_tensors = 1;
  state.settings = SettingsToRemember(JobConfig());
  return state;
}

TEST(Golden, Resume) {
  Story s("A job is resumed: everybody gets the checkpoint, then the round after it",
          {.workers = 2, .resume = Resumable()});
  s.Begin();
  s.From(0, CheckpointTaken{4});
  s.From(0, CheckpointTaken{16});
  s.From(1, CheckpointTaken{16});
  s.Sealed(0);
  s.Sealed(1);
  Compare(s, "resume");
}

TEST(Golden, ResumeWithoutEnough) {
  Story s("A worker takes nothing of the checkpoint and is out; nobody comes, and the job ends",
          {.workers = 2, .min_workers = 2, .resume = Resumable()});
  s.Begin();
  s.From(0, CheckpointTaken{16});
  for (int i = 0; i < 6; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u}) s.Pong(w);
  }
  for (int i = 0; i < 35; ++i) {
    s.Wait(2);
    s.Pong(0);
  }
  Compare(s, "resume_without_enough");
}

TEST(Golden, CheckpointIsNotConfirmed) {
  Story s("What a worker writes is not what the others have: it catches up, another one writes",
          {.rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Upload(0, 0, true);
  s.TellState(0, 0, true);
  s.TellState(1, 0);
  s.TellState(2, 0);
  s.Upload(1, 0);
  s.TellState(1, 0);
  s.TellState(2, 0);
  s.Saved(0);
  s.Say("The job waits for who has not what it ended with.");
  s.From(0, lockstep::Pong{0, 0, 0});
  s.From(0, Level{RoundId(0)});
  Compare(s, "checkpoint_not_confirmed");
}

TEST(Golden, CheckpointIsMangledOnItsWay) {
  Story s("A worker's state is right, what comes of it is not: another one writes, then none can",
          {.workers = 2, .rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(0, 0, true);
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(1, 0, true);
  for (std::uint32_t w : {0u, 1u}) s.From(w, Final{RoundId(0), "f00d"});
  Compare(s, "checkpoint_mangled");
}

TEST(Golden, TheLastCheckpointCannotBeWritten) {
  Story s("The disk is full at the last checkpoint: the job has failed",
          {.workers = 2, .rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Saved(0, "x.safetensors: cannot be written: No space left on device");
  for (std::uint32_t w : {0u, 1u}) s.From(w, Final{RoundId(0), "f00d"});
  Compare(s, "last_checkpoint_fails");
}

TEST(Golden, TheCoordinatorIsStopped) {
  Story s("The coordinator itself is stopped for a minute: nobody looks late for that", {});
  s.Begin();
  s.Sealed(0);
  s.Stand(60);
  s.Sealed(1);
  s.Sealed(2);
  s.Say("All that has come is heard before anything follows from it.");
  s.Wait(0.1);
  s.AllPublishAndApply({0, 1, 2});
  Compare(s, "coordinator_stopped");
}

TEST(Golden, DigestsDiffer) {
  Story s("A worker's parameters differ from the majority's: it catches up", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Applied(0, 0xa);
  s.Applied(1, 0xb);
  s.Applied(2, 0xa);
  s.From(1, Progress{RoundId(1), 1, 1});
  s.From(1, Level{RoundId(0)});
  Compare(s, "digests_differ");
}

TEST(Golden, NobodyIsWholeAnyMore) {
  Story s("Two cannot reach each other, and the only one that both reach is lost", {});
  s.Begin();
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  s.Say(
      "Worker 2 alone owns, until it dies. Nobody is left who could own. When they do not reach "
      "each other anew either, one of them has to go.");
  s.Die(2);
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(6);
  s.Sealed(0);
  s.Sealed(0);
  s.AllPublishAndApply({0});
  Compare(s, "nobody_whole");
}

TEST(Golden, ContributorLostBeforeTheOnlyOwnerHasReadIt) {
  Story s("A contributor is lost before the only owner has read its part, and the owner is alive",
          {});
  s.Begin();
  s.From(1, Unreachable{s.Id(2), "connection reset"});
  s.From(2, Unreachable{s.Id(1), "connection reset"});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Die(1);
  s.Say("What it needed is gone with worker 1. It is given time three times, then all are asked.");
  for (int i = 0; i < 38; ++i) {
    s.Wait(0.5);
    s.Pong(0);
    s.Pong(2);
  }
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Published(2);
  s.Applied(0);
  s.Applied(2);
  Compare(s, "contributor_unread");
}

TEST(Golden, UnreachableBecauseItDied) {
  Story s("The end of a worker is first seen by its peer, which is not to go instead of it",
          {.workers = 2});
  s.Begin();
  s.From(1, Unreachable{s.Id(0), "connection closed by peer"});
  s.Die(0);
  s.Sealed(1);
  s.AllPublishAndApply({1});
  Compare(s, "unreachable_dead");
}

TEST(Golden, BrokenEdge) {
  Story s("Two workers lose each other and reach everybody else: neither owns", {.mapped = false});
  s.Begin();
  s.Sealed(0);
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  s.Sealed(1);
  s.Sealed(2);
  s.Receipts(2, {0, 1});
  Compare(s, "broken_edge");
}

TEST(Golden, ABrokenLinkIsMadeAgain) {
  Story s("The only link of two workers is reset: it is made again, and nobody has to go",
          {.workers = 2});
  s.Begin();
  s.Sealed(0);
  s.From(0, Unreachable{s.Id(1), "connection reset"});
  s.Say("Once the other end has seen it, too, worker 0 connects again. At first in vain.");
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  s.NotReached(0);
  s.Wait(1.3);
  s.Reached(0);
  s.Sealed(1);
  s.Reached(1);
  s.AllPublishAndApply({0, 1});
  s.Say(
      "It breaks once more, and worker 0 has heard nothing of that when it says that it is there.");
  s.From(1, Unreachable{s.Id(0), "connection reset"});
  s.Sealed(0);
  s.Wait(1.3);
  s.Reached(1);
  s.Reached(0);
  s.Sealed(1);
  Compare(s, "link_made_again");
}

// What an honest worker says before it has heard that a round begins once more.
TEST(Golden, StaleAnswersToARoundThatIsOpenAgain) {
  Story s("A round is open again, and a worker still speaks of the next one as of the open one",
          {.workers = 2, .policy = "backup"});
  s.Begin();
  s.Sealed(0);
  s.Die(0);
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("What worker 1 says of round 1 is of no matter, but no breach of the protocol.");
  s.From(1, Revoked{RoundId(1), 3, 1, false});
  s.From(1, Revoked{RoundId(1), 0, 1, true});
  s.From(1, Progress{RoundId(1), 1, 1});
  s.From(1, lockstep::Receipts{RoundId(1), 0, {{s.Id(0), PartIndex(0)}}});
  s.Sealed(1);
  s.Say("Of round 2 nobody can have heard.");
  s.From(1, Progress{RoundId(2), 1, 1});
  Compare(s, "stale_answers");
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
  s.From(1, HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.From(2, Level{RoundId(0)});
  s.From(2, lockstep::Applied{RoundId(1), Attempt(0), 0, 0xd, 0});
  s.Say("It copies the state again as soon as somebody has that of the attempt which counts.");
  s.Published(1);
  s.Applied(1);
  s.From(2, Level{RoundId(1)});
  Compare(s, "applied_and_replaced");
}

TEST(Golden, TakeSumsEndsAPromise) {
  Story s("Who has promised not to apply is told to: should its holder go, it is asked anew", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Die(2);
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Say("Worker 0 has taken them from worker 1 when that dies.");
  const std::uint32_t first = s.HoldOrder(0);
  s.Die(1);
  s.Say("An answer to the first question is none to the second.");
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), false, first});
  s.From(0, HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Applied(0);
  s.Sealed(0);
  Compare(s, "promise_ended");
}

TEST(Golden, ACopyThatTakesLong) {
  Story s("Who copies for minutes is waited for as long as it gets on, and not when it is silent",
          {.workers = 2});
  s.Begin();
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1});
  s.Die(1);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(1);
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);  // lives
  const auto minute = [&s] {
    for (int part = 0; part < 2; ++part) {
      s.Quiet(true);
      s.Sealed(0);
      s.AllPublishAndApply({0});
      s.Quiet(false);
      s.Wait(31);
    }
  };
  s.Quiet(true);
  s.Sealed(0);
  s.Sealed(0);
  s.AllPublishAndApply({0});
  s.Quiet(false);
  for (std::uint64_t part = 1; part <= 4; ++part) {
    s.Wait(45);
    s.Quiet(true);
    s.Sealed(0);
    s.AllPublishAndApply({0});
    s.Quiet(false);
    s.From(1, Copied{0, part});
  }
  s.Say("That much was said already: it does not get on.");
  minute();
  s.From(1, Copied{0, 4});
  minute();
  minute();
  Compare(s, "slow_copy");
}

TEST(Golden, LevelOfACopyThatWasBegunAnew) {
  Story s("What is said of a copy that was begun anew since is of no matter", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Hello(2, 2);
  s.Ready(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  s.Say(
      "It loses its donor, and is told another one. Before it hears of that it says that it is "
      "level, and then that it is behind.");
  const std::uint32_t first = s.CopyOrder(2);
  s.From(2, Unreachable{s.Id(0), "connection reset"});
  s.From(2, Level{RoundId(0), first});
  s.From(2, Behind{RoundId(0), true, "sums are gone", first});
  s.From(2, Level{RoundId(0)});
  Compare(s, "stale_level");
}

TEST(Golden, EvaluationOfAnAttemptThatIsReplaced) {
  Story s("A test set that was evaluated with an attempt that is replaced is evaluated again",
          {.workers = 3, .rounds = 1, .test_samples = 2});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Applied(0);
  s.From(0, EvaluationResult{1, {0, 1}, 1.0, 1});
  s.From(0, EvaluationResult{1, {1, 2}, 1.0, 1});
  s.Say("All of it is evaluated; but the round is not closed, and who has applied it dies.");
  s.Die(0);
  s.From(1, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.AllPublishAndApply({1, 2});
  s.From(1, EvaluationResult{1, {0, 1}, 5.0, 0});
  s.From(1, EvaluationResult{2, {0, 1}, 2.0, 0});
  s.From(2, EvaluationResult{2, {1, 2}, 2.0, 0});
  Compare(s, "evaluation_replaced");
}

TEST(Golden, TheCoordinatorIsStoppedForAMoment) {
  Story s("A stop of the coordinator of 0.4 s is longer than an owner's deadline: nobody is blamed",
          {});
  s.Begin();
  s.Quiet(true);
  for (int round = 0; round < 8; ++round) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
    s.AllPublishAndApply({0, 1, 2});
  }
  s.Quiet(false);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Stand(0.4);
  s.Say("What they said meanwhile is heard one by one, the first of it not before the deadline.");
  s.AllPublishAndApply({0, 1, 2});
  s.Wait(0.2);
  Compare(s, "coordinator_stopped_shortly");
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
  Compare(s, "policy_exchange");
}

TEST(Golden, DrainedWorkerLeavesWhenNobodyNeedsIt) {
  Story s("A worker is asked to leave: not before the round that it owns shards of is closed", {});
  s.Begin();
  s.Ask(DrainRequested{WorkerId(7)}, "operator: drain 7");
  s.Ask(DrainRequested{WorkerId(2)}, "operator: drain 2");
  s.Ask(DrainRequested{WorkerId(2)}, "operator: drain 2");
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Say("It is in no plan any more, but the sums of round 0 are needed.");
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Say("Commit(1) closes round 0.");
  s.Sealed(1);
  s.From(2, Leave{"it was asked to leave"});
  s.Say("The last one with the parameters stays.");
  s.Ask(DrainRequested{WorkerId(1)}, "operator: drain 1");
  s.Ask(DrainRequested{WorkerId(0)}, "operator: drain 0");
  Compare(s, "drain");
}

TEST(Golden, SlowdownsReachTheirWorkers) {
  Story s("Slow-downs at run time: on top of those that workers were started with", {});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  s.Ready(0);
  s.Ready(1, true, "factor=3,from=1h\npattern=pause,every=9s,length=1s\n");
  s.Wait(1);
  s.Ask(SlowdownRequested{"worker=0,factor=2,for=5s\npattern=pause,every=10s,length=1s,from=0s"},
        "operator: two slow-downs");
  s.Say("Whoever comes later is told as well.");
  s.Ready(2);
  s.Ask(SlowdownRequested{"worker=0,factor=2\nworker=3,factor=2"}, "operator: worker 3");
  s.Ask(SlowdownRequested{"factor=0"}, "operator: factor 0");
  s.Ask(SlowdownRequested{" \n"}, "operator: nothing");
  s.Wait(6);
  s.Say("What is over is not told again.");
  s.Ask(SlowdownRequested{"worker=2,factor=4"}, "operator: another one");
  s.Ask(SlowdownRequested{"none"}, "operator: none");
  Compare(s, "slowdowns");
}

}  // namespace
}  // namespace lockstep::coordinator

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rewrite") == 0) lockstep::coordinator::rewrite = true;
  }
  return RUN_ALL_TESTS();
}
