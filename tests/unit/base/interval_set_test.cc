#include "base/interval_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

TEST(IntervalSet, MergesNeighbours) {
  IntervalSet set;
  EXPECT_TRUE(set.Add({0, 2}));
  EXPECT_TRUE(set.Add({4, 6}));
  EXPECT_EQ(set.fragments(), 2u);
  EXPECT_TRUE(set.Add({2, 4}));
  EXPECT_THAT(set.Ranges(), ElementsAre(SampleRange{0, 6}));
  EXPECT_EQ(set.positions(), 6u);
}

TEST(IntervalSet, TakesNothingTwice) {
  IntervalSet set;
  ASSERT_TRUE(set.Add({2, 5}));
  for (const SampleRange range : {SampleRange{2, 5}, {0, 3}, {4, 9}, {3, 4}, {0, 9}}) {
    EXPECT_FALSE(set.Add(range)) << range.from << "-" << range.to;
  }
  EXPECT_EQ(set.positions(), 3u);
  EXPECT_TRUE(set.Add({7, 7}));
  EXPECT_EQ(set.fragments(), 1u);
}

TEST(IntervalSet, CoversAndIntersects) {
  IntervalSet set;
  ASSERT_TRUE(set.Add({2, 5}) && set.Add({8, 10}));
  EXPECT_TRUE(set.Covers({2, 5}));
  EXPECT_FALSE(set.Covers({2, 6}));
  EXPECT_FALSE(set.Covers({1, 3}));
  EXPECT_TRUE(set.Intersects({4, 9}));
  EXPECT_FALSE(set.Intersects({5, 8}));
  EXPECT_THAT(set.Within({3, 9}), ElementsAre(SampleRange{3, 5}, SampleRange{8, 9}));
}

TEST(IntervalSet, TakesFromTheFront) {
  IntervalSet set;
  ASSERT_TRUE(set.Add({2, 5}) && set.Add({8, 10}));
  EXPECT_EQ(set.TakeFront(2), (SampleRange{2, 4}));
  EXPECT_EQ(set.TakeFront(9), (SampleRange{4, 5}));
  EXPECT_EQ(set.TakeFront(9), (SampleRange{8, 10}));
  EXPECT_TRUE(set.empty());
}

TEST(IntervalSet, MergesAndRemoves) {
  IntervalSet set;
  set.Merge({10, 15});
  set.Merge({20, 25});
  set.Merge({13, 20});
  EXPECT_THAT(set.Ranges(), ElementsAre(SampleRange{10, 25}));
  set.Remove({12, 14});
  EXPECT_THAT(set.Ranges(), ElementsAre(SampleRange{10, 12}, SampleRange{14, 25}));
  EXPECT_TRUE(set.Covers({14, 25}));
  EXPECT_FALSE(set.Covers({11, 13}));
  EXPECT_THAT(set.Missing({8, 28}),
              ElementsAre(SampleRange{8, 10}, SampleRange{12, 14}, SampleRange{25, 28}));
}

TEST(IntervalSet, AgreesWithABitmap) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(seed);
    IntervalSet set;
    std::vector<bool> bits(60);
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t from = random.NextBelow(60);
      const SampleRange range{from, from + random.NextBelow(61 - from)};
      const auto in_set = std::count(bits.begin() + static_cast<std::ptrdiff_t>(range.from),
                                     bits.begin() + static_cast<std::ptrdiff_t>(range.to), true);
      ASSERT_EQ(set.Intersects(range), in_set > 0) << "seed " << seed;
      bool add = true;
      switch (random.NextBelow(3)) {
        case 0:
          set.Remove(range);
          add = false;
          break;
        case 1:
          set.Merge(range);
          break;
        default:
          ASSERT_EQ(set.Add(range), in_set == 0) << "seed " << seed;
          add = in_set == 0;
          if (!add) continue;
      }
      for (std::uint64_t i = range.from; i < range.to; ++i) bits[i] = add;
      std::uint64_t total = 0;
      for (std::uint64_t i = 0; i < 60; ++i) {
        ASSERT_EQ(set.Covers({i, i + 1}), bits[i]) << "seed " << seed;
        total += bits[i] ? 1 : 0;
      }
      ASSERT_EQ(set.positions(), total);
      std::uint64_t last = 0;
      for (const SampleRange& r : set.Ranges()) {
        ASSERT_TRUE(r.size() > 0 && (last == 0 || r.from > last)) << "seed " << seed;
        last = r.to;
      }
      for (const SampleRange& missing : set.Missing({0, 60})) total += missing.size();
      ASSERT_EQ(total, 60u);
    }
  }
}

}  // namespace
}  // namespace lockstep
