// Which parts of buckets go as factors, and how their numbers lie.
#include "worker/layout/factored.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "worker/layout/layout.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Factored, ATensorIsAMatrixByItsFirstExtent) {
  EXPECT_EQ(MatrixOf(7, {64, 3, 3, 16}).rows, 64u);
  EXPECT_EQ(MatrixOf(7, {64, 3, 3, 16}).columns, 144u);
  EXPECT_EQ(MatrixOf(7, {64, 3}).end(), 199u);
  EXPECT_EQ(MatrixOf(7, {64}).rows, 0u);
  EXPECT_EQ(MatrixOf(7, {}).rows, 0u);
}

TEST(Factored, SmallOnesGoAsTheyAre) {
  EXPECT_TRUE(IsFactored(16, 100, 8));
  EXPECT_FALSE(IsFactored(15, 1000, 8));
  EXPECT_FALSE(IsFactored(1000, 15, 8));
  const auto stretches = CutIntoStretches(0, 2'100, {{0, 10, 100}, {1'000, 50, 20}}, 8);
  ASSERT_EQ(stretches.size(), 3u);
  EXPECT_TRUE(stretches[0].dense());
  EXPECT_EQ(stretches[0].count, 1'000u);
  EXPECT_EQ(stretches[1].rows, 50u);
  EXPECT_EQ(stretches[1].columns, 20u);
  EXPECT_TRUE(stretches[2].dense());
  EXPECT_EQ(stretches[2].first, 2'000u);
  EXPECT_EQ(stretches[2].count, 100u);
}

TEST(Factored, OfAMatrixThatIsCutWholeRowsGoAsFactors) {
  // Rows [3, 7) lie in it as a whole, row 2 in part, row 7 in stretch.
  const auto stretches = CutIntoStretches(250, 480, {{0, 20, 100}}, 2);
  ASSERT_EQ(stretches.size(), 3u);
  EXPECT_EQ(stretches[0].count, 50u);
  EXPECT_EQ(stretches[1].first, 300u);
  EXPECT_EQ(stretches[1].rows, 4u);
  EXPECT_EQ(stretches[2].first, 700u);
  EXPECT_EQ(stretches[2].count, 30u);
}

TEST(Factored, RoundsTakeTheFactorsByTurns) {
  const auto stretches = CutIntoStretches(0, 12'000, {{0, 100, 60}, {6'000, 100, 60}}, 4);
  ASSERT_EQ(stretches.size(), 2u);
  for (const Stretch& stretch : stretches) {
    EXPECT_NE(stretch.SideOf(RoundId(6)), stretch.SideOf(RoundId(7)));
    EXPECT_EQ(stretch.SideOf(RoundId(6)), stretch.SideOf(RoundId(8)));
  }
  // One of each in each round: not 800 numbers in one, and 480 in the next.
  EXPECT_NE(stretches[0].SideOf(RoundId(0)), stretches[1].SideOf(RoundId(0)));
  EXPECT_EQ(NumbersOf(stretches, 4), 640u);
}

