// Something fails after the commit: whoever holds the sums gives them, or the next attempt is made.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

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
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Applied(1);
  s.Applied(0);
  s.Say("The units of worker 2 in round 1 have gone to the others.");
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "owner_lost_with_holder");
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
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Say("With the last no, attempt 0 is void for ever; worker 2's ranges are planned again.");
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.AllPublishAndApply({0, 1});
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "owner_lost_without_holder");
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
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.Applied(0);
  s.Sealed(0);
  s.Sealed(1);
  s.Sealed(2);
  CompareWithFile(s.text(), "holder_not_reached");
}

// Of four workers, worker 1 alone holds all sums when an owner dies, and worker 0 does not reach
// it.
void LoseTheOnlyHolder(Story* s) {
  s->Begin();
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s->Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s->Published(w);
  s->Applied(1);
  s->Die(3);
  s->From(0, msg::Unreachable{s->Id(1), "connection reset"});
  s->From(1, msg::Unreachable{s->Id(0), "connection reset"});
}

TEST(Golden, OnlyHolderIsNotReached) {
  Story s("Who takes the sums from the only holder loses it, once both were heard it is behind",
          {.workers = 4});
  LoseTheOnlyHolder(&s);
  s.Say("The link cannot be made again.");
  for (std::uint32_t w : {0u, 1u, 2u}) s.NeverReaches(w);
  s.Wait(6);
  s.Say("Worker 2, whom it reaches, has them now; so worker 0 can copy from it.");
  s.Applied(2);
  s.From(0, msg::Level{RoundId(0)});
  CompareWithFile(s.text(), "only_holder_not_reached");
}

TEST(Golden, OnlyHolderIsNotReachedAgain) {
  Story s("Its link to the only holder cannot be made again: it copies, once somebody can give it",
          {.workers = 4});
  LoseTheOnlyHolder(&s);
  for (std::uint32_t w : {0u, 1u}) s.AnswerPing(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.NeverReaches(w);
  s.Wait(9);
  s.Applied(2);
  CompareWithFile(s.text(), "only_holder_never_reached");
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
  s.From(1, msg::Level{RoundId(1)});
  s.Say("Worker 2 is stopped and worker 0 dies. Worker 1 has none of the sums.");
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Wait(0.5);
  s.Say("Worker 2 goes on: with its sums nobody can help it, so it copies.");
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.From(2, msg::Level{RoundId(1)});
  CompareWithFile(s.text(), "copied_round_stands");
}

TEST(Golden, WhoWasPutBehindHasAppliedTheRound) {
  Story s("Who was put behind for its silence is the last one left and has applied the round",
          {.min_workers = 3});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Say("Worker 0 dies. Worker 1 has not got all sums, and worker 2 does not answer.");
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(1)});
  s.Wait(2.6);
  s.Say("Before it is heard, worker 1 dies as well.");
  s.Die(1);
  s.Applied(2);
  s.Say("Worker 1 comes back: the round stands, and the one after it is computed anew.");
  s.Hello(1, 1);
  s.Ready(1);
  for (std::uint32_t w : {1u, 2u}) s.Reached(w);
  s.From(1, msg::Level{RoundId(1), s.CopyOrder(1)});
  s.Sealed(2);
  CompareWithFile(s.text(), "behind_and_believed");
}

// Of the round that is lost with the others it has promised to apply nothing.
TEST(Golden, WhoWasPutBehindHasTheRoundBefore) {
  Story s("Who was put behind for its silence is the last one left and has the round before",
          {.min_workers = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Say("Worker 0 dies and worker 2 does not answer, so worker 1 goes on alone.");
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(1)});
  s.Wait(2.6);
  s.Published(1);
  s.Applied(1);
  s.Say("It dies, too, before the round is closed. Worker 2 is asked once more.");
  s.Die(1);
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(2)});
  s.Sealed(2);
  CompareWithFile(s.text(), "behind_and_a_round_back");
}

