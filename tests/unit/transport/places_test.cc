#include "transport/places.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace lockstep::transport {
namespace {

using namespace std::chrono_literals;

constexpr Time kNow{1000s};

TEST(Places, TheOldestGivesWay) {
  Places places({.most = 2});
  const auto first = places.Take(kNow, "a");
  places.Take(kNow, "b");
  EXPECT_EQ(places.Take(kNow, "c").ended, first.ticket);
  EXPECT_EQ(places.taken(), 2u);
}

TEST(Places, WhoHasMostGivesWay) {
  Places places({.most = 8});
  const auto alone = places.Take(kNow, "a");
  std::vector<Places::Ticket> crowd;
  for (int i = 0; i < 7; ++i) crowd.push_back(places.Take(kNow, "b").ticket);
  // However many come from one address, the other one keeps its place and gets another one.
  for (int i = 0; i < 1000; ++i) {
    const auto taken = places.Take(kNow + i * 1s, "b");
    EXPECT_EQ(taken.ended, crowd.front());
    crowd.erase(crowd.begin());
    crowd.push_back(taken.ticket);
  }
  EXPECT_EQ(places.Take(kNow + 2000s, "a").ended, crowd.front());
  places.GiveBack(alone.ticket);
  EXPECT_FALSE(places.Take(kNow + 2000s, "c").ended);
}

TEST(Places, WhoIsSilentGivesWayToWhoSpeaks) {
  Places places({.most = 3});
  const auto first = places.Take(kNow, "a");
  const auto second = places.Take(kNow, "a");
  const auto third = places.Take(kNow, "a");
  places.Heard(first.ticket);
  EXPECT_EQ(places.Take(kNow + 1s, "a").ended, second.ticket);
  EXPECT_EQ(places.Take(kNow + 1s, "a").ended, third.ticket);
  // The two that have just come are not silent yet; otherwise they would end each other.
  EXPECT_EQ(places.Take(kNow + 1s, "a").ended, first.ticket);
}

TEST(Places, ANewcomerIsHeardInAFlood) {
  Places places({.most = 64});
  std::set<Places::Ticket> taken;
  for (int i = 0; i < 64; ++i) {
    const auto place = places.Take(kNow, "a");
    places.Heard(place.ticket);  // it drips
  }
  const auto worker = places.Take(kNow + 10s, "a");
  for (int i = 0; i < 60; ++i) EXPECT_NE(places.Take(kNow + 10s, "a").ended, worker.ticket);
}

TEST(Places, SomeAreLeftAloneForATime) {
  Places places({.most = 2, .undisturbed_silent = 1s, .undisturbed = 3s});
  EXPECT_EQ(places.FreeAt(kNow), kNow);
  const auto first = places.Take(kNow, "a");
  const auto second = places.Take(kNow + 1s, "a");
  EXPECT_EQ(places.FreeAt(kNow + 1s), kNow + 1s);
  places.Heard(first.ticket);
  EXPECT_EQ(places.FreeAt(kNow + 1s), kNow + 2s);
  EXPECT_EQ(places.Take(kNow + 2s, "a").ended, second.ticket);
  EXPECT_EQ(places.FreeAt(kNow + 2s), kNow + 3s);
  places.GiveBack(first.ticket);
  EXPECT_EQ(places.FreeAt(kNow + 2s), kNow + 2s);
}

}  // namespace
}  // namespace lockstep::transport
