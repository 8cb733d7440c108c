// Who is in: forming, refusing, waiting for enough, leaving, links that break.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, FormationFallsBack) {
  Story s("Two workers do not reach each other over UCX: the whole job uses TCP", {});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w);
  s.Reached(0);
  s.From(1, msg::Reached{1,
                         {{s.Id(0), true, "", false, "ucx", 1},
                          {s.Id(2), false, "no route to host", false, "", 0}}});
  s.Reached(0);
  s.Reached(1);
  s.Reached(2);
  CompareWithFile(s.text(), "formation_fallback");
}

TEST(Golden, FormationWithoutUcx) {
  Story s("Nobody has RDMA: the job uses TCP, which is nothing to warn of", {});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w, false);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  CompareWithFile(s.text(), "formation_without_ucx");
}

// That `from` says: `missed` is not reached, all others are.
void ReachedAllBut(Story* s, std::uint32_t from, std::uint32_t missed, std::uint32_t formation) {
  msg::Reached reached{formation, {}};
  for (std::uint32_t w : {0u, 1u, 2u}) {
    if (w == from || !s->IsConnected(w)) continue;
    const bool there = w != missed;
    reached.peers.push_back({s->Id(w), there, there ? "" : "timed out", false, "tcp", 1});
  }
  s->From(from, reached);
}

TEST(Golden, FormationGoesOnWithoutWhoIsNotReached) {
  Story s(
      "Behind a firewall worker 1 reaches nobody: with enough others the job goes on without it",
      {.min_workers = 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w, false);
  ReachedAllBut(&s, 0, 1, 1);
  ReachedAllBut(&s, 2, 1, 1);
  s.NotReached(1);
  s.Say("It may come back with another --data-host, until job.join_timeout is over.");
  for (int i = 0; i < 200 && s.Status().phase == Phase::kGathering; ++i) {
    s.Wait(0.5);
    for (std::uint32_t w : {0u, 2u}) s.Pong(w);
  }
  s.Reached(0);
  s.Reached(2);
  EXPECT_EQ(s.Status().phase, Phase::kTraining);
  CompareWithFile(s.text(), "formation_without_who_is_not_reached");
}

TEST(Golden, FormationFailsWithTooFew) {
  Story s("Two do not reach each other, and all are needed", {.min_workers = 3});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w, false);
  ReachedAllBut(&s, 0, 1, 1);
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "formation_with_too_few");
}

TEST(Golden, FormationFailsOfTwoThatDoNotReachEachOther) {
  Story s("Of two that do not reach each other neither trains alone",
          {.workers = 2, .min_workers = 1});
  for (std::uint32_t w : {0u, 1u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u}) s.Ready(w, false);
  s.NotReached(0);
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "formation_of_two");
}

TEST(Golden, FormationTellsWhoIsInEachBrokenPair) {
  Story s("One that says of another one at each try that it does not reach it is found out",
          {.min_workers = 1});
  const auto ready = [&s](std::uint32_t w) {
    s.Hello(w, w);
    s.Ready(w, false);
  };
  for (std::uint32_t w : {0u, 1u, 2u}) ready(w);
  s.Say("It is the word of one against that of the other: the higher id goes.");
  ReachedAllBut(&s, 0, 2, 1);
  s.Reached(1);
  s.Reached(2);
  EXPECT_FALSE(s.IsConnected(2));
  ready(2);
  s.Say("Not again.");
  ReachedAllBut(&s, 0, 1, 2);
  s.Reached(1);
  s.Reached(2);
  EXPECT_FALSE(s.IsConnected(0));
  EXPECT_TRUE(s.IsConnected(1));
  CompareWithFile(s.text(), "formation_with_one_that_misses_others");
}

TEST(Golden, ConnectionsOverUcx) {
  Story s("Several connections are asked for, and the job uses UCX, which has its own",
          {.connections = 4});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Ready(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  CompareWithFile(s.text(), "formation_connections_over_ucx");
}

TEST(Golden, Refusals) {
  Story s("Who is not let in, and why", {.workers = 3, .transport = "auto"});
  s.Say("Another version of the protocol.");
  s.Connect(0);
  msg::Hello old;
  old.protocol = 7;
  old.version = "3.1";
  s.From(0, old);
  s.Say("Other data: who comes first does not decide.");
  s.Hello(0);
  s.Hello(1);
  s.Hello(2);
  msg::Ready other;
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
  s.From(1, msg::Published{RoundId(9), Attempt(0)});
  s.Say("A later joiner without the job's transport.");
  s.Hello(1);
  msg::Ready without = s.ReadyOf(0);
  without.transports = {{"ucx", "u", ""}};
  s.From(1, without);
  CompareWithFile(s.text(), "refusals");
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
  s.From(1, msg::Level{RoundId(0)});
  CompareWithFile(s.text(), "quorum");
}

TEST(Golden, QuorumDoesNotCome) {
  Story s("A script raises and its worker leaves; nobody takes its place, and the job ends",
          {.min_workers = 3, .quorum_timeout_s = 60});
  s.Begin();
  s.From(1, msg::Leave{"ValueError: something of the script's own"});
  s.Sealed(0);
  s.Sealed(2);
  for (int i = 0; i < 31; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 2u}) {
      if (!s.finished()) s.Pong(w);
    }
  }
  CompareWithFile(s.text(), "quorum_does_not_come");
}