// It holds sums of an attempt that was replaced, and may have applied them: nobody has the
// parameters that everybody had.
TEST(Golden, WhoWasPutBehindHasAnAttemptThatWasReplaced) {
  Story s("Who was put behind for its silence is the last one left and cannot promise anything",
          {.min_workers = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(1)});
  s.Wait(2.6);
  s.Published(1);
  s.Applied(1);
  s.Die(1);
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), true, s.HoldOrder(2)});
  for (int i = 0; i < 5; ++i) {
    s.Wait(5);
    s.Pong(2);
  }
  CompareWithFile(s.text(), "behind_and_of_no_use");
}

// That its sums are gone already is no promise.
TEST(Golden, WhoWasPutBehindHasAppliedWhatWasReplaced) {
  Story s("Who was put behind for its silence is the last one left and has applied another attempt",
          {.min_workers = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(1)});
  s.Wait(2.6);
  s.Published(1);
  s.Applied(1);
  s.Die(1);
  s.From(2, msg::Applied{RoundId(1), Attempt(0), 0, 0xd, 0});
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(2)});
  CompareWithFile(s.text(), "behind_and_past_it");
}

// Nor is one that has applied an attempt that was replaced.
TEST(Golden, WhoWasOutvotedIsNotBelieved) {
  Story s("Who was put behind because its parameters differ is not believed, even as the last one",
          {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Applied(0);
  s.Applied(2, 0xe);
  const msg::Applied last{RoundId(0), Attempt(0), 0, 0xd, 0};
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Say("The last one tells that worker 2 differs, which goes on with the next round meanwhile.");
  s.From(1, last);
  s.Die(0);
  s.Die(1);
  s.Applied(2);
  CompareWithFile(s.text(), "outvoted_and_last");
}

TEST(Golden, SilentOwnerAfterTheCommit) {
  Story s("An owner is stopped after the commit: it is not waited for, and catches up later", {});
  s.Begin();
  s.OrdinaryRounds(4);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Say("The deadline for publication passes without a word of worker 2.");
  s.Wait(0.15);
  s.Pong(0);
  s.Pong(1);
  s.Wait(0.15);
  s.From(0, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.From(1, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.Say("It does not answer either: it is behind.");
  s.Wait(0.2);
  s.AllPublishAndApply({0, 1});
  s.Say("It runs again; what it says of the round is ignored, and it copies the parameters.");
  s.From(2, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.From(2, msg::Level{RoundId(4)});
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "silent_owner_after_commit");
}

TEST(Golden, AnOwnerIsStoodInFor) {
  Story s(
      "An owner does not publish while others have: one of these stands in for it, and nobody is "
      "asked or fenced",
      {});
  s.Begin();
  s.OrdinaryRounds(4);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Wait(0.02);
  s.Say("Worker 0 was first; it makes the sums of worker 2 as well.");
  s.From(0, msg::Published{RoundId(4), Attempt(0), WorkerId(2)});
  for (std::uint32_t w : {0u, 1u}) s.Applied(w);
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.Say("What worker 2 publishes late is no breach; before round 4 is closed nor a fault.");
  s.Published(2);
  s.Applied(2);
  s.Sealed(2);
  CompareWithFile(s.text(), "owner_stood_in_for");
}

TEST(Golden, AnOwnerThatIsStoodInForIsLost) {
  Story s("An owner is lost whose sums another one has published: nobody has to be asked", {});
  s.Begin();
  s.OrdinaryRounds(4);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Wait(0.02);
  s.From(0, msg::Published{RoundId(4), Attempt(0), WorkerId(2)});
  s.Die(2);
  for (std::uint32_t w : {0u, 1u}) s.Applied(w);
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  CompareWithFile(s.text(), "owner_stood_in_for_and_lost");
}

TEST(Golden, WhoStandsInIsLost) {
  Story s("Who stands in for an owner is lost before anybody has all sums: all are asked", {});
  s.Begin();
  s.OrdinaryRounds(4);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Wait(0.02);
  s.From(0, msg::Published{RoundId(4), Attempt(0), WorkerId(2)});
  s.Die(0);
  s.Published(2);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.From(2, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.AllPublishAndApply({1, 2});
  CompareWithFile(s.text(), "who_stands_in_is_lost");
}

TEST(Golden, TakeSumsEndsAPromise) {
  Story s("Who has promised not to apply is told to: should its holder go, it is asked anew", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Die(2);
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Say("Worker 0 has taken them from worker 1 when that dies.");
  const std::uint32_t first = s.HoldOrder(0);
  s.Die(1);
  s.Say("An answer to the first question is none to the second.");
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false, first});
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), true});
  s.Applied(0);
  s.Sealed(0);
  CompareWithFile(s.text(), "promise_ended");
}

TEST(Golden, ASecondHolderIsLostWhileAnAnswerToTheFirstQuestionIsOwed) {
  Story s("A holder is lost while an answer to the question before is owed: both are waited for",
          {.workers = 4});
  s.Begin();
  s.Quiet(true);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2, 3});
  s.Die(1);
  for (std::uint32_t w : {0u, 2u, 3u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 2u, 3u}) s.Published(w);
  s.Applied(0);
  s.Hello(1, 1);
  s.Ready(1);
  for (std::uint32_t w : {0u, 1u, 2u, 3u}) s.Reached(w);
  s.From(1, msg::Level{RoundId(1)});
  s.Quiet(false);
  s.Say("Worker 0 has applied round 1, and worker 1 has copied it from there when worker 0 dies.");
  s.Die(0);
  s.From(2, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), true, s.HoldOrder(2)});
  s.Say("Worker 2 dies as well. Worker 3 is asked now, worker 1 was before.");
  s.Die(2);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false, s.HoldOrder(1)});
  s.Say("That was one of two; the other one has taken them in time.");
  s.From(3, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), true, s.HoldOrder(3)});
  s.Applied(3);
  CompareWithFile(s.text(), "answers_of_two_questions");
}

