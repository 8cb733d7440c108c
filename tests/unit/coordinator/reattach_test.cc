// A coordinator that takes over goes on with what its workers hold: the newest of what the journal
// tells of, whoever has it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using testing::HasSubstr;
using testing::Not;

// What a job of so many workers has noted with its first commits.
std::vector<JournalEntry> JournalOf(int rounds, std::uint32_t workers = 2) {
  Story s("before", {.workers = workers, .min_workers = workers});
  s.Begin();
  std::vector<std::uint32_t> all(workers);
  std::iota(all.begin(), all.end(), 0u);
  for (int round = 0; round < rounds; ++round) {
    for (std::uint32_t w : all) s.Sealed(w);
    s.AllPublishAndApply(all);
  }
  // The first one is of the start.
  EXPECT_EQ(s.journal().size(), static_cast<std::size_t>(rounds) + 1);
  EXPECT_EQ(s.journal().front().held(), (HeldParameters{Term(1), RoundId(0), std::nullopt}));
  return {s.journal().begin() + 1, s.journal().end()};
}

// A standby that has followed so many of the entries.
Story TakesOverAfter(std::size_t followed, std::vector<JournalEntry> journal) {
  journal.resize(followed);
  return Story("after",
               {.workers = 2, .min_workers = 2, .journal = journal, .journal_followed = true});
}

Story TakesOver(const std::vector<JournalEntry>& journal,
                const std::optional<JobState>& checkpoint = std::nullopt) {
  return Story("after", {.workers = 2, .min_workers = 2, .resume = checkpoint, .journal = journal});
}

void Form(Story* s) {
  for (std::uint32_t w : {0u, 1u}) s->Reached(w);
}

TEST(Reattach, NotesEachCommitBeforeAnybodyHearsOfIt) {
  const auto journal = JournalOf(3);
  EXPECT_EQ(journal.back().held(), (HeldParameters{Term(1), RoundId(3), Attempt(0)}));
  EXPECT_EQ(journal.back().state.totals.samples_counted, 36u);
  EXPECT_EQ(SizeOf(journal.back().state.sampler.uncounted), 120u - 36u);
  EXPECT_EQ(journal.back().record->round, RoundId(2));
}

TEST(Reattach, GoesOnFromWhatAllHold) {
  const auto journal = JournalOf(3);
  Story s = TakesOver(journal);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, journal.back().held());
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("the job goes on from round 3, whose parameters 2 workers held"));
  EXPECT_THAT(s.text(), Not(HasSubstr("cut the records")));
  EXPECT_EQ(s.Status().totals.samples_counted, 36u);
  // From here on the next one would go on: nothing was committed since.
  EXPECT_EQ(s.journal().front().held(), (HeldParameters{Term(2), RoundId(3), std::nullopt}));
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  EXPECT_EQ(s.Commit(0).round, RoundId(3));
  EXPECT_EQ(s.Commit(0).term, Term(2));
}

// The round that was committed last is in the parameters of one of them: that makes it a fact.
TEST(Reattach, WhoHasTheLastRoundMakesItCount) {
  const auto journal = JournalOf(3);
  Story s = TakesOver(journal);
  s.Hello(0);
  s.ReadyWith(0, journal[1].held());
  s.Hello(1);
  s.ReadyWith(1, journal[2].held());
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("the job goes on from round 3, whose parameters 1 worker held; 1 "
                                  "copies them"));
  EXPECT_THAT(s.text(), HasSubstr("worker 0 catches up from worker 1"));
}

TEST(Reattach, WhatNobodyHoldsIsComputedAgain) {
  const auto journal = JournalOf(3);
  Story s = TakesOver(journal);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, journal[1].held());
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("cut the records back to round 2"));
  EXPECT_THAT(s.text(), HasSubstr("goes on from round 2"));
  EXPECT_EQ(s.Status().totals.samples_counted, 24u);
}

// Of another term, or of an attempt that was replaced: nobody else has these bits.
TEST(Reattach, WhatTheJournalDoesNotTellOfIsNotBelieved) {
  const auto journal = JournalOf(3);
  HeldParameters other = journal.back().held();
  other.attempt = Attempt(1);
  Story s = TakesOver(journal);
  s.Hello(0);
  s.ReadyWith(0, other);
  s.Hello(1);
  s.ReadyWith(1, journal[1].held());
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("the job goes on from round 2, whose parameters 1 worker held; 1 "
                                  "copies them"));
}

