// With which parameters a worker ends, and what it says of them.
#include "tests/unit/worker_core/machine_fixture.h"

namespace lockstep::worker {
namespace {

class EndingTest : public MachineTest {
 protected:
  static msg::Commit LastCommit() {
    msg::Commit commit = MakeCommit(0, {{kPeer, PartIndex(0), 1, 4}});
    commit.owners = {1, {{kPeer, 1}}};
    commit.next.reset();
    return commit;
  }
  void SumsCome() {
    SumReady sums = SumsOf(0);
    sums.inlined.ranges = {{0, 4096}};
    PeerSays(sums, 4096);
  }
  action::Exit Exit() {
    EXPECT_EQ(All<action::Exit>().size(), 1u);
    return All<action::Exit>().empty() ? action::Exit() : All<action::Exit>()[0];
  }
};

TEST_F(EndingTest, TheLastSumsAreTakenAndAppliedFirst) {
  Begin(1);
  const auto run = TakeRun();  // left out of the last round, in its run still
  Tell(LastCommit());
  Tell(msg::Finish{"done", false});
  EXPECT_TRUE(All<action::DigestState>().empty());
  SumsCome();
  EXPECT_TRUE(All<action::Apply>().empty());
  Do(event::CoordinatorGone{"closed"});  // it need not wait
  EXPECT_TRUE(All<action::Exit>().empty());
  Do(Done(1, run));
  Do(event::PartSealed{1, run.part, 2});
  ASSERT_EQ(All<action::Apply>().size(), 1u);
  Do(event::OpDone{All<action::Apply>()[0].op, false, 7, ""});
  ASSERT_EQ(All<action::DigestState>().size(), 1u);
  Do(event::OpDone{All<action::DigestState>()[0].op, false, 0, "abc"});
  const action::Exit exit = Exit();
  EXPECT_FALSE(exit.failed);
  EXPECT_EQ(exit.params_digest, "abc");
  EXPECT_EQ(exit.not_final, "");
}

TEST_F(EndingTest, SumsThatAreLostAreSaidToBe) {
  Begin(0);
  Tell(LastCommit());
  Tell(msg::Finish{"done", false});
  EXPECT_TRUE(All<action::Exit>().empty());
  Do(event::PeerDown{kPeer, "reset"});
  const action::Exit exit = Exit();
  EXPECT_FALSE(exit.failed);
  EXPECT_NE(exit.not_final.find("worker 1.1 is lost, which has its sums"), std::string::npos)
      << exit.not_final;
}

TEST_F(EndingTest, SumsAreNotWaitedForForEver) {
  Begin(0);
  Tell(LastCommit());
  Tell(msg::Finish{"done", false});
  now_ += Config().finish_timeout;
  Do(event::TimerDue{});
  EXPECT_NE(Exit().not_final.find("sums of round 0"), std::string::npos);
}

TEST_F(EndingTest, WhoIsBehindSaysSo) {
  Begin(0);
  Tell(MakeCommit(3, {{kPeer, PartIndex(0), 1, 4}}));
  ASSERT_TRUE(Told<msg::Behind>());
  Tell(msg::Finish{"done", false});
  EXPECT_NE(Exit().not_final.find("the commit of round 0 did not come"), std::string::npos);
}

TEST_F(EndingTest, WhoCatchesUpSaysSo) {
  Begin(0);
  Tell(msg::CatchUp{kPeer, RoundId(1)});
  Tell(msg::Finish{"done", false});
  EXPECT_NE(Exit().not_final.find("0 of 1 buckets"), std::string::npos);
}

TEST_F(EndingTest, AFailedJobHasNoLastParameters) {
  Begin(0);
  Tell(msg::Finish{"no quorum", true});
  EXPECT_TRUE(Exit().failed);
  EXPECT_EQ(Exit().not_final, "the job failed");
}

TEST_F(EndingTest, WhoLeavesHasWhatItHas) {
  Begin(0);
  Do(event::LeaveAsked{"SIGTERM"});
  EXPECT_TRUE(Exit().left);
  EXPECT_FALSE(Exit().failed);
  EXPECT_NE(Exit().not_final, "");
}

TEST_F(EndingTest, ARefusalIsTheReasonAndNotTheEndOfTheConnection) {
  Begin(0);
  Tell(msg::Refuse{"no place", false});
  EXPECT_EQ(Exit().reason, "the coordinator refuses this worker: no place");
  Do(event::CoordinatorGone{"closed"});
  EXPECT_TRUE(All<action::Exit>().empty());
}

TEST_F(EndingTest, WhoIsTakenOutIsToldWhyAndMayComeAgain) {
  Begin(0);
  Tell(msg::Refuse{"no message for 10.0 s", true});
  EXPECT_EQ(Exit().reason, "the coordinator has taken this worker out: no message for 10.0 s");
}

}  // namespace
}  // namespace lockstep::worker
