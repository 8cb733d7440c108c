// Times that a worker names, in the record of its round: where they can be, and nowhere else.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

constexpr std::int64_t kLast = std::int64_t{1} << 60;

// Both workers do their part of the open round; worker 1 with times of its own choice.
void Round(Story* s, const msg::Sealed& by_1) {
  s->Sealed(0, 1);
  s->From(1, by_1);
  s->AllPublishAndApply({0, 1});
}

// And the next commit closes it.
void CloseRound(Story* s, const msg::Sealed& by_1) {
  Round(s, by_1);
  s->OrdinaryRounds(1);
}

TEST(UnitTimes, AreThoseSinceTheUnitsWereGiven) {
  Story s("test", {.workers = 2});
  s.Begin();
  s.From(1, msg::Pong{0, 0, kLast});
  s.OrdinaryRounds(1);
  msg::Sealed sealed = s.Seal(1);
  for (UnitTiming& unit : sealed.units) unit.end_ns = unit.start_ns = 0;
  sealed.sent = {8, 4, kLast};
  CloseRound(&s, sealed);
  const RoundRecord& record = *s.record();
  ASSERT_EQ(record.round, RoundId(1)) << s.text();
  for (const UnitRecord& unit : record.units) {
    if (unit.worker != WorkerId(1)) continue;
    EXPECT_GE(unit.start, record.start);
    EXPECT_LE(unit.end, record.ready.at(WorkerId(1)) + 1e-9);
  }
  EXPECT_GE(record.sending.at(WorkerId(1)), record.start);
  EXPECT_LE(record.sending.at(WorkerId(1)), record.ready.at(WorkerId(1)) + 1e-9);
}

// Worker 1 computes three units of 10 ms from `at` on, by its own clock. Returns their recorded
// time.
double RecordedSeconds(Story* s, std::int64_t at) {
  msg::Sealed sealed = s->Seal(1);
  sealed.sealed_ns = s->now().time_since_epoch().count();
  EXPECT_EQ(sealed.units.size(), 3u);
  for (UnitTiming& unit : sealed.units) {
    unit.start_ns = at;
    at += 10'000'000;
    unit.end_ns = at;
  }
  CloseRound(s, sealed);
  if (s->record() == nullptr) return 0;
  double took = 0;
  for (const UnitRecord& unit : s->record()->units) {
    if (unit.worker == WorkerId(1)) took += unit.end - unit.start;
  }
  return took;
}

// We know its clock to some milliseconds, which is no reason to shorten what it has computed.
TEST(UnitTimes, AreMovedByWhatItsClockIsOff) {
  for (const bool ahead : {false, true}) {
    Story s("test", {.workers = 2});
    s.Begin();
    // The answer takes a second, all of it on one of its two ways: the clock looks half of that
    // ahead or behind.
    const std::int64_t asked = s.now().time_since_epoch().count();
    s.Wait(1);
    const std::int64_t now = s.now().time_since_epoch().count();
    s.From(1, msg::Pong{0, asked, ahead ? now : asked});
    const std::int64_t at = ahead ? asked + 1'000'000 : now - 30'000'000;
    EXPECT_NEAR(RecordedSeconds(&s, at), 0.03, 1e-6) << ahead;
  }
}

// The estimate is off by half a second then, which is more than the round takes.
TEST(UnitTimes, AreMovedAlsoInARoundThatIsShorterThanThat) {
  for (const bool ahead : {false, true}) {
    Story s("test", {.workers = 2});
    s.Begin();
    const std::int64_t asked = s.now().time_since_epoch().count();
    s.Wait(1);
    const std::int64_t now = s.now().time_since_epoch().count();
    s.From(1, msg::Pong{0, asked, ahead ? now : asked});
    s.OrdinaryRounds(1);
    s.Wait(0.04);
    const std::int64_t at = s.now().time_since_epoch().count() - 35'000'000;
    EXPECT_NEAR(RecordedSeconds(&s, at), 0.03, 1e-6) << ahead;
  }
}

// Story checks that each line of the record is one that its reader takes.
RC_GTEST_PROP(UnitTimes, OfAnyKindMakeALineThatCanBeRead, ()) {
  const auto any_time = [] {
    return *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(0, kLast + 1),
                           rc::gen::element<std::int64_t>(0, 1, kLast - 1, kLast));
  };
  Story s("test", {.workers = 2, .policy = *rc::gen::element<std::string>("full", "async")});
  s.Begin();
  for (int round = 0; round < 3; ++round) {
    if (*rc::gen::arbitrary<bool>()) {
      s.From(1, msg::Pong{0, s.now().time_since_epoch().count(), any_time()});
    }
    msg::Sealed sealed = s.Seal(1);
    sealed.sealed_ns = any_time();
    for (UnitTiming& unit : sealed.units) {
      std::tie(unit.start_ns, unit.end_ns) = std::minmax({any_time(), any_time()});
    }
    sealed.sent = {8, 4, any_time()};
    sealed.reading.waited_ns = static_cast<std::uint64_t>(any_time());
    sealed.loss_sum = *rc::gen::element(0.0, 1e300, -1.0);
    Round(&s, sealed);
  }
  s.OrdinaryRounds(1);
  RC_ASSERT(s.record() != nullptr);
}

}  // namespace
}  // namespace lockstep::coordinator
