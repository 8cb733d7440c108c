// A worker whose compute thread hangs in a run is found by what it says of itself, whatever the
// policy makes of it: one that nobody waits for would stay a member for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

msg::RunInHand RunOf(double seconds) { return {FromSeconds(seconds).count(), 2}; }

// Nothing is known of how long a unit takes, so the patience is ten times liveness.timeout.
class HungRun : public ::testing::Test {
 protected:
  HungRun() {
    s_.Begin();
    for (std::uint32_t w : {0u, 1u, 2u}) s_.Sealed(w);
    s_.AllPublishAndApply({0, 1, 2});
    s_.Wait(3);  // there has been a ping
  }
  Story s_{"test", {.workers = 3, .min_workers = 1}};
};

TEST_F(HungRun, PutsOutAWorkerOfTheRound) {
  s_.AnswerPing(2, RunOf(99));
  EXPECT_THAT(s_.text(), Not(HasSubstr("worker 2 is out")));
  s_.AnswerPing(2, RunOf(100.5));
  EXPECT_THAT(s_.text(), HasSubstr("worker 2 is out: no unit finished for 100.5 s"));
}

TEST_F(HungRun, PutsOutAWorkerThatIsBehind) {
  s_.From(2, msg::Behind{RoundId(0), true, "too many rounds wait"});
  s_.AnswerPing(2, RunOf(99));
  EXPECT_THAT(s_.text(), Not(HasSubstr("worker 2 is out")));
  s_.AnswerPing(2, RunOf(100.5));
  EXPECT_THAT(s_.text(), HasSubstr("worker 2 is out: no unit finished for 100.5 s"));
}

TEST_F(HungRun, IsNotThatOfAProgramThatSaysItIsAway) {
  s_.From(2, msg::Away{FromSeconds(60).count(), "validation"});
  s_.AnswerPing(2, RunOf(200));
  EXPECT_THAT(s_.text(), Not(HasSubstr("worker 2 is out")));
}

}  // namespace
}  // namespace lockstep::coordinator
