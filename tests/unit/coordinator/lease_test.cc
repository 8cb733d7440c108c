// A lease decides which coordinator leads. Its holder stops before it can have expired, whatever
// etcd says or does not say; another one leads only once it has created the key.

#include "coordinator/core/lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::coordinator {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr Duration kTtl = 4s;

class LeaseTest : public testing::Test {
 protected:
  // Returns the actions in words.
  std::string Step(Duration at, const Lease::Event& event) {
    std::vector<Lease::Action> actions;
    lease_.Step(Time(at), event, &actions);
    std::string text;
    const auto say = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
    for (const Lease::Action& action : actions) {
      if (std::holds_alternative<Lease::Look>(action)) say("look");
      if (std::holds_alternative<Lease::Grant>(action)) say("grant");
      if (std::holds_alternative<Lease::Take>(action)) say("take");
      if (std::holds_alternative<Lease::Keep>(action)) say("keep");
      if (std::holds_alternative<Lease::Revoke>(action)) say("revoke");
      if (std::holds_alternative<Lease::Lead>(action)) say("lead");
      if (const auto* timer = std::get_if<Lease::SetTimer>(&action)) {
        say("timer " + std::to_string(timer->at.time_since_epoch() / 1ms));
      }
      if (const auto* stop = std::get_if<Lease::StopLeading>(&action)) say("stop: " + stop->why);
    }
    return text;
  }
  // Granted at 10 s, and leads at 11 s.
  void Win() {
    Step(10s, Lease::TimerFired{});
    Step(10s, Lease::Absent{});
    Step(10500ms, Lease::Granted{7, kTtl});
    EXPECT_EQ(Step(11s, Lease::Taken{}), "lead, timer 11500");
  }

  Lease lease_{kTtl};
};

TEST_F(LeaseTest, WhoFindsItAbsentTakesIt) {
  EXPECT_EQ(Step(10s, Lease::TimerFired{}), "look");
  EXPECT_EQ(Step(10s, Lease::Absent{}), "grant");
  EXPECT_EQ(Step(10500ms, Lease::Granted{7, kTtl}), "take");
  EXPECT_FALSE(lease_.leading());
  EXPECT_EQ(Step(11s, Lease::Taken{}), "lead, timer 11500");
  EXPECT_TRUE(lease_.leading());
  // Three quarters of its time, from when it was asked for.
  EXPECT_EQ(lease_.leads_until(), Time(13s));
}

TEST_F(LeaseTest, WhileAnotherOneHoldsItItIsLookedAtAgain) {
  Step(10s, Lease::TimerFired{});
  EXPECT_EQ(Step(10s, Lease::HeldBy{"b"}), "timer 10500");
  EXPECT_EQ(lease_.holder(), "b");
  EXPECT_EQ(Step(10500ms, Lease::TimerFired{}), "look");
  EXPECT_EQ(Step(10500ms, Lease::Failed{"no route"}), "timer 11000");
  EXPECT_EQ(lease_.trouble(), "no route");
}

// Both have found it absent: the transaction decides, and the loser's lease is given back.
TEST_F(LeaseTest, OneOfTwoGetsIt) {
  Step(10s, Lease::TimerFired{});
  Step(10s, Lease::Absent{});
  Step(10s, Lease::Granted{7, kTtl});
  EXPECT_EQ(Step(10s, Lease::HeldBy{}), "revoke, timer 10500");
  EXPECT_FALSE(lease_.leading());
}

// The answer that says so is not there: it may hold the key, so that goes with the lease.
TEST_F(LeaseTest, AnAnswerThatIsLostIsNoLease) {
  Step(10s, Lease::TimerFired{});
  Step(10s, Lease::Absent{});
  Step(10s, Lease::Granted{7, kTtl});
  EXPECT_EQ(Step(11s, Lease::Failed{"closed"}), "revoke, timer 11500");
  EXPECT_FALSE(lease_.leading());
}

TEST_F(LeaseTest, AnAnswerThatComesTooLateIsNoLease) {
  Step(10s, Lease::TimerFired{});
  Step(10s, Lease::Absent{});
  Step(10s, Lease::Granted{7, kTtl});
  EXPECT_EQ(Step(13s, Lease::Taken{}), "revoke, timer 13500");
  EXPECT_FALSE(lease_.leading());
}

TEST_F(LeaseTest, ItCountsFromWhenTheRequestWasSent) {
  Win();
  EXPECT_EQ(Step(11500ms, Lease::TimerFired{}), "keep, timer 13000");
  EXPECT_EQ(Step(12900ms, Lease::Kept{}), "timer 12000");
  EXPECT_EQ(lease_.leads_until(), Time(14500ms));
}

TEST_F(LeaseTest, WithoutAnAnswerItEndsBeforeItCanExpire) {
  Win();
  Step(11500ms, Lease::TimerFired{});
  EXPECT_EQ(Step(12500ms, Lease::Failed{"etcd does not answer"}), "timer 13000");
  EXPECT_EQ(Step(13s, Lease::TimerFired{}), "stop: etcd does not answer");
  EXPECT_FALSE(lease_.leading());
  EXPECT_EQ(Step(14s, Lease::TimerFired{}), "");
}

// A request that has no answer yet is not waited for.
TEST_F(LeaseTest, NeitherDoesItWaitForOneUnderWay) {
  Win();
  EXPECT_EQ(Step(11500ms, Lease::TimerFired{}), "keep, timer 13000");
  EXPECT_THAT(Step(13s, Lease::TimerFired{}), HasSubstr("stop"));
}

// The answer was true when it was sent; this process was stopped since.
TEST_F(LeaseTest, AfterAStopOfTheProcessNoAnswerSavesIt) {
  Win();
  Step(11500ms, Lease::TimerFired{});
  EXPECT_THAT(Step(60s, Lease::Kept{}), HasSubstr("stop"));
}

TEST_F(LeaseTest, AShortAbsenceOfEtcdIsNone) {
  Win();
  Step(11500ms, Lease::TimerFired{});
  Step(11600ms, Lease::Failed{"Connection refused"});
  EXPECT_EQ(Step(12100ms, Lease::TimerFired{}), "keep, timer 13000");
  EXPECT_EQ(Step(12200ms, Lease::Kept{}), "timer 12600");
  EXPECT_EQ(lease_.trouble(), "");
  EXPECT_EQ(lease_.leads_until(), Time(15100ms));
}

TEST_F(LeaseTest, ALeaseThatEtcdDoesNotKnowIsLost) {
  Win();
  Step(11500ms, Lease::TimerFired{});
  EXPECT_EQ(Step(11600ms, Lease::Gone{}), "stop: etcd has let it expire");
}

TEST_F(LeaseTest, WhoCannotLeadLetsOthers) {
  Win();
  EXPECT_EQ(Step(11s, Lease::Resigned{}), "revoke, timer 11500");
  EXPECT_EQ(Step(11500ms, Lease::TimerFired{}), "look");
}

TEST_F(LeaseTest, AtTheEndItIsGivenBack) {
  Win();
  EXPECT_EQ(Step(12s, Lease::Ended{}), "revoke");
  EXPECT_EQ(Step(13s, Lease::TimerFired{}), "");
}

}  // namespace
}  // namespace lockstep::coordinator
