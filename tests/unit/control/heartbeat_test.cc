#include "transport/control/heartbeat.h"

#include <gtest/gtest.h>

namespace lockstep::transport::control {
namespace {

using namespace std::chrono_literals;
using Verdict = Heartbeat::Verdict;

constexpr Duration kTimeout = 16s;  // a tick every second
constexpr Time kStart{1000s};

TEST(Heartbeat, SilenceForTheTimeoutIsDeath) {
  Heartbeat heartbeat(kTimeout, kStart);
  for (int s = 1; s < 16; ++s) {
    EXPECT_EQ(heartbeat.Tick(kStart + s * 1s, false), Verdict::kAlive) << s;
  }
  EXPECT_EQ(heartbeat.Tick(kStart + 16s, false), Verdict::kSilent);
}

TEST(Heartbeat, AnyByteCounts) {
  Heartbeat heartbeat(kTimeout, kStart);
  for (int s = 1; s < 46; ++s) {
    if (s == 10 || s == 20 || s == 30) {
      heartbeat.OnBytes(kStart + s * 1s);
      heartbeat.OnFrame(kStart + s * 1s);
    }
    EXPECT_EQ(heartbeat.Tick(kStart + s * 1s, false), Verdict::kAlive) << s;
  }
  EXPECT_EQ(heartbeat.Tick(kStart + 46s, false), Verdict::kSilent);
}

TEST(Heartbeat, WhatIsUnreadIsNotSilence) {
  Heartbeat heartbeat(kTimeout, kStart);
  for (int s = 1; s <= 20; ++s) {
    EXPECT_EQ(heartbeat.Tick(kStart + s * 1s, true), Verdict::kAlive);
  }
}

TEST(Heartbeat, AStopOfOurOwnIsNobodysSilence) {
  Heartbeat heartbeat(kTimeout, kStart);
  heartbeat.Tick(kStart + 1s, false);
  ASSERT_TRUE(heartbeat.PingDue(kStart + 1s));
  // Stopped for a minute: not dead, asked at once, and dead when nothing comes after that either.
  const Time woken = kStart + 61s;
  EXPECT_EQ(heartbeat.Tick(woken, false), Verdict::kAlive);
  EXPECT_TRUE(heartbeat.PingDue(woken));
  int seconds = 0;
  while (seconds < 30 && heartbeat.Tick(woken + seconds * 1s, false) == Verdict::kAlive) ++seconds;
  EXPECT_GE(seconds, 13);
  EXPECT_LE(seconds, 17);
}

TEST(Heartbeat, ALoopThatIsAlwaysABitLateStillSeesDeath) {
  Heartbeat heartbeat(kTimeout, kStart);
  Time now = kStart;
  int ticks = 0;
  do {
    now += 3s;
    ++ticks;
  } while (ticks < 100 && heartbeat.Tick(now, false) == Verdict::kAlive);
  EXPECT_LE(ticks, 6);
}

// Whoever wants to know need not wait for the next of its own; and only what was sent is answered.
TEST(Heartbeat, PingsWhenItIsAsked) {
  Heartbeat heartbeat(10s, kStart);
  const auto first = heartbeat.PingDue(kStart);
  ASSERT_TRUE(first);
  const msg::Ping asked = heartbeat.PingNow(kStart + 10ms);
  EXPECT_GT(asked.sequence, first->sequence);
  EXPECT_FALSE(heartbeat.PingDue(kStart + 2s));
  EXPECT_TRUE(heartbeat.OnPong({asked.sequence, asked.sent_ns, 0}, kStart + 11ms));
  EXPECT_FALSE(heartbeat.OnPong({asked.sequence + 1, asked.sent_ns, 0}, kStart + 11ms));
}

TEST(Heartbeat, DrippingIsNotLiving) {
  Heartbeat heartbeat(kTimeout, kStart);
  Time now = kStart;
  int seconds = 0;
  do {
    now += 1s;
    ++seconds;
    heartbeat.OnBytes(now);
  } while (seconds < 1000 && heartbeat.Tick(now, false) == Verdict::kAlive);
  EXPECT_EQ(seconds, 6 * 16);
}

TEST(Heartbeat, PingsFourTimesInATimeout) {
  Heartbeat heartbeat(kTimeout, kStart);
  int pings = 0;
  std::uint64_t last = 0;
  for (int s = 0; s < 160; ++s) {
    if (const auto ping = heartbeat.PingDue(kStart + s * 1s)) {
      ++pings;
      EXPECT_EQ(ping->sequence, last + 1);
      EXPECT_EQ(Time(Duration(ping->sent_ns)), kStart + s * 1s);
      last = ping->sequence;
    }
  }
  EXPECT_EQ(pings, 40);
}

TEST(Heartbeat, TheFastestAnswerTellsTheClock) {
  Heartbeat heartbeat(kTimeout, kStart);
  EXPECT_FALSE(heartbeat.clock());
  const Duration offset = 5000s;
  const auto answer = [&](Time sent, Duration there, Duration back) {
    const auto ping = heartbeat.PingDue(sent);
    ASSERT_TRUE(ping);
    const Time answered = sent + there + offset;
    heartbeat.OnPong({ping->sequence, ping->sent_ns, answered.time_since_epoch().count()},
                     sent + there + back);
  };
  answer(kStart, 40ms, 2ms);
  EXPECT_EQ(heartbeat.clock()->rtt, 42ms);
  answer(kStart + 10s, 1ms, 1ms);
  answer(kStart + 20s, 1ms, 30ms);
  ASSERT_TRUE(heartbeat.clock());
  EXPECT_EQ(heartbeat.clock()->rtt, 2ms);
  EXPECT_EQ(heartbeat.clock()->offset, offset);
}

TEST(Heartbeat, OldSamplesGoAndWrongAnswersDoNotCount) {
  Heartbeat heartbeat(kTimeout, kStart);
  heartbeat.OnPong({1, kStart.time_since_epoch().count(), 5}, kStart + 1ms);
  EXPECT_FALSE(heartbeat.clock()) << "no ping was sent";
  ASSERT_TRUE(heartbeat.PingDue(kStart));
  heartbeat.OnPong({1, (kStart + 1s).time_since_epoch().count(), 5}, kStart + 1ms);
  EXPECT_FALSE(heartbeat.clock()) << "sent in the future";
  heartbeat.OnPong({1, kStart.time_since_epoch().count(), 5}, kStart + 1us);
  EXPECT_EQ(heartbeat.clock()->rtt, 1us);
  for (int i = 0; i < 100; ++i) {
    heartbeat.OnPong({1, kStart.time_since_epoch().count(), 5}, kStart + 1ms);
  }
  EXPECT_EQ(heartbeat.clock()->rtt, 1ms);
}

}  // namespace
}  // namespace lockstep::transport::control