TEST(Reattach, WithoutHoldersItIsTheCheckpoint) {
  const auto journal = JournalOf(3);
  Story s = TakesOver(journal, journal[0].state);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.Ready(w, false);
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("it goes on from its checkpoint after round 0"));
  EXPECT_THAT(s.text(), HasSubstr("stream the checkpoint"));
  // A coordinator that dies now leaves records that go with the journal.
  EXPECT_THAT(s.text(), Not(HasSubstr("cut the records")));
  EXPECT_TRUE(s.journal().empty());
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::CheckpointTaken{16});
  ASSERT_EQ(s.journal().size(), 1u);
  EXPECT_EQ(s.journal().front().held(), (HeldParameters{Term(2), RoundId(1), std::nullopt}));
  EXPECT_THAT(s.text(), HasSubstr("cut the records back to round 1"));
}

TEST(Reattach, WithoutHoldersAndCheckpointItFails) {
  Story s = TakesOver(JournalOf(3));
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.Ready(w, false);
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("no worker holds the parameters of the job before, and no "
                                  "checkpoint was written"));
  EXPECT_TRUE(s.finished());
}

// Of two workers one is gone with the coordinator: the other one is waited for no longer than
// liveness.timeout where it is enough.
TEST(Reattach, WhoIsThereGoesOnAfterOneTimeOut) {
  const auto journal = JournalOf(3);
  Story s("after", {.workers = 2, .min_workers = 1, .journal = journal});
  s.Hello(0);
  s.ReadyWith(0, journal.back().held());
  s.Wait(9);
  EXPECT_THAT(s.text(), Not(HasSubstr("goes on from round 3")));
  s.Wait(2);
  s.Reached(0);
  EXPECT_THAT(s.text(), HasSubstr("worker 1 is not there after 10s (liveness.timeout)"));
  EXPECT_THAT(s.text(), HasSubstr("goes on from round 3"));
}

// Worker 1 was lost before the coordinator died. Nobody waits for it.
TEST(Reattach, WhoWasLostBeforeIsNotWaitedFor) {
  Story before("before", {.workers = 3, .min_workers = 1});
  before.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) before.Sealed(w);
  before.AllPublishAndApply({0, 1, 2});
  before.Die(1);
  for (std::uint32_t w : {0u, 2u}) before.Sealed(w);
  before.AllPublishAndApply({0, 2});
  const std::vector<JournalEntry> journal = before.journal();
  ASSERT_EQ(journal.back().members, (std::vector{WorkerId(0), WorkerId(2)}));
  Story s("after", {.workers = 3, .min_workers = 1, .transport = "tcp", .journal = journal});
  s.Hello(0, 0);
  s.ReadyWith(0, journal.back().held());
  EXPECT_THAT(s.text(), Not(HasSubstr("form")));
  s.Hello(2, 2);
  s.ReadyWith(2, journal.back().held());
  for (std::uint32_t w : {0u, 2u}) s.Reached(w);
  EXPECT_THAT(s.text(), HasSubstr("whose parameters 2 workers held"));
}

// The job has grown: it goes on with all that it has, not with so many as it began with.
TEST(Reattach, AllMembersOfAJobThatHasGrownAreWaitedFor) {
  std::vector<JournalEntry> journal = JournalOf(3, 3);
  Story s(
      "after",
      {.workers = 3, .begin_workers = 2, .min_workers = 1, .transport = "tcp", .journal = journal});
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w, w);
    s.ReadyWith(w, journal.back().held());
  }
  EXPECT_THAT(s.text(), Not(HasSubstr("form")));
  s.Hello(2, 2);
  s.ReadyWith(2, journal.back().held());
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  EXPECT_THAT(s.text(), HasSubstr("whose parameters 3 workers held"));
}