TEST(Golden, OtherParametersInTheFirstRound) {
  Story s("Who comes with other parameters is refused in the first round, and then given the job's",
          {.min_workers = 2});
  s.Begin();
  s.Die(1);
  msg::Ready other = s.ReadyOf(1);
  other.initial_digest = "another";
  s.Hello(1, 1);
  s.From(1, other);
  s.Reached(0);
  s.Reached(2);
  s.Reached(1);
  s.Sealed(0);
  s.Sealed(2);
  s.Say("Round 0 is committed.");
  s.Hello(1, 1);
  s.From(1, other);
  s.Reached(0);
  s.Reached(2);
  s.Reached(1);
  s.AllPublishAndApply({0, 2});
  CompareWithFile(s.text(), "other_parameters");
}

TEST(Golden, QuorumOfTheFirstRound) {
  Story s("Who comes in the first round makes the number full, and nobody has to say anything more",
          {.min_workers = 3});
  s.Begin();
  s.Die(1);
  for (std::uint32_t w : {0u, 2u}) s.Sealed(w);
  s.Hello(1, 1);
  s.From(1, s.ReadyOf(1));
  for (std::uint32_t w : {0u, 2u, 1u}) s.Reached(w);
  CompareWithFile(s.text(), "quorum_of_the_first_round");
}

TEST(Golden, OwnParameters) {
  Story s("Each comes with parameters of its own: those of one go to all, also to who comes later",
          {.own_parameters = true});
  const auto chunk = [](std::uint32_t giving, std::uint64_t offset, std::size_t bytes) {
    return msg::Given{giving, offset, std::vector<std::byte>(bytes)};
  };
  s.Begin();
  s.From(0, chunk(1, 0, 4));
  s.From(1, msg::CheckpointTaken{4});
  s.Say("The giver dies in the midst of it.");
  s.Die(0);
  s.From(1, chunk(2, 0, 8));
  s.Say("It has stored some of the first one's, too.");
  s.From(2, msg::CheckpointTaken{12});
  s.Say("Worker 0 comes again while round 0 is open.");
  s.Hello(0, 0);
  s.From(0, s.ReadyOf(0));
  for (std::uint32_t w : {1u, 2u, 0u}) s.Reached(w);
  s.From(1, chunk(3, 0, 8));
  s.From(0, msg::CheckpointTaken{8});
  s.Say("One more comes too late for that.");
  s.Die(0);
  s.Hello(0, 0);
  s.From(0, s.ReadyOf(0));
  for (std::uint32_t w : {1u, 2u, 0u}) s.Reached(w);
  s.From(1, chunk(4, 0, 4));
  s.Sealed(1);
  s.Sealed(2);
  s.From(1, chunk(4, 4, 4));
  CompareWithFile(s.text(), "own_parameters");
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
  s.From(2, msg::Leave{"it was asked to leave"});
  s.Say("The last one with the parameters stays.");
  s.Ask(DrainRequested{WorkerId(1)}, "operator: drain 1");
  s.Ask(DrainRequested{WorkerId(0)}, "operator: drain 0");
  CompareWithFile(s.text(), "drain");
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
  s.Ask(SlowdownRequested{"pattern=disrupted,factor=2,length=1s,workers=4"}, "operator: out of 4");
  s.Wait(6);
  s.Say("What is over is not told again.");
  s.Ask(SlowdownRequested{"worker=2,factor=4"}, "operator: another one");
  s.Ask(SlowdownRequested{"none"}, "operator: none");
  CompareWithFile(s.text(), "slowdowns");
}

TEST(Golden, NobodyIsWholeAnyMore) {
  Story s("Two cannot reach each other, and the only one that both reach is lost", {});
  s.Begin();
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  s.Say(
      "Worker 2 alone owns, until it dies. Nobody is left who could own. When they do not reach "
      "each other anew either, one of them has to go.");
  s.Die(2);
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  s.Wait(6);
  s.Sealed(0);
  s.Sealed(0);
  s.AllPublishAndApply({0});
  CompareWithFile(s.text(), "nobody_whole");
}

TEST(Golden, UnreachableBecauseItDied) {
  Story s("The end of a worker is first seen by its peer, which is not to go instead of it",
          {.workers = 2});
  s.Begin();
  s.From(1, msg::Unreachable{s.Id(0), "connection closed by peer"});
  s.Die(0);
  s.Sealed(1);
  s.AllPublishAndApply({1});
  CompareWithFile(s.text(), "unreachable_dead");
}

