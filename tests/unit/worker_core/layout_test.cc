#include "worker/layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace lockstep::worker {
namespace {

TEST(Layout, BucketsFollowTheBackwardPass) {
  // The last block of the model is finished first.
  const Layout layout({{3000, 1000}, {2000, 1000}, {0, 2000}}, 2048 * sizeof(float));
  ASSERT_EQ(layout.bucket_count(), 2u);
  EXPECT_EQ(layout.bucket(0), (FloatRange{2000, 2000}));
  EXPECT_EQ(layout.bucket(1), (FloatRange{0, 2000}));
}

// Neighbours, in either order.
std::vector<FloatRange> RandomBlocks(RandomStream& random) {
  std::vector<FloatRange> blocks;
  std::uint64_t at = 0;
  for (std::uint64_t b = random.NextBelow(8); b < 8; ++b) {
    const std::uint64_t count = 1 + random.NextBelow(random.NextBelow(2) == 0 ? 20000 : 1100);
    blocks.push_back({at, count});
    at += count;
  }
  if (random.NextBelow(2) == 0) std::reverse(blocks.begin(), blocks.end());
  return blocks;
}

OwnerMap RandomMap(RandomStream& random) {
  OwnerMap map;
  for (std::uint32_t w = 0, n = 1 + static_cast<std::uint32_t>(random.NextBelow(9)); w < n; ++w) {
    map.owners.push_back(
        {{WorkerId(w * 2), Incarnation(1)}, static_cast<std::uint32_t>(1 + random.NextBelow(100))});
  }
  return map;
}

TEST(Layout, AnyMapPartitionsTheVector) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStream random(seed);
    const std::vector<FloatRange> blocks = RandomBlocks(random);
    std::uint64_t at = 0;
    for (const FloatRange& block : blocks) at += block.count;
    const std::uint64_t number_bytes = random.NextBelow(2) == 0 ? 4 : 2;
    const Layout layout(blocks, 4096 * (1 + random.NextBelow(10)), number_bytes);
    ASSERT_EQ(layout.parameter_count(), at);

    const OwnerMap map = RandomMap(random);
    FloatSet floats;
    FloatSet norms;
    std::uint64_t count = 0;
    std::uint64_t norm_count = 0;
    for (const OwnerShare& share : map.owners) {
      for (const Slice& slice : layout.Shard(map, share.owner)) {
        const FloatRange& bucket = layout.bucket(slice.bucket);
        ASSERT_GE(slice.range.first, bucket.first);
        ASSERT_LE(slice.range.end(), bucket.end());
        ASSERT_EQ((slice.range.first - bucket.first) % kGrain, 0u);
        ASSERT_TRUE(slice.range.end() == bucket.end() || slice.range.count % kGrain == 0);
        floats.Merge(slice.range);
        norms.Merge(layout.NormsOf(slice));
        count += slice.range.count;
        norm_count += layout.NormsOf(slice).count;
      }
    }
    EXPECT_EQ(count, at) << "seed " << seed;
    EXPECT_EQ(floats.Ranges(), (std::vector<FloatRange>{{0, at}}));
    // A double for each grain, at a double's place.
    const std::uint64_t norm_numbers = 8 / number_bytes * layout.grain_count();
    EXPECT_EQ(norm_count, norm_numbers);
    EXPECT_EQ(norms.Ranges(), (std::vector<FloatRange>{{layout.norm_offset(), norm_numbers}}));
    EXPECT_EQ(layout.sum_floats(), layout.norm_offset() + norm_numbers);
    EXPECT_EQ(layout.norm_offset() * number_bytes % sizeof(double), 0u);
    EXPECT_TRUE(layout.Shard(map, {WorkerId(1), Incarnation(1)}).empty());
  }
}

