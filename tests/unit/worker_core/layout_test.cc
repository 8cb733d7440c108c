#include "worker/core/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace lockstep::worker {
namespace {

TEST(IntervalSet, JoinsAndCuts) {
  IntervalSet set;
  set.Add({10, 5});
  set.Add({20, 5});
  set.Add({15, 5});
  EXPECT_EQ(set.ranges(), (std::vector<FloatRange>{{10, 15}}));
  set.Remove({12, 2});
  EXPECT_EQ(set.ranges(), (std::vector<FloatRange>{{10, 2}, {14, 11}}));
  EXPECT_TRUE(set.Contains({14, 11}));
  EXPECT_FALSE(set.Contains({11, 2}));
  EXPECT_EQ(set.Missing({8, 20}), (std::vector<FloatRange>{{8, 2}, {12, 2}, {25, 3}}));
}

TEST(IntervalSet, AgreesWithABitmap) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    RandomStream random(seed);
    IntervalSet set;
    std::vector<bool> bits(60);
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t first = random.NextBelow(60);
      const FloatRange range{first, random.NextBelow(61 - first)};
      const bool add = random.NextBelow(3) != 0;
      if (add) {
        set.Add(range);
      } else {
        set.Remove(range);
      }
      for (std::uint64_t i = range.first; i < range.end(); ++i) bits[i] = add;
      std::uint64_t total = 0;
      for (std::uint64_t i = 0; i < 60; ++i) {
        ASSERT_EQ(set.Contains({i, 1}), bits[i]) << "seed " << seed;
        total += bits[i] ? 1 : 0;
      }
      ASSERT_EQ(set.Total(), total);
      for (const FloatRange& missing : set.Missing({0, 60})) total += missing.count;
      ASSERT_EQ(total, 60u);
    }
  }
}

TEST(Layout, BucketsFollowTheBackwardPass) {
  // The last block of the model is finished first.
  const Layout layout({{3000, 1000}, {2000, 1000}, {0, 2000}}, 2048 * sizeof(float));
  ASSERT_EQ(layout.bucket_count(), 2u);
  EXPECT_EQ(layout.bucket(0), (FloatRange{2000, 2000}));
  EXPECT_EQ(layout.bucket(1), (FloatRange{0, 2000}));
}

TEST(Layout, AnyMapPartitionsTheVector) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStream random(seed);
    std::vector<FloatRange> blocks;
    std::uint64_t at = 0;
    for (std::uint64_t b = random.NextBelow(8); b < 8; ++b) {
      const std::uint64_t count = 1 + random.NextBelow(20000);
      blocks.push_back({at, count});
      at += count;
    }
    if (random.NextBelow(2) == 0) std::reverse(blocks.begin(), blocks.end());
    const Layout layout(blocks, 4096 * (1 + random.NextBelow(10)));
    ASSERT_EQ(layout.parameter_count(), at);

    OwnerMap map;
    for (std::uint32_t w = 0, n = 1 + static_cast<std::uint32_t>(random.NextBelow(9)); w < n; ++w) {
      map.owners.push_back({{WorkerId(w * 2), Incarnation(1)},
                            static_cast<std::uint32_t>(1 + random.NextBelow(100))});
    }
    IntervalSet floats;
    IntervalSet norms;
    std::uint64_t count = 0;
    std::uint64_t norm_count = 0;
    for (const OwnerShare& share : map.owners) {
      for (const Slice& slice : layout.Shard(map, share.owner)) {
        const FloatRange& bucket = layout.bucket(slice.bucket);
        ASSERT_GE(slice.range.first, bucket.first);
        ASSERT_LE(slice.range.end(), bucket.end());
        ASSERT_EQ((slice.range.first - bucket.first) % kGrain, 0u);
        ASSERT_TRUE(slice.range.end() == bucket.end() || slice.range.count % kGrain == 0);
        floats.Add(slice.range);
        norms.Add(layout.NormsOf(slice));
        count += slice.range.count;
        norm_count += layout.NormsOf(slice).count;
      }
    }
    EXPECT_EQ(count, at) << "seed " << seed;
    EXPECT_EQ(floats.ranges(), (std::vector<FloatRange>{{0, at}}));
    EXPECT_EQ(norm_count, 2 * layout.grain_count());
    EXPECT_EQ(norms.ranges(),
              (std::vector<FloatRange>{{layout.norm_offset(), 2 * layout.grain_count()}}));
    EXPECT_TRUE(layout.Shard(map, {WorkerId(1), Incarnation(1)}).empty());
  }
}

TEST(Layout, PiecesCoverTheirRange) {
  EXPECT_EQ(CutPieces({5, 10}, 4 * sizeof(float)),
            (std::vector<FloatRange>{{5, 4}, {9, 4}, {13, 2}}));
  EXPECT_TRUE(CutPieces({5, 0}, 16).empty());
}

}  // namespace
}  // namespace lockstep::worker