TEST(Factored, LongMatricesAreCutBetweenRows) {
  // Eight times as long as a bucket, with more rows than columns: into as many.
  const Layout tall({{0, 32'768}}, 4096 * sizeof(float), 4, Layout::Copies::kBuckets,
                    {.rank = 4, .matrices = {{0, 1024, 32}}});
  ASSERT_EQ(tall.bucket_count(), 8u);
  for (std::uint32_t b = 0; b < 8; ++b) {
    ASSERT_EQ(tall.stretches(b).size(), 1u);
    EXPECT_EQ(tall.stretches(b)[0].rows, 128u);
  }
  // With fewer than columns buckets are longer: the factors of four would be as long each.
  const Layout wide({{0, 32'768}}, 4096 * sizeof(float), 4, Layout::Copies::kBuckets,
                    {.rank = 4, .matrices = {{0, 64, 512}}});
  ASSERT_EQ(wide.bucket_count(), 1u);
  EXPECT_EQ(wide.stretches(0)[0].rows, 64u);
  // Up to so many rows as there are columns.
  const Layout square({{0, 30'000}}, 4096 * sizeof(float), 4, Layout::Copies::kBuckets,
                      {.rank = 4, .matrices = {{0, 300, 100}}});
  ASSERT_EQ(square.bucket_count(), 3u);
  for (std::uint32_t b = 0; b < 3; ++b) EXPECT_EQ(square.stretches(b)[0].rows, 100u);
  // One that is not factored is cut anywhere.
  const Layout rows({{0, 30'000}}, 4096 * sizeof(float), 4, Layout::Copies::kBuckets,
                    {.rank = 2, .matrices = {{0, 2, 15'000}}});
  EXPECT_EQ(rows.bucket_count(), 8u);
  EXPECT_EQ(rows.contribution_numbers(), 30'000u);
}

TEST(Factored, NoBucketIsLongerThanALargeOne) {
  EXPECT_EQ(RowsOfBucket({0, 50'000, 768}, 1u << 20, 8), 1352u);  // 37 of up to 1365
  EXPECT_EQ(RowsOfBucket({0, 4096, 11'008}, 1u << 20, 8), 373u);  // 11 of up to 381
  EXPECT_EQ(RowsOfBucket({0, 768, 50'000}, 1u << 20, 8), 77u);    // 10 of up to 83
  EXPECT_EQ(RowsOfBucket({0, 100, 5'000'000}, 1u << 20, 8), 0u);
  // Evened out they would be too few to be factored.
  EXPECT_EQ(RowsOfBucket({0, 40, 250'000}, 1u << 20, 8), 16u);  // not 14
}

TEST(Factored, ShortMatricesOfALongBlockAreNotCut) {
  const Layout layout({{0, 10'000}}, 4096 * sizeof(float), 4, Layout::Copies::kBuckets,
                      {.rank = 2, .matrices = {{500, 50, 50}, {3'000, 40, 60}, {6'000, 60, 60}}});
  std::uint64_t matrices = 0;
  for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
    EXPECT_LE(layout.bucket(b).count, 4096u);
    for (const Stretch& stretch : layout.stretches(b)) matrices += stretch.dense() ? 0 : 1;
  }
  EXPECT_EQ(matrices, 3u);
}

std::vector<Matrix> RandomMatrices(RandomStream& random, std::uint64_t count) {
  std::vector<Matrix> matrices;
  for (std::uint64_t at = random.NextBelow(100); at < count;) {
    const Matrix matrix{at, 1 + random.NextBelow(120), 1 + random.NextBelow(120)};
    if (matrix.end() > count) break;
    if (random.NextBelow(4) > 0) matrices.push_back(matrix);
    at = matrix.end() + (random.NextBelow(2) == 0 ? 0 : random.NextBelow(200));
  }
  return matrices;
}

// Whatever is cut, parts cover each bucket, their numbers lie one behind the other in either kind
// of round, factors have room where their matrix is, and slices of owners cover contributions.
TEST(Factored, PartsAndSlicesCoverWhatTheyAreOf) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStream random(seed);
    const std::uint64_t count = 2'000 + random.NextBelow(60'000);
    const std::uint64_t cut = random.NextBelow(count);
    const auto rank = static_cast<std::uint32_t>(1 + random.NextBelow(10));
    const Layout layout({FloatRange::Between(cut, count), {0, cut}},
                        4096 * (1 + random.NextBelow(8)), random.NextBelow(2) == 0 ? 4 : 2,
                        Layout::Copies::kBuckets,
                        {.rank = rank, .matrices = RandomMatrices(random, count)});
    FloatSet contribution;
    OwnerMap map;
    for (std::uint32_t o = 0; o < 3; ++o) {
      map.owners.push_back({{WorkerId(o), Incarnation(1)},
                            static_cast<std::uint32_t>(o == 0 ? 1 : random.NextBelow(4))});
    }
    for (const OwnerShare& share : map.owners) {
      for (const Slice& slice : layout.Shard(map, share.owner)) {
        const FloatRange own = layout.InContribution(slice.range);
        EXPECT_EQ(layout.InSum(slice.range, layout.SumEntries(5)), own);
        ASSERT_FALSE(contribution.Intersects(own));
        contribution.Merge(own);
      }
    }
    EXPECT_EQ(contribution.Ranges(), (std::vector<FloatRange>{{0, layout.contribution_numbers()}}));
    EXPECT_LE(layout.contribution_numbers(), layout.norm_offset());
    for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
      const FloatRange& bucket = layout.bucket(b);
      std::uint64_t at = bucket.first;
      std::array<std::uint64_t, 2> numbers = {};
      for (const Stretch& stretch : layout.stretches(b)) {
        ASSERT_EQ(stretch.first, at);
        at += stretch.count;
        for (std::uint64_t round = 0; round < 2; ++round) {
          ASSERT_EQ(stretch.AtOf(RoundId(round)), numbers[round]);
          numbers[round] += stretch.dense()
                                ? stretch.count
                                : rank * stretch.LengthOf(stretch.SideOf(RoundId(round)));
        }
        if (stretch.dense()) continue;
        EXPECT_EQ(stretch.count, stretch.rows * stretch.columns);
        EXPECT_LE((stretch.rows + stretch.columns) * rank, stretch.count);
        const std::vector<FloatRange> kept = layout.FactorsWithin({stretch.first, stretch.count});
        EXPECT_EQ(
            kept,
            (std::vector<FloatRange>{{stretch.first, (stretch.rows + stretch.columns) * rank}}));
      }
      EXPECT_EQ(at, bucket.end());
      EXPECT_LE(std::max(numbers[0], numbers[1]), layout.InContribution(bucket).count);
    }
  }
}

}  // namespace
}  // namespace lockstep::worker
