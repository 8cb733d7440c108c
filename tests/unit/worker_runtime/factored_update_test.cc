// Sums and updates where contributions are factors of gradients: as the optimizer makes them of the
// products, by however many threads and in however many slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "base/digest.h"
#include "base/random.h"
#include "worker/memory/factors.h"
#include "worker/memory/reduce.h"
#include "worker/runtime/operations.h"

namespace lockstep::worker {
namespace {

constexpr BufferId kSum{BufferKind::kSum, 0, {}};
constexpr std::uint64_t kRows = 700;
constexpr std::uint64_t kColumns = 300;
constexpr std::uint64_t kCount = kRows * kColumns + 5'000;
constexpr double kClip = 3;
constexpr std::uint64_t kSeed = 5;

// With two contributions, of which the second one has half the weight.
struct Worker {
  Worker(NumberType exchanged, Layout::Copies copies)
      : type(exchanged),
        layout({{0, kCount}}, 60'000 * sizeof(float), NumberBytes(exchanged), copies,
               {.rank = 4, .matrices = {{100, kRows, kColumns}}}),
        factors(layout, exchanged, kSeed),
        optimizer(copies == Layout::Copies::kWhole ? WithFactors(MakeCustomOptimizer(1))
                                                   : WithFactors(*MakeOptimizer(Sgd()))),
        buffers(*WorkerBuffers::Make(layout, 2, /*arena=*/false, nullptr, exchanged)),
        operations(layout, *buffers, arenas, *optimizer, std::nullopt, kSeed) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      RandomStream random(i);
      std::vector<float> gradient(kCount);
      for (float& number : gradient) number = random.NextUniform() - 0.5f;
      std::byte* to = buffers->Data({BufferKind::kContribution, i, {}});
      for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
        const FloatRange& bucket = layout.bucket(b);
        Factors::Room room;
        EXPECT_TRUE(factors.Send(
            factors.KnownIn(kRound, b, buffers->factors()), gradient.data() + bucket.first, nullptr,
            to + layout.InContribution(bucket).first * layout.number_bytes(), &room));
      }
    }
  }

  static OptimizerSection Sgd() {
    OptimizerSection config;
    config.name = "sgd";
    config.momentum = 0.9;
    return config;
  }
  // As owners of unequal shares would have it.
  std::vector<Slice> Slices() const {
    OwnerMap map;
    for (std::uint32_t o = 0; o < 3; ++o)
      map.owners.push_back({{WorkerId(o), Incarnation(1)}, o + 1});
    std::vector<Slice> slices;
    for (const OwnerShare& share : map.owners) {
      for (const Slice& slice : layout.Shard(map, share.owner)) slices.push_back(slice);
    }
    std::ranges::sort(slices, {}, [](const Slice& slice) { return slice.range.first; });
    return slices;
  }
  action::Apply Reduced() {
    action::Reduce reduce;
    reduce.round = kRound;
    reduce.slices = Slices();
    reduce.inputs = {{{{BufferKind::kContribution, 0, {}}, std::nullopt, 0}, 1.0f},
                     {{{BufferKind::kContribution, 1, {}}, std::nullopt, 0}, 0.5f}};
    reduce.out = kSum;
    reduce.norms = true;
    const event::OpDone done = operations.Run(reduce);
    EXPECT_FALSE(done.torn);
    EXPECT_TRUE(done.not_finite.empty());
    action::Apply apply;
    apply.round = kRound;
    apply.parts = 2;
    for (const Slice& slice : Slices()) {
      apply.slices.push_back({{kSum, std::nullopt, 0}, slice.range});
      apply.norms.push_back({{kSum, std::nullopt, 0}, layout.NormsOf(slice)});
    }
    apply.scale = 0.25f;
    apply.learning_rate = 0.1f;
    apply.steps = 1;
    apply.clip = kClip;
    apply.digest_bucket = 1;
    return apply;
  }
  // The gradient that the sums stand for, made aside.
  std::vector<float> Product() {
    std::vector<float> gradient(kCount);
    for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
      const FloatRange& bucket = layout.bucket(b);
      const FloatRange all = layout.InSum(bucket, 0);
      std::vector<float> sums(all.count);
      factors.Read(buffers->Data(kSum), all.first, all.count, sums.data());
      factors.Gradient(factors.KnownIn(kRound, b, std::vector<float>(kCount).data()), sums.data(),
                       bucket, gradient.data() + bucket.first);
    }
    return gradient;
  }
  // Of the sums: the known factors are orthonormal, so it is that of the products.
  float ClipFactor() {
    double squares = 0;
    std::vector<float> sums(layout.contribution_numbers());
    factors.Read(buffers->Data(kSum), 0, sums.size(), sums.data());
    for (const float number : sums) squares += double{number} * number;
    return static_cast<float>(kClip / (0.25 * std::sqrt(squares)));
  }
  std::vector<float> Tensor(std::uint32_t tensor) {
    const float* at = buffers->At({BufferKind::kState, tensor, {}});
    return {at, at + kCount};
  }

  static constexpr RoundId kRound{4};
  const NumberType type;
  const Layout layout;
  const Factors factors;
  std::unique_ptr<Optimizer> optimizer;
  PeerArenas arenas;
  std::unique_ptr<WorkerBuffers> buffers;
  Operations operations;
};