TEST(Golden, ContributorLostBeforeTheOnlyOwnerHasReadIt) {
  Story s("A contributor is lost before the only owner has read its part, and the owner is alive",
          {});
  s.Begin();
  s.From(1, msg::Unreachable{s.Id(2), "connection reset"});
  s.From(2, msg::Unreachable{s.Id(1), "connection reset"});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Die(1);
  s.Say("What it needed is gone with worker 1. It is given time three times, then all are asked.");
  for (int i = 0; i < 38; ++i) {
    s.Wait(0.5);
    s.Pong(0);
    s.Pong(2);
  }
  s.From(0, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.Published(2);
  s.Applied(0);
  s.Applied(2);
  CompareWithFile(s.text(), "contributor_unread");
}

TEST(Golden, EvaluationOfAnAttemptThatIsReplaced) {
  Story s("A test set that was evaluated with an attempt that is replaced is evaluated again",
          {.workers = 3, .rounds = 1, .test_samples = 2});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Applied(0);
  s.From(0, msg::EvaluationResult{1, {0, 1}, 1.0, 1});
  s.From(0, msg::EvaluationResult{1, {1, 2}, 1.0, 1});
  s.Say("All of it is evaluated; but the round is not closed, and who has applied it dies.");
  s.Die(0);
  s.From(1, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.From(2, msg::HoldAnswer{Term(1), RoundId(0), Attempt(0), false});
  s.AllPublishAndApply({1, 2});
  s.From(1, msg::EvaluationResult{1, {0, 1}, 5.0, 0});
  s.From(1, msg::EvaluationResult{2, {0, 1}, 2.0, 0});
  s.From(2, msg::EvaluationResult{2, {1, 2}, 2.0, 0});
  CompareWithFile(s.text(), "evaluation_replaced");
}

TEST(Golden, AnOwnerThatIsAlwaysLateLosesHalfItsShare) {
  Story s("An owner publishes late in each round: another one stands in, and it loses half a share",
          {.units = 3, .train_samples = 1200});
  s.Begin();
  const auto round = [&s](bool last) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w, 1);
    s.Published(0);
    s.Published(1);
    s.Wait(0.03);
    if (!last) s.Quiet(true);
    s.From(0, msg::Published{s.Commit(0).round, s.Commit(0).attempt, WorkerId(2)});
    for (std::uint32_t w : {0u, 1u}) s.Applied(w);
    s.Published(2);
    s.Applied(2);
  };
  s.OrdinaryRounds(4);
  s.Quiet(true);
  for (int i = 0; i < 9; ++i) round(false);
  s.Quiet(false);
  round(true);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w, 1);
  CompareWithFile(s.text(), "owner_always_late");
}

}  // namespace
}  // namespace lockstep::coordinator
