// Blocks become final in any order: which buckets may be told, and that none is told too early.
#include "worker/runtime/final_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "tests/property_check.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;

std::vector<std::uint32_t> Told(FinalBuckets& buckets, const std::vector<std::uint32_t>& blocks) {
  std::vector<std::uint32_t> told;
  for (const std::uint32_t block : blocks) told.push_back(buckets.Mark(block));
  return told;
}

// Four buckets of a block each, laid out as 3, 2, 1, 0.
FinalBuckets FourBlocks() { return FinalBuckets({1024, 1024, 1024, 1024}, {3, 2, 1, 0}, 4096); }

TEST(FinalBuckets, InTheirOrderEachBlockIsItsBucket) {
  FinalBuckets buckets = FourBlocks();
  EXPECT_THAT(Told(buckets, {3, 2, 1, 0}), ElementsAre(1, 2, 3, 4));
}

TEST(FinalBuckets, OneThatComesBeforeItsTurnCountsWhenTheOthersAreThere) {
  FinalBuckets buckets = FourBlocks();
  EXPECT_THAT(Told(buckets, {1, 2, 3, 0}), ElementsAre(0, 0, 3, 4));
  buckets.BeginRun();
  EXPECT_EQ(buckets.buckets(), 0);
  EXPECT_THAT(Told(buckets, {3, 1, 2}), ElementsAre(1, 1, 3));
}

TEST(FinalBuckets, WhatIsNeverReportedHoldsBackWhatIsBehindIt) {
  FinalBuckets buckets = FourBlocks();
  EXPECT_THAT(Told(buckets, {3, 1, 0}), ElementsAre(1, 1, 1));
}

TEST(FinalBuckets, TheOrderWithinABucketDoesNotMatter) {
  FinalBuckets buckets({100, 200, 300, 424, 5}, {4, 3, 2, 1, 0}, 4096);
  EXPECT_EQ(buckets.layout().bucket_count(), 2);
  EXPECT_THAT(Told(buckets, {3, 1, 2, 4, 0}), ElementsAre(0, 0, 0, 1, 2));
}

TEST(FinalBucketsDeathTest, ABlockIsFinalOnce) {
  FinalBuckets buckets = FourBlocks();
  buckets.Mark(2);
  EXPECT_DEATH(buckets.Mark(2), "block 2 is said to be final twice in a run");
  EXPECT_DEATH(buckets.Mark(4), "block 4 of 4");
}

// Of any blocks, also empty ones, ones that are cut and ones that share a bucket, laid out in one
// order and reported in another: the first n buckets are told when and only when all of their
// blocks are reported.
TEST(FinalBuckets, AreThoseOfWhichEachBlockIsReported) {
  ExpectHolds("the watermark is the longest prefix of whole buckets", [] {
    const auto count = *rc::gen::inRange<std::size_t>(1, 12);
    auto sizes = *rc::gen::container<std::vector<std::uint64_t>>(
        count, rc::gen::element<std::uint64_t>(0, 1, 7, 500, 1024, 1025, 3000));
    sizes.back() += 1;  // a model has a parameter
    std::vector<std::uint32_t> all(count);
    std::iota(all.begin(), all.end(), 0u);
    const auto shuffled = [&] {
      std::vector<std::uint32_t> order = all;
      for (std::size_t i = count; i > 1; --i) {
        std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
      }
      return order;
    };
    FinalBuckets buckets(sizes, shuffled(), 4096);
    std::vector<FloatRange> ranges;
    for (std::uint64_t at = 0; const std::uint64_t size : sizes) {
      ranges.push_back({at, size});
      at += size;
    }
    for (int run = 0; run < 2; ++run) {
      buckets.BeginRun();
      FloatSet reported;
      for (const std::uint32_t block : shuffled()) {
        const std::uint32_t told = buckets.Mark(block);
        if (ranges[block].count > 0) reported.Merge(ranges[block]);
        std::uint32_t expected = 0;
        while (expected < buckets.layout().bucket_count() &&
               reported.Covers(buckets.layout().bucket(expected))) {
          ++expected;
        }
        RC_ASSERT(told == expected);
      }
      RC_ASSERT(buckets.buckets() == buckets.layout().bucket_count());
    }
  });
}

}  // namespace
}  // namespace lockstep::worker
