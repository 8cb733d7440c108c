#include "base/log_limit.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr Time kNow{1000s};

TEST(LogLimit, TheFirstOnesAreWrittenAndTheOthersCounted) {
  LogLimit limit(3, 10s);
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.Allow(kNow + i * 1ms) ? 1 : 0;
  EXPECT_EQ(written, 3);
  EXPECT_EQ(limit.TakeLeftOut(kNow + 9s), 0u) << "not yet: more may come";
  EXPECT_EQ(limit.TakeLeftOut(kNow + 10s), 997u);
  EXPECT_EQ(limit.TakeLeftOut(kNow + 10s), 0u);
  EXPECT_TRUE(limit.Allow(kNow + 11s));
}

// As where nobody asks: strangers that have used up one window would keep it quiet for ever.
TEST(LogLimit, AWindowIsFollowedByTheNextOne) {
  LogLimit limit(3, 10s);
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.Allow(kNow + i * 100ms) ? 1 : 0;
  EXPECT_EQ(written, 30);
  EXPECT_EQ(limit.TakeLeftOut(kNow + 99s), 9u * 97) << "of the windows that are over";
  EXPECT_EQ(limit.TakeLeftOut(kNow + 100s), 97u);
}

TEST(LogLimit, NothingIsLostBetweenWindows) {
  LogLimit limit(1, 10s);
  std::uint64_t seen = 0;
  for (int i = 0; i < 100; ++i) {
    const Time now = kNow + i * 1s;
    seen += limit.Allow(now) ? 1 : 0;
    if (i % 7 == 0) seen += limit.TakeLeftOut(now);
  }
  EXPECT_EQ(seen + limit.TakeLeftOut(kNever), 100u);
}

}  // namespace
}  // namespace lockstep
