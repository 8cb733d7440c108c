// Workers that are behind, come back or join, and copy the state from who has it.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, BehindAndBackAfterTheNextAttempt) {
  Story s("Two of three are put behind: the next attempt is made without their parts",
          {.min_workers = 2});
  s.Begin();
  s.OrdinaryRounds(4);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Published(0);
  s.Published(1);
  s.Say("Workers 1 and 2 stop.");
  s.Wait(0.3);
  s.From(0, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.Say("Late workers count for the quorum, so one that goes on is enough.");
  s.Wait(0.3);
  s.AllPublishAndApply({0});
  s.Say("Worker 1 goes on.");
  s.From(1, msg::HoldAnswer{Term(1), RoundId(4), Attempt(0), false});
  s.From(1, msg::Level{RoundId(4), s.CopyOrder(1)});
  CompareWithFile(s.text(), "behind_and_back");
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
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.Wait(0.3);
  s.From(0, msg::HoldAnswer{Term(1), RoundId(1), Attempt(0), false});
  s.Wait(0.3);
  s.Say("It goes on, and could only copy from worker 0.");
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(6);
  CompareWithFile(s.text(), "behind_and_cut_off");
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
  s.From(1, msg::Level{RoundId(1)});
  s.Say("It has units in the plan after that.");
  s.Sealed(0);
  s.Sealed(2);
  CompareWithFile(s.text(), "rejoin");
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
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.Say("It goes on, with what it had to say before it knew.");
  s.From(0, msg::Progress{RoundId(1), 1, 2});
  s.Reached(1);
  s.Say("They do not reach each other any more.");
  s.Pong(1);
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(7);
  s.Hello(1, 1);
  s.Ready(1);
  s.Reached(0);
  s.Reached(1);
  CompareWithFile(s.text(), "newcomer_lost_again");
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
  s.From(1, msg::Unreachable{s.Id(2), "connection closed by peer"});
  s.Reached(1);
  s.Die(2);
  CompareWithFile(s.text(), "newcomer_sees_an_end");
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
    s.From(1, msg::Copied{0, part});
  }
  s.Say("That much was said already: it does not get on.");
  minute();
  s.From(1, msg::Copied{0, 4});
  minute();
  minute();
  CompareWithFile(s.text(), "slow_copy");
}

// A port of a process that has died refuses connections before its death is known.
TEST(Golden, ANewcomerThatDoesNotReachADeadMember) {
  Story s("One that comes back and does not reach a dead member waits until that is known", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Hello(2, 2);
  s.Ready(2);
  s.NotReached(2);
  s.Reached(1);
  s.Die(0);
  CompareWithFile(s.text(), "newcomer_and_the_dead");
}

TEST(Golden, ANewcomerThatDoesNotReachAMember) {
  Story s("One that comes back and does not reach a member is told so, and may come again", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Hello(2, 2);
  s.Ready(2);
  s.NotReached(2);
  s.Say("Worker 0 may be dead, and not missed yet. It is not:");
  s.AnswerPing(0);
  CompareWithFile(s.text(), "newcomer_not_reached");
}

TEST(Golden, ANewcomerThatDoesNotSayWhomItReaches) {
  Story s("One that comes back, lives and does not tell of its links has 30 s for it", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Hello(2, 2);
  s.Ready(2);
  s.Reached(0);
  s.Reached(1);
  for (int second = 0; second < 29; ++second) {
    s.Wait(1);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Pong(w);
  }
  s.Wait(1.1);
  s.AnswerPing(0);
  CompareWithFile(s.text(), "newcomer_tells_nothing");
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
      "The parameters of a donor are in doubt, and it is told to begin anew. Before it hears of "
      "that it says that it is level, and then that it is behind.");
  const std::uint32_t first = s.CopyOrder(2);
  s.From(0, msg::Behind{RoundId(1), true, "an update failed"});
  s.From(2, msg::Level{RoundId(0), first});
  s.From(2, msg::Behind{RoundId(0), true, "sums are gone", first});
  s.From(2, msg::Level{RoundId(0)});
  CompareWithFile(s.text(), "stale_level");
}

TEST(Golden, OneOfTwoDonorsIsLost) {
  Story s("What has been copied stays when one of two donors is lost", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Die(2);
  s.Hello(2, 2);
  s.Ready(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  s.Say("It is told nothing: it goes on with the other one.");
  const std::uint32_t order = s.CopyOrder(2);
  s.Die(0);
  s.From(2, msg::Copied{order, 1});
  s.From(2, msg::Level{RoundId(0), order});
  CompareWithFile(s.text(), "one_of_two_donors_is_lost");
}

}  // namespace
}  // namespace lockstep::coordinator
