#include "coordinator/round/interval_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::coordinator {
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

}  // namespace
}  // namespace lockstep::coordinator
