// A round from its plan to its close, its epoch's end, and what is said of it that is too late.
#include <gtest/gtest.h>

#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, FullRound) {
  Story s("A round of three workers under `full`: it closes when all have delivered", {});
  s.Begin();
  s.Say("Worker 1 is the last; Commit(0) carries the plan of round 1.");
  s.Sealed(0);
  s.Sealed(2);
  s.From(1, msg::Progress{RoundId(0), 1, 2});
  s.Sealed(1);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("Commit(1) closes round 0.");
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  CompareWithFile(s.text(), "full_round");
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
  CompareWithFile(s.text(), "receipts");
}

TEST(Golden, LostWorkerUnderFull) {
  Story s("A worker is lost within a round under `full`: the others do its units", {});
  s.Begin();
  s.Sealed(0);
  s.Say("Worker 0 has sealed, so its new unit makes a second part; worker 2 has not.");
  s.Die(1);
  s.Sealed(0);
  s.Sealed(2);
  CompareWithFile(s.text(), "lost_under_full");
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
  CompareWithFile(s.text(), "lost_under_backup");
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
  s.Say("What was sent under the old map tells nothing of the new one.");
  s.From(0, msg::Receipts{RoundId(0), 0, {{s.Id(1), PartIndex(0)}, {s.Id(2), PartIndex(0)}}});
  s.From(1, msg::Receipts{RoundId(0), 0, {{s.Id(0), PartIndex(0)}, {s.Id(2), PartIndex(0)}}});
  s.Say("Receipts under the new map close the round, with the contribution of worker 2 in it.");
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  s.Say("It owns again once it has contributed to a later round.");
  s.AllPublishAndApply({0, 1});
  s.Applied(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(0, {1, 2});
  s.Receipts(1, {0, 2});
  CompareWithFile(s.text(), "silent_owner_before_commit");
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
  CompareWithFile(s.text(), "epoch_end");
}

TEST(Golden, DigestsDiffer) {
  Story s("A worker's parameters differ from the majority's: it catches up", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
  s.Applied(0, 0xa);
  s.Applied(1, 0xb);
  s.Applied(2, 0xa);
  s.From(1, msg::Progress{RoundId(1), 1, 1});
  s.From(1, msg::Level{RoundId(0)});
  CompareWithFile(s.text(), "digests_differ");
}

TEST(Golden, NoMajority) {
  Story s("Two workers, two kinds of data: nobody can say which is right", {.workers = 2});
  s.Hello(0);
  s.Ready(0);
  s.Hello(1);
  msg::Ready other = s.ReadyOf(0);
  other.dataset_digest = "xyz";
  s.From(1, other);
  CompareWithFile(s.text(), "no_majority");
}

TEST(Golden, TheConfigSaysWhichDataAreRight) {
  Story s("Two of three workers have other data than the config wants: they go",
          {.data_digest = "abc"});
  s.Hello(0);
  s.Hello(1);
  s.Hello(2);
  msg::Ready other;
  other.dataset_digest = "xyz";
  other.train_samples = other.parameter_count = 1;
  s.From(0, other);
  s.From(1, other);
  s.Ready(2, false);
  CompareWithFile(s.text(), "data_digest");
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
  CompareWithFile(s.text(), "coordinator_stopped");
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
  CompareWithFile(s.text(), "coordinator_stopped_shortly");
}

}  // namespace
}  // namespace lockstep::coordinator