TEST(Golden, BrokenEdge) {
  Story s("Two workers lose each other and reach everybody else: neither owns", {.mapped = false});
  s.Begin();
  s.Sealed(0);
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  s.Sealed(1);
  s.Sealed(2);
  s.Receipts(2, {0, 1});
  CompareWithFile(s.text(), "broken_edge");
}

// Worker 2 is silent as an owner in round 0, and again in round 2, when it owns anew: workers 0 and
// 1 own round 3.
void FailAsAnOwner(Story& s) {
  s.Say("Worker 2 is silent as an owner in round 0, and again in round 2, when it owns anew.");
  s.Quiet(true);
  const auto round = [&s](double patience) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
    if (patience > 0) {
      s.Receipts(0, {1, 2});
      s.Receipts(1, {0, 2});
      s.Wait(patience / 2);
      for (std::uint32_t w : {0u, 1u}) s.Pong(w);
      s.Wait(patience / 2);
    }
    s.Receipts(0, {1, 2});
    s.Receipts(1, {0, 2});
    for (std::uint32_t w : {0u, 1u}) s.Published(w);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Applied(w);
  };
  round(2.8);
  round(0);
  s.Quiet(false);
  round(8);
}

TEST(Golden, BothOwnersHaveABrokenEdge) {
  Story s(
      "The two owners lose each other, and the third worker has failed as an owner: it owns all",
      {.mapped = false});
  s.Begin();
  FailAsAnOwner(s);
  s.Say("A map of workers 0 and 1 would be made again with each message.");
  s.Sealed(0);
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  s.Sealed(1);
  s.Sealed(2);
  s.Receipts(2, {0, 1});
  CompareWithFile(s.text(), "broken_edge_of_owners");
}

TEST(Golden, TheNextAttemptIsOwnedByWhoIsReached) {
  Story s("The two owners lose each other after a commit, and the third worker failed as an owner",
          {.mapped = false});
  s.Begin();
  FailAsAnOwner(s);
  s.Say("Owned by workers 0 and 1 again the next attempt would end as it began.");
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  for (std::uint32_t w : {0u, 1u, 2u}) {
    s.From(w, msg::HoldAnswer{Term(1), RoundId(3), Attempt(0), false});
  }
  CompareWithFile(s.text(), "next_attempt_is_reached");
}

TEST(Golden, ABrokenLinkIsMadeAgain) {
  Story s("The only link of two workers is reset: it is made again, and nobody has to go",
          {.workers = 2});
  s.Begin();
  s.Sealed(0);
  s.From(0, msg::Unreachable{s.Id(1), "connection reset"});
  s.Say("Once the other end has seen it, too, worker 0 connects again. At first in vain.");
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  s.NotReached(0);
  s.Wait(1.3);
  s.Reached(0);
  s.Sealed(1);
  s.Reached(1);
  s.AllPublishAndApply({0, 1});
  s.Say(
      "It breaks once more, and worker 0 has heard nothing of that when it says that it is there.");
  s.From(1, msg::Unreachable{s.Id(0), "connection reset"});
  s.Sealed(0);
  s.Wait(1.3);
  s.Reached(1);
  s.Reached(0);
  s.Reached(1);
  s.Sealed(1);
  CompareWithFile(s.text(), "link_made_again");
}

TEST(Golden, ALinkIsMadeAgainWhoseConnectingEndSeesTheBreakLast) {
  Story s("Of two that lose each other the one that connects still takes the old one for whole",
          {});
  s.Begin();
  s.From(2, msg::Unreachable{s.Id(1), "timed out"});
  s.Say("Worker 1 has no use for another connection, and says so.");
  s.Wait(1.3);
  s.Sealed(0);
  s.Sealed(1);
  s.Reached(1);
  s.Say("Then it hears of the break, which ends that try: the next one is made at once.");
  s.From(1, msg::Unreachable{s.Id(2), "timed out"});
  s.Reached(1);
  s.Reached(2);
  CompareWithFile(s.text(), "link_made_again_seen_last");
}

TEST(Golden, AUnitThatIsSaidToHaveTakenYears) {
  Story s("A worker says that a unit took three years; when it stops, it is lost all the same", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w, 1);
  s.Sealed(2, 100'000'000'000);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w, 1);
  s.From(2, msg::Progress{RoundId(1), 0, 1});
  s.Say("It answers each ping, and computes nothing.");
  for (int second = 0; second < 15; ++second) {
    s.Wait(1);
    for (std::uint32_t w : {0u, 1u, 2u}) {
      if (s.IsConnected(w)) s.Pong(w);
    }
  }
  CompareWithFile(s.text(), "unit_of_years");
}

}  // namespace
}  // namespace lockstep::coordinator
