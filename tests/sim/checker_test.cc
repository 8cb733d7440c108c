// The checker sees what is wrong.
#include "tools/simulate/checker.h"

#include <gtest/gtest.h>

#include <memory>

namespace lockstep::simulate {
namespace {

const MemberId kZero{WorkerId(0), Incarnation(1)};
const MemberId kOne{WorkerId(1), Incarnation(1)};

class CheckerTest : public ::testing::Test {
 protected:
  CheckerTest() {
    for (const MemberId& id : {kZero, kOne}) {
      msg::Welcome welcome;
      welcome.self = id;
      Send({id}, welcome);
    }
    plan_.round = RoundId(0);
    plan_.assignments = {{kZero, {{UnitIndex(0), {0, 4}}, {UnitIndex(1), {4, 8}}}},
                         {kOne, {{UnitIndex(2), {8, 12}}}}};
    plan_.owners = {0, {{kZero, 1}, {kOne, 1}}};
    plan_.members = {kZero, kOne};
    Send({kZero, kOne}, msg::Start{StateSource::kSeed, plan_, 0});
  }

  static coordinator::StartParameters Parameters() {
    coordinator::StartParameters start;
    start.workers = 2;
    return start;
  }
  static coordinator::ConnectionId Of(const MemberId& id) {
    return coordinator::ConnectionId(id.worker.value + 1);
  }
  void Send(const std::vector<MemberId>& to, msg::ToWorker message) {
    coordinator::Send send;
    for (const MemberId& id : to) send.to.push_back(Of(id));
    send.message = std::make_shared<const msg::ToWorker>(std::move(message));
    checker_.OnSend(send);
  }
  void From(const MemberId& from, msg::FromWorker message) {
    checker_.OnEvent(coordinator::Received{Of(from), std::move(message)});
  }
  void Seal(const MemberId& from, const std::vector<Unit>& units) {
    msg::Sealed sealed;
    sealed.round = RoundId(0);
    for (const Unit& unit : units) {
      sealed.units.push_back({unit, 0, 1});
      sealed.samples += unit.range.size();
    }
    From(from, sealed);
  }
  void Receipt(const MemberId& from, const MemberId& of) {
    From(from, msg::Receipts{RoundId(0), 0, {{of, PartIndex(0)}}});
  }
  msg::Commit BothParts() {
    msg::Commit commit;
    commit.parts = {{kZero, PartIndex(0), 1, 8}, {kOne, PartIndex(0), 1, 4}};
    commit.owners = plan_.owners;
    commit.members = plan_.members;
    commit.samples = 12;
    commit.scale = static_cast<float>(1.0 / 12);
    commit.fraction = 0.75f;
    commit.steps = 1;
    commit.update = 1;
    commit.learning_rate = static_cast<float>(0.5 * OptimizerSection().lr);
    return commit;
  }
  void SealAll() {
    Seal(kZero, plan_.assignments[0].units);
    Seal(kOne, plan_.assignments[1].units);
    Receipt(kOne, kZero);
    Receipt(kZero, kOne);
  }

  static Checker::Options Config() {
    Checker::Options options;
    options.epoch_samples = 12;
    options.config.job.min_workers = 2;
    options.config.job.global_batch = 16;
    options.config.job.epochs = 1;
    options.config.schedule.name = "step";
    options.config.schedule.step_every = 1;
    options.config.schedule.warmup = 2;
    return options;
  }

  static coordinator::RoundRecord Record() {
    coordinator::RoundRecord record;
    record.contributors = {{WorkerId(0), PartIndex(0), 1, 8, {{0, 8}}},
                           {WorkerId(1), PartIndex(0), 1, 4, {{8, 12}}}};
    record.samples = 12;
    record.update = 1;
    record.learning_rate = static_cast<float>(0.5 * OptimizerSection().lr) * 0.75f;
    return record;
  }