// Worker 1 is there, and reads its data.
TEST(Reattach, WhoHasConnectedIsWaitedFor) {
  const auto journal = JournalOf(3);
  Story s("after", {.workers = 2, .min_workers = 1, .transport = "tcp", .journal = journal});
  s.Hello(0);
  s.ReadyWith(0, journal.back().held());
  s.Hello(1);
  for (int i = 0; i < 15; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u}) s.Pong(w);
  }
  EXPECT_THAT(s.text(),
              HasSubstr("1 worker is ready after 10s (liveness.timeout). The job "
                        "waits on for worker 1, which has connected and is not ready, for "
                        "at most 60s (job.join_timeout) in all"));
  EXPECT_THAT(s.text(), Not(HasSubstr("the job starts with")));
  s.ReadyWith(1, journal.back().held());
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("goes on from round 3, whose parameters 2 workers held"));
}

TEST(Reattach, WhoHasConnectedAndIsNeverReadyIsNotWaitedForLonger) {
  const auto journal = JournalOf(3);
  Story s("after", {.workers = 2, .min_workers = 1, .transport = "tcp", .journal = journal});
  s.Hello(0);
  s.ReadyWith(0, journal.back().held());
  s.Hello(1);
  for (int i = 0; i < 31; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u}) s.Pong(w);
  }
  EXPECT_THAT(s.text(), HasSubstr("the job starts with 1 worker: worker 1 is not ready after "
                                  "60s (job.join_timeout)"));
  s.Reached(0);
  EXPECT_THAT(s.text(), HasSubstr("goes on from round 3, whose parameters 1 worker held"));
}

// That it reaches all others but this one.
void ReachesAllBut(Story* s, std::uint32_t from, std::uint32_t missed, std::uint32_t formation) {
  msg::Reached reached{formation, {}};
  for (std::uint32_t w : {0u, 1u, 2u}) {
    if (w == from || !s->IsConnected(w)) continue;
    const bool there = w != missed;
    reached.peers.push_back({s->Id(w), there, there ? "" : "timed out", false, "tcp", 1});
  }
  s->From(from, reached);
}

// The job would have gone on without that link, and so it does with the next coordinator.
// Workers that left a coordinator which stood still have kept what they held.
TEST(Reattach, ACoordinatorThatAllHaveLeftHandsOver) {
  Story s("left", {.workers = 2, .min_workers = 2});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  s.Stand(60);
  s.Die(0);
  // It would have no parameters to go on with under the same coordinator.
  s.Hello(0);
  EXPECT_THAT(s.text(), HasSubstr("the coordinator itself stood still, and looks who has left"));
  s.Die(1);
  s.Wait(0.1);
  ASSERT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("handed over"));
  EXPECT_THAT(s.text(), Not(HasSubstr("Finish")));
}

TEST(Reattach, ItIsHandedOverBeforeTheFirstCommit) {
  Story s("left", {.workers = 2, .min_workers = 2});
  s.Begin();
  s.Stand(60);
  for (std::uint32_t w : {0u, 1u}) s.Die(w);
  s.Wait(0.1);
  ASSERT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("job handed over: the coordinator itself stood still for"));
}

TEST(Reattach, ALinkIsCutWhileACoordinatorTakesOver) {
  const auto journal = JournalOf(3, 3);
  Story s("after", {.workers = 3, .min_workers = 3, .transport = "tcp", .journal = journal});
  for (std::uint32_t w : {0u, 1u, 2u}) {
    s.Hello(w);
    s.ReadyWith(w, journal.back().held());
  }
  ReachesAllBut(&s, 0, 1, 1);
  ReachesAllBut(&s, 1, 0, 1);
  s.Reached(2);
  ASSERT_FALSE(s.finished()) << s.text();
  EXPECT_THAT(s.text(), HasSubstr("worker 0 cannot reach worker 1: timed out"));
  EXPECT_THAT(s.text(), HasSubstr("goes on from round 3, whose parameters 3 workers held"));
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.Receipts(2, {0, 1, 2});
  ASSERT_TRUE(s.HasCommit(0)) << s.text();
  EXPECT_EQ(s.Commit(0).round, RoundId(3));
  for (const OwnerShare& share : s.Commit(0).owners.owners) {
    EXPECT_EQ(share.owner.worker, WorkerId(2));
  }
  s.Published(2);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Applied(w);
  EXPECT_EQ(s.Status().members.size(), 3u);
}