// Whoever holds a shard, its slices are the same, and all together are everything.
TEST(Layout, ShardsWithHoldersPartitionTheVector) {
  const Layout layout({{3000, 9000}, {0, 3000}}, 4096 * sizeof(float));
  const MemberId a{WorkerId(0), Incarnation(1)};
  const MemberId b{WorkerId(1), Incarnation(2)};
  OwnerMap map{0, {{a, 2}, {b, 1}}, {{{a, b}}, {{b}}, {{a}}}};
  FloatSet floats;
  std::uint64_t count = 0;
  for (const MemberId& owner : {a, b}) {
    for (const Slice& slice : layout.Shard(map, owner)) {
      EXPECT_TRUE(floats.Add(slice.range));
      count += slice.range.count;
    }
  }
  EXPECT_EQ(count, 12000u);
  EXPECT_EQ(floats.Ranges(), (std::vector<FloatRange>{{0, 12000}}));
  EXPECT_EQ(layout.Shard(map, b), layout.EqualShard(1, 3));
  EXPECT_EQ(HeldBy(map, a), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(HeldBy(map, b), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_TRUE(HeldBy(map, {WorkerId(1), Incarnation(1)}).empty());
}

TEST(Layout, PiecesCoverTheirRange) {
  EXPECT_EQ(CutPieces({5, 10}, 4 * sizeof(float)),
            (std::vector<FloatRange>{{5, 4}, {9, 4}, {13, 2}}));
  EXPECT_TRUE(CutPieces({5, 0}, 16).empty());
}

// The type of what is exchanged changes no cut but that of the pieces.
TEST(Layout, NumbersOfTwoBytesAreCutAlike) {
  const std::vector<FloatRange> blocks = {{3000, 7000}, {0, 3000}};
  const Layout wide(blocks, 4096 * sizeof(float));
  const Layout narrow(blocks, 4096 * sizeof(float), 2);
  ASSERT_EQ(narrow.bucket_count(), wide.bucket_count());
  for (std::uint32_t b = 0; b < wide.bucket_count(); ++b) {
    EXPECT_EQ(narrow.bucket(b), wide.bucket(b));
  }
  EXPECT_EQ(CutPieces({5, 10}, 16, 2), (std::vector<FloatRange>{{5, 8}, {13, 2}}));
}

// Where few numbers are sent, owners' slices cover contributions and sums all the same, one behind
// the other, and no sum reaches into the norms.
TEST(Layout, FewNumbersOfEachGrainArePartitionedAlike) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStream random(seed);
    const std::vector<FloatRange> blocks = RandomBlocks(random);
    const std::uint64_t number_bytes = random.NextBelow(2) == 0 ? 4 : 2;
    const auto kept = static_cast<std::uint32_t>(1 + random.NextBelow(512));
    const Layout layout(blocks, 4096 * (1 + random.NextBelow(3)), number_bytes,
                        Layout::Copies::kBuckets, Compression{.kept = kept});
    const OwnerMap map = RandomMap(random);
    const std::size_t parts = 1 + random.NextBelow(6);
    const std::uint32_t entries = layout.SumEntries(parts);
    FloatSet contribution;
    FloatSet sums;
    for (const OwnerShare& share : map.owners) {
      for (const Slice& slice : layout.Shard(map, share.owner)) {
        const FloatRange own = layout.InContribution(slice.range);
        const FloatRange sum = layout.InSum(slice.range, entries);
        ASSERT_FALSE(contribution.Intersects(own));
        ASSERT_FALSE(sums.Intersects(sum));
        contribution.Merge(own);
        sums.Merge(sum);
      }
    }
    EXPECT_EQ(contribution.Ranges(), (std::vector<FloatRange>{{0, layout.contribution_numbers()}}));
    ASSERT_EQ(sums.Ranges().size(), 1u);
    EXPECT_EQ(sums.Ranges()[0].first, 0u);
    EXPECT_LE(sums.Ranges()[0].end(), layout.parameter_count());
    EXPECT_LE(layout.parameter_count(), layout.norm_offset());
  }
}

TEST(Layout, SumsHaveNoMoreEntriesThanMakeThemShorter) {
  const Layout layout({{0, 10240}}, 1 << 20, 4, Layout::Copies::kBuckets, Compression{.kept = 100});
  EXPECT_EQ(layout.SumEntries(1), 100u);
  EXPECT_EQ(layout.SumEntries(9), 900u);
  EXPECT_EQ(layout.SumEntries(10), 0u);
  EXPECT_EQ(layout.SumEntries(1000), 0u);
  EXPECT_EQ(Layout({{0, 10240}}, 1 << 20).SumEntries(1), 0u);
}

}  // namespace
}  // namespace lockstep::worker