  Simulation simulation_{Parameters(), 1, {}, nullptr};
  Checker checker_{Config(), &simulation_};
  Plan plan_;
};

TEST_F(CheckerTest, IsContentWithARoundThatIsRight) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  checker_.AfterStep();
  EXPECT_EQ(checker_.failure(), "");
}

TEST_F(CheckerTest, MissesAReceipt) {
  Seal(kZero, plan_.assignments[0].units);
  Seal(kOne, plan_.assignments[1].units);
  Receipt(kOne, kZero);
  Send({kZero, kOne}, BothParts());
  EXPECT_NE(checker_.failure().find("no receipt"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesASampleInTwoParts) {
  Seal(kZero, plan_.assignments[0].units);
  Seal(kOne, {{UnitIndex(1), {4, 8}}});
  Receipt(kOne, kZero);
  Receipt(kZero, kOne);
  Send({kZero, kOne}, BothParts());
  EXPECT_NE(checker_.failure().find("in two parts"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesAUnitThatWasNotHeld) {
  From(kZero, msg::Revoked{RoundId(0), 1});
  SealAll();
  Send({kZero, kOne}, BothParts());
  EXPECT_NE(checker_.failure().find("did not hold"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesARateOfAnotherPosition) {
  SealAll();
  msg::Commit commit = BothParts();
  commit.learning_rate = static_cast<float>(OptimizerSection().lr);  // the warm-up's second
  Send({kZero, kOne}, commit);
  EXPECT_NE(checker_.failure().find("learning rate"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesASampleThatARecordForgets) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  coordinator::RoundRecord record = Record();
  record.contributors[1].ranges = {{8, 11}};
  checker_.OnClosed(record);
  EXPECT_NE(checker_.failure().find("of 12 samples"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesARecordOfAnotherCommit) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  coordinator::RoundRecord record = Record();
  record.contributors.pop_back();
  record.requeued = {{8, 12}};
  checker_.OnClosed(record);
  EXPECT_NE(checker_.failure().find("another commit"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesAnHonestWorkerPutOut) {
  checker_.OnClose({Of(kOne), "no message for 2.0 s"});
  EXPECT_EQ(checker_.failure(), "");
  checker_.OnClose({Of(kOne), "it broke the protocol: it said Hello twice"});
  EXPECT_NE(checker_.failure().find("worker 1 is put out"), std::string::npos)
      << checker_.failure();
}

TEST_F(CheckerTest, SeesASmallRoundThatCountsAsAWholeStep) {
  SealAll();
  msg::Commit commit = BothParts();
  commit.fraction = 1;
  Send({kZero, kOne}, commit);
  EXPECT_NE(checker_.failure().find("of a step"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesAMissingQuorumAWrongScaleAndAWrongRound) {
  SealAll();
  msg::Commit commit = BothParts();
  commit.scale = 0.5f;
  Send({kZero, kOne}, commit);
  EXPECT_NE(checker_.failure().find("scale"), std::string::npos) << checker_.failure();

  Checker other(Config(), &simulation_);
  std::swap(checker_, other);
  SealAll();
  Send({kZero}, BothParts());
  EXPECT_NE(checker_.failure().find("committed with 0 members"), std::string::npos)
      << checker_.failure();
}

TEST_F(CheckerTest, SeesACommitAfterTheClose) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  checker_.OnClosed(Record());
  ASSERT_EQ(checker_.failure(), "");
  msg::Commit commit = BothParts();
  commit.attempt = Attempt(1);
  Send({kZero, kOne}, commit);
  EXPECT_NE(checker_.failure().find("after it was closed"), std::string::npos)
      << checker_.failure();
}

TEST_F(CheckerTest, SeesARoundThatIsOpenedAgainAfterItsClose) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  checker_.OnClosed(Record());
  ASSERT_EQ(checker_.failure(), "");
  plan_.attempt = Attempt(1);
  Send({kZero, kOne}, msg::Start{StateSource::kSeed, plan_, 0});
  EXPECT_NE(checker_.failure().find("opened again after it was closed"), std::string::npos)
      << checker_.failure();
}

// Worker 1 has applied round 0: while it is live, its attempt stands.
TEST_F(CheckerTest, SeesARoundThatIsOpenedAgainThoughALiveWorkerIsPastIt) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  msg::Applied applied;
  applied.round = RoundId(0);
  From(kOne, applied);
  std::vector<coordinator::MemberStatus> members(2);
  members[0].member = kZero;
  members[1].member = kOne;
  members[0].state = coordinator::MemberState::kLive;
  members[1].state = coordinator::MemberState::kBehind;
  checker_.AtReplacement(RoundId(0), members);
  EXPECT_EQ(checker_.failure(), "");
  members[1].state = coordinator::MemberState::kLive;
  checker_.AtReplacement(RoundId(1), members);
  EXPECT_EQ(checker_.failure(), "");
  checker_.AtReplacement(RoundId(0), members);
  EXPECT_NE(checker_.failure().find("while worker 1"), std::string::npos) << checker_.failure();
}

TEST_F(CheckerTest, SeesAnEpochThatIsNotWholeAndASampleThatCountsTwice) {
  SealAll();
  Send({kZero, kOne}, BothParts());
  coordinator::RoundRecord record = Record();
  record.contributors[1].ranges = {{4, 12}};
  checker_.OnClosed(record);
  EXPECT_NE(checker_.failure().find("something else too"), std::string::npos) << checker_.failure();
}

// Round 0 was closed by its second attempt: who has the first one has lost the job's parameters.
TEST_F(CheckerTest, SeesAJobThatFailsThoughAWorkerHasItsParameters) {
  SealAll();
  msg::Commit commit = BothParts();
  Send({kZero, kOne}, commit);
  commit.attempt = Attempt(1);
  Send({kZero, kOne}, commit);
  coordinator::RoundRecord record = Record();
  record.attempts = {{Attempt(0), ""}, {Attempt(1), ""}};
  checker_.OnClosed(record);
  ASSERT_EQ(checker_.failure(), "");
  worker::StepMachine::View view;
  view.level = true;
  view.next = RoundId(1);
  view.newest = Attempt(0);
  checker_.AtLoss("nobody is left", kOne, view);
  EXPECT_EQ(checker_.failure(), "");
  view.level = false;
  view.newest = Attempt(1);
  checker_.AtLoss("nobody is left", kOne, view);
  view.level = true;
  for (const std::uint64_t next : {0u, 2u}) {
    view.next = RoundId(next);
    checker_.AtLoss("nobody is left", kOne, view);
  }
  EXPECT_EQ(checker_.failure(), "");
  view.next = RoundId(1);
  checker_.AtLoss("nobody is left", kOne, view);
  EXPECT_NE(checker_.failure().find("though worker 1"), std::string::npos) << checker_.failure();
}

// After the only round of the only epoch, as the round's record has it.
TEST_F(CheckerTest, SeesACheckpointOfAnotherStanding) {
  coordinator::JobState right;
  right.next_round = RoundId(1);
  right.updates = 1;
  right.sampler = {12, Epoch(1), {{0, 12}}};
  right.totals.rounds = 1;
  right.totals.samples_counted = 12;
  const auto failure = [&](const coordinator::JobState& state, bool asked = true) {
    Checker anew(Config(), &simulation_);
    std::swap(checker_, anew);
    for (const MemberId& id : {kZero, kOne}) {
      msg::Welcome welcome;
      welcome.self = id;
      Send({id}, welcome);
    }
    Send({kZero, kOne}, msg::Start{StateSource::kSeed, plan_, 0});
    SealAll();
    msg::Commit commit = BothParts();
    if (asked) commit.checkpoint_writer = kZero;
    Send({kZero, kOne}, commit);
    checker_.OnClosed(Record());
    EXPECT_EQ(checker_.failure(), "");
    checker_.OnCheckpoint(state);
    return checker_.failure();
  };
  EXPECT_EQ(failure(right), "");
  EXPECT_NE(failure(right, false).find("not asked for"), std::string::npos);
  coordinator::JobState wrong = right;
  wrong.sampler = {12, Epoch(0), {}};
  EXPECT_NE(failure(wrong).find("of epoch 0 left"), std::string::npos) << failure(wrong);
  wrong = right;
  wrong.totals.samples_counted = 11;
  EXPECT_NE(failure(wrong).find("11 samples"), std::string::npos) << failure(wrong);
  wrong = right;
  wrong.updates = 2;
  EXPECT_NE(failure(wrong).find("in 2 updates"), std::string::npos) << failure(wrong);
}

}  // namespace
}  // namespace lockstep::simulate