// Of two that do not reach each other, the one with the higher id goes, as in a running job.
TEST(Reattach, OfTwoWithoutALinkOneGoesOn) {
  const auto journal = JournalOf(3);
  Story s("after", {.workers = 2, .min_workers = 1, .transport = "tcp", .journal = journal});
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, journal.back().held());
  }
  for (std::uint32_t w : {0u, 1u}) s.NeverReaches(w);
  for (std::uint32_t w : {0u, 1u}) s.NotReached(w);
  s.Wait(15);
  EXPECT_FALSE(s.finished()) << s.text();
  EXPECT_THAT(s.text(), HasSubstr("worker 1 is out: it and other workers cannot reach each other"));
  s.Sealed(0);
  EXPECT_TRUE(s.HasCommit(0)) << s.text();
}

// What a worker holds beyond the journal was committed without the standby. It does not lead, and
// it leaves the workers what they hold.
TEST(Reattach, AStandbyThatMissedAnEntryDoesNotLead) {
  const auto journal = JournalOf(3);
  for (const std::size_t followed : {std::size_t{2}, std::size_t{3}}) {
    Story s = TakesOverAfter(followed, journal);
    for (std::uint32_t w : {0u, 1u}) {
      s.Hello(w);
      s.ReadyWith(w, journal[w + 1].held());
    }
    Form(&s);
    const bool complete = followed == journal.size();
    EXPECT_EQ(s.finished(), !complete);
    if (complete) {
      EXPECT_THAT(s.text(), HasSubstr("the job goes on from round 3"));
      continue;
    }
    EXPECT_THAT(s.text(), HasSubstr("abandon: worker 1 holds the parameters before round 3, and "
                                    "the journal that this standby has followed ends before "
                                    "round 2"));
    EXPECT_THAT(s.text(), Not(HasSubstr("Finish")));
    EXPECT_THAT(s.text(), Not(HasSubstr("Refuse")));
  }
}

// Those who are there are told, and those who join are.
TEST(Reattach, WorkersAreToldOfStandbys) {
  Story s("standbys", {.workers = 2, .min_workers = 1});
  s.Hello(0);
  s.Ask(StandbysChanged{{"10.0.0.2:7070"}}, "a standby");
  EXPECT_THAT(s.text(), HasSubstr("-> 0: Standbys 10.0.0.2:7070"));
  s.Hello(1);
  EXPECT_THAT(s.text(), HasSubstr("the next coordinator may be at 10.0.0.2:7070"));
}

// Of a job that had hardly begun.
TEST(Reattach, WithoutHoldersOfTheFirstRoundItBeginsAnew) {
  Story before("before", {.workers = 2, .min_workers = 2});
  before.Begin();
  for (std::uint32_t w : {0u, 1u}) before.Sealed(w);
  ASSERT_EQ(before.journal().back().state.next_round, RoundId(1));
  Story s = TakesOver(before.journal());
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.Ready(w, false);
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("no worker holds the parameters of the job before: it begins "
                                  "anew"));
  EXPECT_THAT(s.text(), HasSubstr("cut the records back to round 0"));
  EXPECT_THAT(s.text(), HasSubstr("Start from the seed: plan 0"));
}

// Nobody copies what is before the first round, and the quorum may need them for that.
TEST(Reattach, WhoHasTheFirstParametersGoesOnAndOthersBeginAnew) {
  Story before("before", {.workers = 2, .min_workers = 1});
  before.Begin();
  Story s("after", {.workers = 2, .min_workers = 1, .journal = before.journal()});
  s.Hello(0);
  s.ReadyWith(0, before.journal().back().held());
  s.Hello(1);
  s.Ready(1, false);
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("whose parameters 1 worker held; 1 begins as in a new job"));
  EXPECT_THAT(s.text(), HasSubstr("-> 0: Start from its own parameters: plan 0"));
  EXPECT_THAT(s.text(), HasSubstr("-> 1: Start from the seed: plan 0"));
  EXPECT_THAT(s.text(), HasSubstr("worker 1 is in the job from round 0 on"));
}