class FactoredUpdate : public ::testing::TestWithParam<NumberType> {};

TEST_P(FactoredUpdate, IsThatOfTheProducts) {
  Worker worker(GetParam(), Layout::Copies::kBuckets);
  const action::Apply apply = worker.Reduced();
  const std::vector<float> gradient = worker.Product();
  double squares = 0;
  for (const float number : gradient) squares += double{number} * number;
  const float clip = worker.ClipFactor();
  EXPECT_NEAR(clip, kClip / (0.25 * std::sqrt(squares)), 1e-3 * clip);
  EXPECT_LT(clip, 1);

  const event::OpDone done = worker.operations.Run(apply);
  EXPECT_FALSE(done.torn);
  const std::vector<float> parameters = worker.Tensor(0);
  double moved = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(parameters[i], -0.1f * 0.25f * clip * gradient[i], 1e-5) << i;
    moved = std::max(moved, std::fabs(double{parameters[i]}));
  }
  EXPECT_GT(moved, 1e-3);
  const FloatRange& bucket = worker.layout.bucket(1);
  EXPECT_EQ(done.digest, DigestOf({worker.buffers->parameters() + bucket.first, bucket.count}).low);
  EXPECT_NE(worker.Tensor(2), std::vector<float>(kCount)) << "no factor is kept";
}

TEST_P(FactoredUpdate, SeveralThreadsMakeTheSame) {
  Worker one(GetParam(), Layout::Copies::kBuckets);
  Worker several(GetParam(), Layout::Copies::kBuckets);
  several.operations.UseThreads(4);
  const event::OpDone expected = one.operations.Run(one.Reduced());
  const event::OpDone done = several.operations.Run(several.Reduced());
  EXPECT_EQ(done.digest, expected.digest);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    EXPECT_EQ(several.Tensor(tensor), one.Tensor(tensor)) << tensor;
  }
}

// As while catching up: a bucket that is there already is left alone, with its factors.
TEST_P(FactoredUpdate, OfSomeBucketsLeavesTheOthers) {
  Worker worker(GetParam(), Layout::Copies::kBuckets);
  action::Apply apply = worker.Reduced();
  const FloatRange left = worker.layout.bucket(2);
  std::erase_if(apply.slices, [&](const action::SourceRange& from) {
    return from.range.first >= left.first && from.range.first < left.end();
  });
  (void)worker.operations.Run(apply);
  for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
    const std::vector<float> all = worker.Tensor(tensor);
    const auto zero = [](float number) { return number == 0; };
    EXPECT_TRUE(std::all_of(all.begin() + left.first, all.begin() + left.end(), zero)) << tensor;
    EXPECT_FALSE(std::all_of(all.begin(), all.begin() + left.first, zero)) << tensor;
  }
}

TEST_P(FactoredUpdate, AProgramIsGivenTheMean) {
  Worker worker(GetParam(), Layout::Copies::kWhole);
  const action::Apply apply = worker.Reduced();
  const std::vector<float> gradient = worker.Product();
  const float clip = worker.ClipFactor();
  ASSERT_FALSE(worker.operations.Gather(apply));
  for (std::uint64_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(worker.buffers->update_gradient()[i], 0.25f * clip * gradient[i], 1e-5) << i;
  }
  EXPECT_EQ(worker.Tensor(1), std::vector<float>(kCount)) << "the program's state was touched";
  EXPECT_NE(worker.Tensor(2), std::vector<float>(kCount)) << "no factor is kept";
}

INSTANTIATE_TEST_SUITE_P(Types, FactoredUpdate,
                         ::testing::Values(NumberType::kFp32, NumberType::kBf16,
                                           NumberType::kFp16));

TEST(FactoredMemory, IsThatOfWhatIsSentAndOfThreeGradients) {
  Worker worker(NumberType::kFp32, Layout::Copies::kBuckets);
  const std::uint64_t all = kCount * sizeof(float);
  EXPECT_LT(worker.buffers->Bytes({BufferKind::kContribution, 0, {}}) * 15, all);
  EXPECT_LT(worker.buffers->Bytes(kSum) * 15, all);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_NE(worker.buffers->residual(i), nullptr);
}

}  // namespace
}  // namespace lockstep::worker