// A job of two rounds whose coordinator died behind the last commit.
// `saved`: its last checkpoint is there.
Story EndsAfter(Story* before, std::uint64_t test_samples = 0, bool saved = false) {
  before->Begin();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t w : {0u, 1u}) before->Sealed(w);
    if (round == 0) before->AllPublishAndApply({0, 1});
  }
  EXPECT_EQ(before->journal().back().state.next_round, RoundId(2));
  EXPECT_EQ(before->journal().back().record->round, RoundId(1));
  return Story("after",
               {.workers = 2,
                .min_workers = 2,
                .rounds = 2,
                .test_samples = test_samples,
                .resume = saved ? std::optional(before->journal().back().state) : std::nullopt,
                .journal = before->journal()});
}

TEST(Reattach, BehindTheLastCommitTheRestIsDone) {
  Story before("before", {.workers = 2, .min_workers = 2, .rounds = 2, .test_samples = 40});
  Story s = EndsAfter(&before, 40);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, before.journal().back().held());
  }
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("round 1 was the job's last one, and the job ends"));
  EXPECT_THAT(s.text(), HasSubstr("-> all: Start from its own parameters: plan 2 (epoch 0): owners "
                                  "v0: 0 1, members 0 1\n"));
  EXPECT_THAT(s.text(), HasSubstr("evaluation 1, checkpoint by 0"));
  EXPECT_THAT(s.text(), Not(HasSubstr("Finish")));
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 1);
  s.Upload(0, 1);
  s.Saved(1);
  EXPECT_THAT(s.text(), HasSubstr("Evaluate"));
  EXPECT_THAT(s.text(), Not(HasSubstr("Finish"))) << "the evaluation is not there yet";
}

TEST(Reattach, TheLastCheckpointThatIsThereIsNotWrittenAgain) {
  Story before("before", {.workers = 2, .min_workers = 2, .rounds = 2});
  Story s = EndsAfter(&before, 0, /*saved=*/true);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, before.journal().back().held());
  }
  Form(&s);
  EXPECT_THAT(s.text(), Not(HasSubstr("checkpoint by")));
  EXPECT_THAT(s.text(), HasSubstr("Finish: all rounds are done"));
}

TEST(Reattach, WhoWasToWriteTheLastCheckpointMayBeLost) {
  Story before("before", {.workers = 2, .min_workers = 1, .rounds = 2});
  Story s = EndsAfter(&before);
  for (std::uint32_t w : {0u, 1u}) {
    s.Hello(w);
    s.ReadyWith(w, before.journal().back().held());
  }
  Form(&s);
  ASSERT_THAT(s.text(), HasSubstr("checkpoint by 0"));
  s.Die(0);
  EXPECT_THAT(s.text(), HasSubstr("checkpoint by 1"));
  s.TellState(1, 1);
  s.Upload(1, 1);
  s.Saved(1);
  EXPECT_THAT(s.text(), HasSubstr("Finish: all rounds are done"));
}

TEST(Reattach, WhoLacksTheLastRoundCopiesIt) {
  Story before("before", {.workers = 2, .min_workers = 2, .rounds = 2});
  Story s = EndsAfter(&before);
  s.Hello(0);
  s.ReadyWith(0, before.journal().back().held());
  s.Hello(1);
  s.ReadyWith(1, before.journal()[1].held());
  Form(&s);
  EXPECT_THAT(s.text(), HasSubstr("worker 1 catches up from worker 0"));
  s.TellState(0, 1);
  s.Upload(0, 1);
  s.Saved(1);
  EXPECT_THAT(s.text(), Not(HasSubstr("Finish"))) << "it copies yet";
  s.From(1, msg::Level{RoundId(1), s.CopyOrder(1)});
  EXPECT_THAT(s.text(), HasSubstr("Finish: all rounds are done"));
}

// They were told of the end, and have ended.
TEST(Reattach, BehindTheLastCheckpointNobodyIsNeeded) {
  Story before("before", {.workers = 2, .min_workers = 2, .rounds = 2});
  Story s = EndsAfter(&before, 0, /*saved=*/true);
  s.Connect(0);
  s.Die(0);
  s.Wait(60);
  EXPECT_TRUE(s.finished());
  EXPECT_THAT(s.text(), HasSubstr("completed"));
}

TEST(Reattach, WithoutTheLastCheckpointSomebodyIsNeeded) {
  Story before("before", {.workers = 2, .min_workers = 2, .rounds = 2});
  Story s = EndsAfter(&before);
  s.Connect(0);
  s.Die(0);
  s.Wait(3600);
  EXPECT_THAT(s.text(), HasSubstr("no worker joined in time"));
}
// --- with optimizer.replicas: each of three workers has its own shard and the next one's

Story Sharded(const std::string& title, const std::vector<JournalEntry>& journal = {}) {
  return Story(title, {.workers = 3, .min_workers = 3, .journal = journal, .replicas = 2});
}

// So many rounds, of which the last one is not yet decided.
Story ShardedRounds(int rounds) {
  Story s = Sharded("before");
  s.Begin();
  for (int round = 0; round < rounds; ++round) {
    for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Published(w);
    if (round + 1 == rounds) break;
    for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Held{RoundId(round), Attempt(0)});
    for (std::uint32_t w : {0u, 1u, 2u}) s.Applied(w);
  }
  return s;
}

void TellHeld(Story* s, std::uint64_t round) {
  for (std::uint32_t w : {0u, 1u, 2u}) s->From(w, msg::Held{RoundId(round), Attempt(0)});
}

TEST(Reattach, ADecisionIsNotedBeforeAnybodyHearsOfIt) {
  Story s = ShardedRounds(2);
  EXPECT_FALSE(s.journal().back().decided);
  const std::size_t noted = s.journal().size();
  TellHeld(&s, 1);
  ASSERT_EQ(s.journal().size(), noted + 1);
  EXPECT_TRUE(s.journal().back().decided);
  EXPECT_EQ(s.journal().back().held(), (HeldParameters{Term(1), RoundId(2), Attempt(0)}));
  EXPECT_EQ(s.journal().back().record->round, RoundId(1));
}

TEST(Reattach, WorkersAreToldWhatWasDecided) {
  Story before = ShardedRounds(2);
  {
    Story s = Sharded("undecided", before.journal());
    s.Hello(0);
    EXPECT_EQ(s.Decided(0), before.journal()[before.journal().size() - 2].held())
        << "the round before the last commit is";
  }
  TellHeld(&before, 1);
  Story s = Sharded("decided", before.journal());
  s.Hello(0);
  EXPECT_EQ(s.Decided(0), before.journal().back().held());
}

// Of two rounds, both decided.
std::vector<JournalEntry> DecidedJournal() {
  Story before = ShardedRounds(2);
  TellHeld(&before, 1);
  return before.journal();
}

Story SaidHello(const std::vector<JournalEntry>& journal) {
  Story s = Sharded("after", journal);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Hello(w);
  return s;
}

TEST(Reattach, ItGoesOnWhereAllShardsAreHeld) {
  const auto journal = DecidedJournal();
  const HeldParameters held = journal.back().held();
  Story s = SaidHello(journal);
  s.ReadyWith(0, held, {0, 1});
  s.ReadyWith(1, held, {1, 2});
  s.Ready(2, false);  // it has nothing
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  EXPECT_THAT(s.text(),
              HasSubstr("the job goes on from round 2, whose parameters 2 workers held; 1 "
                        "copies them"));
  EXPECT_THAT(s.text(), HasSubstr("held by 0/1 0/1 1/0"));
}

TEST(Reattach, WithoutAShardItDoesNotGoOn) {
  const auto journal = DecidedJournal();
  const HeldParameters held = journal.back().held();
  Story s = SaidHello(journal);
  s.ReadyWith(0, held, {0, 1});
  s.ReadyWith(1, held, {0, 1});
  s.ReadyWith(2, journal.front().held(), {2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.Reached(w);
  EXPECT_THAT(s.text(), HasSubstr("the workers together do not hold the parameters of the job "
                                  "before, and no checkpoint was written"));
}

TEST(Reattach, AShardThatTheJobDoesNotHaveIsAViolation) {
  Story before = ShardedRounds(2);
  Story s = Sharded("after", before.journal());
  s.Hello(0);
  s.ReadyWith(0, before.journal().back().held(), {3});
  EXPECT_THAT(s.text(), HasSubstr("holds shard 3 of 3"));
}

}  // namespace
}  // namespace lockstep::coordinator
