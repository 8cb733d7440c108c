// The digest that comes with an update is that of the bucket as it is afterwards, however the
// bucket is sliced and whether any of it was updated. Sums and updates in 16 bits, or of few
// numbers of many, are those of the same numbers in FP32.
#include "worker/runtime/operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "base/digest.h"
#include "base/job_config.h"
#include "worker/memory/narrow.h"
#include "worker/memory/sparse.h"
#include "worker/optimizer/grouped.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kBucket = 100'000;  // floats, more than are digested at a time

class UpdateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    OptimizerSection config;
    config.name = "adamw";
    optimizer_ = *MakeOptimizer(config);
    buffers_ = *WorkerBuffers::Make(layout_, 2, /*arena=*/false);
    operations_.emplace(layout_, *buffers_, arenas_, *optimizer_);
    float* sum = buffers_->At(kSum);
    for (std::uint64_t i = 0; i < layout_.parameter_count(); ++i) {
      sum[i] = static_cast<float>(i % 1013) - 500.0f;
      buffers_->parameters()[i] = static_cast<float>(i % 17);
    }
  }

  action::Apply Update(const std::vector<FloatRange>& slices, std::uint32_t digest_bucket) const {
    action::Apply apply;
    for (const FloatRange& range : slices) apply.slices.push_back({{kSum, std::nullopt, 0}, range});
    apply.scale = 1;
    apply.learning_rate = 0.1f;
    apply.steps = 1;
    apply.digest_bucket = digest_bucket;
    return apply;
  }
  std::uint64_t DigestOfBucket(std::uint32_t bucket) {
    const FloatRange& range = layout_.bucket(bucket);
    return DigestOf({buffers_->parameters() + range.first, range.count}).low;
  }
  std::vector<float> Parameters() {
    return {buffers_->parameters(), buffers_->parameters() + layout_.parameter_count()};
  }

  static constexpr BufferId kSum{BufferKind::kSum, 0, {}};
  const Layout layout_{{{0, 3 * kBucket + 7}}, kBucket * sizeof(float)};
  PeerArenas arenas_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WorkerBuffers> buffers_;
  std::optional<Operations> operations_;
};

TEST_F(UpdateTest, TheDigestIsThatOfTheUpdatedBucket) {
  const std::vector<std::vector<FloatRange>> cuts = {
      {{0, kBucket}, {kBucket, kBucket}, {2 * kBucket, kBucket}, {3 * kBucket, 7}},
      {{0, kBucket}, {kBucket, 1024}, {kBucket + 1024, kBucket - 1024}, {2 * kBucket, kBucket + 7}},
      {{0, kBucket}, {kBucket, 50'000}},           // not all of the second one
      {{0, kBucket}, {kBucket + 50'000, 50'000}},  // nor here
      {{2 * kBucket, kBucket}, {3 * kBucket, 7}},  // nothing of it, as while catching up
      {},
  };
  for (const auto& slices : cuts) {
    for (std::uint32_t bucket = 0; bucket < layout_.bucket_count(); ++bucket) {
      const event::OpDone done = operations_->Run(Update(slices, bucket));
      EXPECT_FALSE(done.torn);
      EXPECT_EQ(done.digest, DigestOfBucket(bucket)) << slices.size() << " slices, " << bucket;
    }
  }
}

TEST_F(UpdateTest, WhichBucketIsDigestedChangesNoBit) {
  const std::vector<FloatRange> all = {
      {0, kBucket}, {kBucket, kBucket}, {2 * kBucket, kBucket}, {3 * kBucket, 7}};
  std::vector<std::vector<float>> ends;
  for (std::uint32_t bucket = 0; bucket < 2; ++bucket) {
    SetUp();
    (void)operations_->Run(Update(all, bucket));
    ends.push_back(Parameters());
  }
  EXPECT_EQ(ends[0], ends[1]);
}

// A checkpoint shares its parameters with an evaluation of the same state. A state that was copied
// from another worker since is not the same.
TEST_F(UpdateTest, ACheckpointIsOfTheStateThatIsThere) {
  const auto snapshot = [&](action::SnapshotKind kind) {
    (void)operations_->Run(action::TakeSnapshot{1, kind});
    return buffers_->snapshot(0, kind);
  };
  const float* evaluated = snapshot(action::SnapshotKind::kEvaluation);
  EXPECT_EQ(snapshot(action::SnapshotKind::kCheckpoint), evaluated);
  operations_->NoteStateWritten();
  buffers_->parameters()[5] = 99;
  EXPECT_EQ(snapshot(action::SnapshotKind::kCheckpoint)[5], 99);
}

// A worker that exchanges numbers of a type, with two contributions of its own.
struct Exchanging {
  static constexpr BufferId kSum{BufferKind::kSum, 0, {}};
  static constexpr BufferId kCopy{BufferKind::kSum, 1, {}};

  explicit Exchanging(NumberType exchanged, std::uint32_t kept = 0,
                      std::optional<std::uint64_t> rounding_seed = std::nullopt,
                      std::size_t threads = 1, std::uint64_t count = 3 * kBucket + 7,
                      std::uint64_t bucket = kBucket)
      : type(exchanged),
        layout({{0, count}}, bucket * sizeof(float), NumberBytes(exchanged),
               Layout::Copies::kBuckets, Compression{.kept = kept}),
        buffers(*WorkerBuffers::Make(layout, 2, /*arena=*/false, nullptr, exchanged)),
        operations(layout, *buffers, arenas, *optimizer, rounding_seed) {
    operations.UseThreads(threads);
  }

  // What of the gradient the type can hold, so that all types contribute the same numbers.
  void Contribute(std::uint32_t index, const std::vector<float>& gradient) {
    std::byte* to = buffers->Data({BufferKind::kContribution, index, {}});
    if (type == NumberType::kFp32) {
      std::memcpy(to, gradient.data(), gradient.size() * sizeof(float));
    } else {
      EXPECT_TRUE(
          Narrow(type, gradient.data(), reinterpret_cast<std::uint16_t*>(to), gradient.size()));
    }
  }
  // Of layout.kept(); `gradient` becomes what of it is contributed.
  void ContributeLargest(std::uint32_t index, std::vector<float>* gradient) {
    std::byte* at = buffers->Data({BufferKind::kContribution, index, {}});
    for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
      for (const FloatRange& grain : CutPieces(layout.bucket(b), kGrain * sizeof(float))) {
        float* block = gradient->data() + grain.first;
        EXPECT_TRUE(TakeLargest(type, layout.kept(), block, grain.count, at));
        std::vector<float> sent(kGrain);
        AddSparse(type, layout.kept(), at, 1, sent.data());
        std::copy_n(sent.begin(), grain.count, block);
        at += layout.NumbersOfGrain(layout.kept()) * layout.number_bytes();
      }
    }
  }
  action::Reduce ReduceAll() const {
    action::Reduce reduce;
    for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
      // In two slices, as two owners would have it.
      const FloatRange& bucket = layout.bucket(b);
      const std::uint64_t first = std::min<std::uint64_t>(bucket.count, 5 * kGrain);
      reduce.slices.push_back({b, {bucket.first, first}});
      if (first < bucket.count) {
        reduce.slices.push_back({b, {bucket.first + first, bucket.count - first}});
      }
    }
    reduce.inputs = {{{{BufferKind::kContribution, 0, {}}, std::nullopt, 0}, 1.0f},
                     {{{BufferKind::kContribution, 1, {}}, std::nullopt, 0}, 0.5f}};
    reduce.out = kSum;
    reduce.norms = true;
    return reduce;
  }
  std::vector<FloatRange> Ranges(bool norms) const {
    std::vector<FloatRange> ranges;
    for (const Slice& slice : ReduceAll().slices) {
      ranges.push_back(norms ? layout.NormsOf(slice) : slice.range);
    }
    return ranges;
  }
  // As they lie in a buffer.
  std::vector<FloatRange> RangesOfSums() const {
    std::vector<FloatRange> ranges = Ranges(false);
    for (FloatRange& range : ranges) range = layout.InSum(range, layout.SumEntries(2));
    const std::vector<FloatRange> norms = Ranges(true);
    ranges.insert(ranges.end(), norms.begin(), norms.end());
    return ranges;
  }
  void CopySums() {
    action::CopySums copy;
    for (const FloatRange& range : RangesOfSums()) {
      copy.from.push_back({{kSum, std::nullopt, 0}, range});
    }
    copy.to = kCopy;
    ASSERT_FALSE(operations.Run(copy).torn);
  }
  action::Apply ApplyFrom(const BufferId& sums) const {
    action::Apply apply;
    apply.parts = 2;
    for (const FloatRange& r : Ranges(false)) apply.slices.push_back({{sums, std::nullopt, 0}, r});
    for (const FloatRange& r : Ranges(true)) apply.norms.push_back({{sums, std::nullopt, 0}, r});
    apply.scale = 0.25f;
    apply.learning_rate = 0.1f;
    apply.steps = 1;
    apply.clip = 100;
    return apply;
  }
  std::vector<float> Parameters() {
    return {buffers->parameters(), buffers->parameters() + layout.parameter_count()};
  }

  // With parameters in the middle that have settings of their own.
  action::UpdateHeld UpdateHeld() const {
    action::UpdateHeld update;
    update.ranges = Ranges(false);
    update.from = {BufferKind::kState, 0, {}};
    update.sums = kSum;
    update.scale = 0.25f;
    update.learning_rate = 0.1f;
    update.steps = 1;
    update.clip = 100;
    return update;
  }
  std::vector<float> At(const BufferId& buffer, std::uint64_t count) {
    return {buffers->At(buffer), buffers->At(buffer) + count};
  }

  static std::unique_ptr<Optimizer> AdamW(std::uint64_t count) {
    OptimizerSection config;
    config.name = "adamw";
    const ParameterGroup still{.lr_factor = 0.25, .weight_decay = 0.0};
    const ParameterGroup other{.lr_factor = 2, .weight_decay = 0.5};
    return *MakeOptimizer(
        config, {{kBucket + 7, {}}, {9, still}, {kBucket, other}, {count - 2 * kBucket - 16, {}}});
  }
  const NumberType type;
  const Layout layout;
  PeerArenas arenas;
  std::unique_ptr<Optimizer> optimizer = AdamW(layout.parameter_count());
  std::unique_ptr<WorkerBuffers> buffers;
  Operations operations;
};

TEST(Reduction, NamesTheInputsThatAreNotFinite) {
  Exchanging worker(NumberType::kFp32);
  const std::size_t count = worker.layout.parameter_count();
  const std::vector<float> ones(count, 1);
  std::vector<float> infinite = ones;
  infinite[count - 1] = -std::numeric_limits<float>::infinity();
  std::vector<float> none = ones;
  none[0] = std::numeric_limits<float>::quiet_NaN();
  const auto not_finite = [&](const std::vector<float>& first, const std::vector<float>& second) {
    worker.Contribute(0, first);
    worker.Contribute(1, second);
    return worker.operations.Run(worker.ReduceAll()).not_finite;
  };
  using Inputs = std::vector<std::uint32_t>;
  EXPECT_EQ(not_finite(ones, ones), Inputs{});
  EXPECT_EQ(not_finite(infinite, ones), Inputs{0});
  EXPECT_EQ(not_finite(ones, none), Inputs{1});
  EXPECT_EQ(not_finite(none, infinite), (Inputs{0, 1}));
  // A sum that is too large of numbers that are not: nobody is to blame.
  const std::vector<float> large(count, std::numeric_limits<float>::max());
  EXPECT_EQ(not_finite(large, large), Inputs{});
}

// Where some hold the state of some parameters: what they make of the sums, in their place, has the
// bits of what everybody would have made of them.
TEST(HeldUpdate, HasTheBitsOfAnUpdateOfAll) {
  Exchanging all(NumberType::kFp32);
  Exchanging holder(NumberType::kFp32);
  const std::uint64_t count = all.layout.parameter_count();
  for (Exchanging* worker : {&all, &holder}) {
    for (std::uint32_t part = 0; part < 2; ++part) {
      std::vector<float> gradient(count);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.0f;
      }
      worker->Contribute(part, gradient);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      worker->buffers->parameters()[i] = static_cast<float>(i % 17);
    }
    ASSERT_FALSE(worker->operations.Run(worker->ReduceAll()).torn);
  }
  action::Apply apply = all.ApplyFrom(Exchanging::kSum);
  action::UpdateHeld update = holder.UpdateHeld();
  apply.clip = update.clip = 0;
  std::vector<float> parameters = all.Parameters();
  std::vector<std::vector<float>> state(2, std::vector<float>(count));
  const std::vector<float*> tensors = {state[0].data(), state[1].data()};
  all.optimizer->Apply({.scale = 0.25f, .learning_rate = 0.1f, .steps = 1},
                       {.first = 0,
                        .count = count,
                        .parameters = parameters.data(),
                        .state = tensors,
                        .gradient_sum = all.buffers->At(Exchanging::kSum)});
  const event::OpDone expected = all.operations.Run(apply);
  EXPECT_EQ(all.Parameters(), parameters);
  (void)holder.operations.Run(update);
  EXPECT_EQ(holder.At(Exchanging::kSum, count), all.Parameters());
  EXPECT_EQ(holder.At({BufferKind::kState, 2, {}}, count),
            all.At({BufferKind::kState, 2, {}}, count));
  action::TakeParameters take;
  for (const FloatRange& range : holder.Ranges(false)) {
    take.from.push_back({{Exchanging::kSum, std::nullopt, 0}, range});
  }
  const event::OpDone taken = holder.operations.Run(take);
  EXPECT_FALSE(taken.torn);
  EXPECT_EQ(taken.digest, expected.digest);
  EXPECT_EQ(holder.Parameters(), all.Parameters());
}

// Several threads that share an operation come to the bits of one. Buckets are more than a thread
// does at a time, and there are some beside the one whose digest is taken.
class ByThreads : public ::testing::TestWithParam<std::tuple<NumberType, std::uint32_t>> {
 protected:
  static constexpr std::uint64_t kLong = 300'007;
  static Exchanging With(std::size_t threads) {
    const auto [type, kept] = GetParam();
    return Exchanging(type, kept, 7, threads, 3 * kLong, kLong);
  }
  static void Contribute(Exchanging& worker) {
    for (std::uint32_t part = 0; part < 2; ++part) {
      std::vector<float> gradient(worker.layout.parameter_count());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.25f;
      }
      if (worker.layout.kept() > 0) {
        worker.ContributeLargest(part, &gradient);
      } else {
        worker.Contribute(part, gradient);
      }
    }
    ASSERT_FALSE(worker.operations.Run(worker.ReduceAll()).torn);
  }
};

TEST_P(ByThreads, AnOperationHasTheBitsOfOne) {
  Exchanging one = With(1);
  Exchanging several = With(4);
  ASSERT_EQ(one.layout.bucket_count(), 3u);
  const std::uint64_t count = one.layout.parameter_count();
  const BufferId kOut{BufferKind::kStateOut, 0, {}};
  std::vector<std::vector<float>> ends;
  for (Exchanging* worker : {&one, &several}) {
    Contribute(*worker);
    worker->CopySums();
    const event::OpDone done = worker->operations.Run(worker->ApplyFrom(Exchanging::kCopy));
    EXPECT_FALSE(done.torn);
    const FloatRange& bucket = worker->layout.bucket(0);
    EXPECT_EQ(done.digest,
              DigestOf({worker->buffers->parameters() + bucket.first, bucket.count}).low);
    ends.push_back(worker->Parameters());
    for (std::uint32_t t = 1; t < 3; ++t) {
      ends.push_back(worker->At({BufferKind::kState, t, {}}, count));
    }
    (void)worker->operations.Run(action::CopyState{8, 1, kOut});
    const FloatRange& copied = worker->layout.copy(1);
    for (std::uint32_t t = 0; t < 3; ++t) {
      const float* out = worker->buffers->At(kOut) + t * worker->layout.largest_copy();
      const float* state = worker->buffers->At({BufferKind::kState, t, {}}) + copied.first;
      EXPECT_TRUE(std::equal(out, out + copied.count, state));
    }
    for (const auto kind : {action::SnapshotKind::kEvaluation, action::SnapshotKind::kCheckpoint}) {
      (void)worker->operations.Run(action::TakeSnapshot{9, kind});
      const float* snapshot = worker->buffers->snapshot(0, kind);
      EXPECT_EQ(std::vector<float>(snapshot, snapshot + count), worker->Parameters());
    }
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ends[3 + i], ends[i]) << i;
  EXPECT_NE(ends[0], std::vector<float>(count));
}

class HoldersByThreads : public ByThreads {};

TEST_P(HoldersByThreads, WhatTheyMakeAndOthersTakeHasTheBitsOfOne) {
  Exchanging one = With(1);
  Exchanging several = With(4);
  for (Exchanging* worker : {&one, &several}) {
    Contribute(*worker);
    (void)worker->operations.Run(worker->UpdateHeld());
    action::TakeParameters take;
    for (const FloatRange& range : worker->Ranges(false)) {
      take.from.push_back({{Exchanging::kSum, std::nullopt, 0}, range});
    }
    EXPECT_FALSE(worker->operations.Run(take).torn);
  }
  EXPECT_EQ(several.Parameters(), one.Parameters());
  EXPECT_NE(one.Parameters(), std::vector<float>(one.layout.parameter_count()));
}

TEST_P(ByThreads, TheMeanThatAProgramIsGivenHasTheBitsOfOne) {
  const auto [type, kept] = GetParam();
  const Layout layout({{0, 3 * kLong}}, kLong * sizeof(float), NumberBytes(type),
                      Layout::Copies::kWhole, Compression{.kept = kept});
  const auto optimizer = MakeCustomOptimizer(0);
  std::vector<std::vector<float>> ends;
  for (const std::size_t threads : {1, 4}) {
    Exchanging worker = With(threads);
    worker.buffers = *WorkerBuffers::Make(layout, 0, /*arena=*/false, nullptr, type);
    Operations operations(layout, *worker.buffers, worker.arenas, *optimizer, 7);
    operations.UseThreads(threads);
    for (std::uint32_t part = 0; part < 2; ++part) {
      std::vector<float> gradient(layout.parameter_count());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.25f;
      }
      if (kept > 0) {
        worker.ContributeLargest(part, &gradient);
      } else {
        worker.Contribute(part, gradient);
      }
    }
    ASSERT_FALSE(operations.Run(worker.ReduceAll()).torn);
    ASSERT_FALSE(operations.Gather(worker.ApplyFrom(Exchanging::kSum)));
    const float* gradient = worker.buffers->update_gradient();
    ends.emplace_back(gradient, gradient + layout.parameter_count());
  }
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_NE(ends[0], std::vector<float>(layout.parameter_count()));
}

// A bucket that one thread alone would take long for.
TEST(ByThreadsTest, ALargeBucketIsDigestedAfterItsUpdate) {
  constexpr std::uint64_t kCount = 2'500'000;  // 9.5 MiB
  for (const std::size_t threads : {1, 3}) {
    Exchanging worker(NumberType::kFp32, 0, std::nullopt, threads, kCount, kCount);
    ASSERT_EQ(worker.layout.bucket_count(), 1u);
    worker.Contribute(0, std::vector<float>(kCount, 1));
    worker.Contribute(1, std::vector<float>(kCount, 2));
    ASSERT_FALSE(worker.operations.Run(worker.ReduceAll()).torn);
    const event::OpDone done = worker.operations.Run(worker.ApplyFrom(Exchanging::kSum));
    EXPECT_EQ(done.digest, DigestOf({worker.buffers->parameters(), kCount}).low);
    EXPECT_NE(worker.buffers->parameters()[kCount - 1], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, HoldersByThreads,
                         ::testing::Values(std::tuple{NumberType::kFp32, 0u}));

INSTANTIATE_TEST_SUITE_P(Forms, ByThreads,
                         ::testing::Values(std::tuple{NumberType::kFp32, 0u},
                                           std::tuple{NumberType::kBf16, 0u},
                                           std::tuple{NumberType::kFp32, 103u},
                                           std::tuple{NumberType::kFp16, 11u}));

TEST(ByThreadsTest, ASumThatIsNoNumberIsFoundByWhicheverThread) {
  Exchanging several(NumberType::kFp32, 0, std::nullopt, 4, 3 * kBucket + 7, 3 * kBucket + 7);
  const std::size_t count = several.layout.parameter_count();
  for (const std::size_t at : {std::size_t{0}, std::size_t{150'000}, count - 1}) {
    std::vector<float> gradient(count, 1);
    several.Contribute(0, gradient);
    gradient[at] = std::numeric_limits<float>::infinity();
    several.Contribute(1, gradient);
    EXPECT_EQ(several.operations.Run(several.ReduceAll()).not_finite, std::vector<std::uint32_t>{1})
        << at;
  }
}

class InSixteenBits : public ::testing::TestWithParam<NumberType> {};

// The gradients are such that sixteen bits hold them and their sum: so nothing is rounded, and all
// that follows has the bits of FP32, by other loops, offsets and sizes.
TEST_P(InSixteenBits, WhatNeedsNoRoundingHasTheBitsOfFp32) {
  Exchanging wide(NumberType::kFp32);
  Exchanging narrow(GetParam());
  for (Exchanging* worker : {&wide, &narrow}) {
    for (std::uint32_t part = 0; part < 2; ++part) {
      std::vector<float> gradient(worker->layout.parameter_count());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.0f;
      }
      worker->Contribute(part, gradient);
    }
    ASSERT_FALSE(worker->operations.Run(worker->ReduceAll()).torn);
    worker->CopySums();
  }
  const event::OpDone expected = wide.operations.Run(wide.ApplyFrom(Exchanging::kSum));
  const event::OpDone done = narrow.operations.Run(narrow.ApplyFrom(Exchanging::kCopy));
  EXPECT_FALSE(done.torn);
  EXPECT_EQ(done.digest, expected.digest);
  EXPECT_EQ(narrow.Parameters(), wide.Parameters());
  EXPECT_NE(wide.Parameters(), std::vector<float>(wide.layout.parameter_count()));
}

// What is clipped is what is applied: the norm is that of the rounded sums.
TEST_P(InSixteenBits, TheNormIsThatOfTheRoundedSums) {
  Exchanging worker(GetParam());
  std::vector<float> gradient(worker.layout.parameter_count());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 19) - 9.0f;
  }
  worker.Contribute(0, gradient);
  for (float& value : gradient) value *= 1.0f / 128;
  worker.Contribute(1, gradient);
  ASSERT_FALSE(worker.operations.Run(worker.ReduceAll()).torn);
  const auto* sums = reinterpret_cast<const std::uint16_t*>(worker.buffers->Data(Exchanging::kSum));
  std::vector<float> wide(worker.layout.parameter_count());
  Widen(GetParam(), sums, wide.data(), wide.size());
  double expected = 0;
  for (const float value : wide) expected += static_cast<double>(value) * value;
  double total = 0;
  for (const FloatRange& range : worker.Ranges(true)) {
    for (std::uint64_t at = range.first; at < range.end(); at += sizeof(double) / 2) {
      double square;
      std::memcpy(&square, sums + at, sizeof square);
      total += square;
    }
  }
  EXPECT_NEAR(total / expected, 1, 1e-12);
}

// In whichever order and however they are cut, as where owners change or one stands in for another:
// the bits are those of the round and of the place of each number.
TEST_P(InSixteenBits, SumsThatAreRoundedAtRandomAreTheSameWhoeverMakesThem) {
  const auto sums_of = [](Exchanging& worker) {
    const auto* sums =
        reinterpret_cast<const std::uint16_t*>(worker.buffers->Data(Exchanging::kSum));
    return std::vector<std::uint16_t>(sums, sums + worker.layout.parameter_count());
  };
  Exchanging owner(GetParam(), 0, 7);
  Exchanging other(GetParam(), 0, 7);
  Exchanging nearest(GetParam());
  for (Exchanging* worker : {&owner, &other, &nearest}) {
    for (std::uint32_t part = 0; part < 2; ++part) {
      std::vector<float> gradient(worker->layout.parameter_count());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = (static_cast<float>(i % 61) - 30.0f) * (part == 0 ? 1.0f : 0x1p-11f);
      }
      worker->Contribute(part, gradient);
    }
  }
  action::Reduce all = owner.ReduceAll();
  ASSERT_FALSE(owner.operations.Run(all).torn);
  ASSERT_FALSE(nearest.operations.Run(all).torn);
  for (auto slice = all.slices.rbegin(); slice != all.slices.rend(); ++slice) {
    for (const FloatRange& piece : CutPieces(slice->range, 3 * kGrain * sizeof(float))) {
      action::Reduce one = all;
      one.slices = {{slice->bucket, piece}};
      one.attempt = Attempt(1);
      ASSERT_FALSE(other.operations.Run(one).torn);
    }
  }
  EXPECT_EQ(sums_of(other), sums_of(owner));
  EXPECT_NE(sums_of(nearest), sums_of(owner));
  all.round = RoundId(1);
  ASSERT_FALSE(other.operations.Run(all).torn);
  EXPECT_NE(sums_of(other), sums_of(owner));
}

// Sums in the same form, or, where they have too many numbers for it, in the other one. Two
// contributions have all of their numbers at other places in some grains.
class FewOfMany : public ::testing::TestWithParam<std::tuple<NumberType, std::uint32_t>> {};

TEST_P(FewOfMany, SumsAndUpdatesHaveTheBitsOfFp32) {
  const auto [type, kept] = GetParam();
  Exchanging wide(NumberType::kFp32);
  Exchanging few(type, kept);
  EXPECT_EQ(few.layout.SumEntries(2), kept < 400 ? 2 * kept : 0);
  for (std::uint32_t part = 0; part < 2; ++part) {
    std::vector<float> gradient(wide.layout.parameter_count());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.0f;
    }
    few.ContributeLargest(part, &gradient);
    wide.Contribute(part, gradient);
  }
  for (Exchanging* worker : {&wide, &few}) {
    ASSERT_FALSE(worker->operations.Run(worker->ReduceAll()).torn);
    worker->CopySums();
  }
  const event::OpDone expected = wide.operations.Run(wide.ApplyFrom(Exchanging::kSum));
  const event::OpDone done = few.operations.Run(few.ApplyFrom(Exchanging::kCopy));
  EXPECT_FALSE(done.torn);
  EXPECT_EQ(done.digest, expected.digest);
  EXPECT_EQ(few.Parameters(), wide.Parameters());
  EXPECT_NE(wide.Parameters(), std::vector<float>(wide.layout.parameter_count()));
}

TEST_P(FewOfMany, AProgramIsGivenTheMean) {
  const auto [type, kept] = GetParam();
  Exchanging few(type, kept);
  const Layout layout({{0, 3 * kBucket + 7}}, kBucket * sizeof(float), NumberBytes(type),
                      Layout::Copies::kWhole, Compression{.kept = kept});
  const auto optimizer = MakeCustomOptimizer(0);
  few.buffers = *WorkerBuffers::Make(layout, 0, /*arena=*/false, nullptr, type);
  Operations operations(layout, *few.buffers, few.arenas, *optimizer);
  std::vector<float> sum(layout.parameter_count());
  for (std::uint32_t part = 0; part < 2; ++part) {
    std::vector<float> gradient(sum.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<float>((i * (7 + part)) % 61) - 30.0f;
    }
    few.ContributeLargest(part, &gradient);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i] * (part == 0 ? 1.0f : 0.5f);
  }
  ASSERT_FALSE(operations.Run(few.ReduceAll()).torn);
  action::Apply apply = few.ApplyFrom(Exchanging::kSum);
  apply.clip = 0;
  ASSERT_FALSE(operations.Gather(apply));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_EQ(few.buffers->update_gradient()[i], 0.25f * sum[i]) << i;
  }
}

TEST(FewOfManyMemory, IsThatOfWhatIsSentAndOfThreeGradients) {
  Exchanging wide(NumberType::kFp32);
  Exchanging few(NumberType::kFp32, 11);
  const BufferId contribution{BufferKind::kContribution, 1, {}};
  EXPECT_LT(few.buffers->Bytes(contribution) * 50, wide.buffers->Bytes(contribution));
  EXPECT_EQ(few.buffers->Bytes(Exchanging::kSum), wide.buffers->Bytes(Exchanging::kSum));
  EXPECT_EQ(wide.buffers->residual(0), nullptr);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_NE(few.buffers->residual(i), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Types, FewOfMany,
                         ::testing::Combine(::testing::Values(NumberType::kFp32, NumberType::kBf16,
                                                              NumberType::kFp16),
                                            ::testing::Values(11u, 103u, 512u)));

INSTANTIATE_TEST_SUITE_P(Types, InSixteenBits,
                         ::testing::Values(NumberType::kBf16, NumberType::kFp16));

TEST(MemoryInSixteenBits, IsHalfOfEachContributionAndSumAndOneGradient) {
  Exchanging wide(NumberType::kFp32);
  Exchanging narrow(NumberType::kBf16);
  const BufferId contribution{BufferKind::kContribution, 1, {}};
  EXPECT_EQ(narrow.buffers->Bytes(contribution) * 2, wide.buffers->Bytes(contribution));
  EXPECT_EQ(narrow.buffers->Bytes({BufferKind::kState, 0, {}}),
            wide.buffers->Bytes({BufferKind::kState, 0, {}}));
  EXPECT_EQ(reinterpret_cast<std::byte*>(wide.buffers->Gradient(contribution)),
            wide.buffers->Data(contribution));
  EXPECT_NE(reinterpret_cast<std::byte*>(narrow.buffers->Gradient(contribution)),
            narrow.buffers->Data(contribution));
}

// Where the program makes the update: it is given the mean, and what is copied for others is all of
// the state, its tensors one behind the other.
TEST(ProgramUpdateTest, TheMeanIsGatheredAndTheWholeStateCopied) {
  constexpr BufferId kSum{BufferKind::kSum, 0, {}};
  constexpr BufferId kOut{BufferKind::kStateOut, 0, {}};
  const Layout layout({{0, 5000}}, 4096 * sizeof(float), sizeof(float), Layout::Copies::kWhole);
  ASSERT_EQ(layout.bucket_count(), 2u);
  ASSERT_EQ(layout.copy_count(), 1u);
  const auto optimizer = MakeCustomOptimizer(2);
  const auto buffers = *WorkerBuffers::Make(layout, 2, /*arena=*/false);
  PeerArenas arenas;
  Operations operations(layout, *buffers, arenas, *optimizer);
  float* sum = buffers->At(kSum);
  for (int i = 0; i < 5000; ++i) sum[i] = static_cast<float>(i);
  action::Apply apply;
  apply.op = 7;
  apply.slices = {{{kSum, std::nullopt, 0}, {0, 4096}}, {{kSum, std::nullopt, 0}, {4096, 904}}};
  apply.scale = 0.25f;
  EXPECT_FALSE(operations.Gather(apply));
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(buffers->update_gradient()[i], 0.25f * static_cast<float>(i));
  }

  float* state = buffers->At({BufferKind::kState, 1, {}});
  EXPECT_EQ(buffers->At({BufferKind::kState, 2, {}}), state + 5000);
  for (int i = 0; i < 10000; ++i) state[i] = static_cast<float>(i);
  buffers->parameters()[4999] = 42;
  const event::OpDone done = operations.EndUpdate(7, 1);
  EXPECT_EQ(done.op, 7u);
  EXPECT_EQ(done.digest, DigestOf({buffers->parameters() + layout.bucket(1).first, 904}).low);
  (void)operations.Run(action::CopyState{8, 0, kOut});
  EXPECT_EQ(buffers->At(kOut)[4999], 42);
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(buffers->At(kOut)[5000 + i], static_cast<float>(i));
}

TEST_P(InSixteenBits, TheProgramIsGivenTheMeanInFp32) {
  constexpr std::uint64_t kCount = 40'000;  // more than is widened at a time
  const Layout layout({{0, kCount}}, kBucket * sizeof(float), NumberBytes(GetParam()),
                      Layout::Copies::kWhole);
  const auto optimizer = MakeCustomOptimizer(0);
  const auto buffers = *WorkerBuffers::Make(layout, 0, /*arena=*/false, nullptr, GetParam());
  PeerArenas arenas;
  Operations operations(layout, *buffers, arenas, *optimizer);
  std::vector<float> sums(kCount);
  for (std::size_t i = 0; i < kCount; ++i) sums[i] = static_cast<float>(i % 61) - 30.0f;
  const BufferId sum{BufferKind::kSum, 0, {}};
  ASSERT_TRUE(Narrow(GetParam(), sums.data(), reinterpret_cast<std::uint16_t*>(buffers->Data(sum)),
                     kCount));
  action::Apply apply;
  apply.slices = {{{sum, std::nullopt, 0}, {0, 1024}},
                  {{sum, std::nullopt, 0}, {1024, kCount - 1024}}};
  apply.scale = 0.25f;
  EXPECT_FALSE(operations.Gather(apply));
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(buffers->update_gradient()[i], 0.25f * sums[i]) << i;
  }
}

// It is found before the program sees it: its update cannot be taken back.
TEST(ProgramUpdateTest, ASumThatIsGoneIsTornAndNoUpdateIsMade) {
  const Layout layout({{0, 5000}}, 4096 * sizeof(float), sizeof(float), Layout::Copies::kWhole);
  const auto optimizer = MakeCustomOptimizer(0);
  const auto buffers = *WorkerBuffers::Make(layout, 0, /*arena=*/false);
  PeerArenas arenas;
  Operations operations(layout, *buffers, arenas, *optimizer);
  action::Apply apply;
  apply.op = 7;
  const MemberId gone{WorkerId(1), Incarnation(1)};
  apply.slices = {{{{BufferKind::kSum, 0, {}}, gone, 1}, {0, 5000}}};
  const auto done = operations.Gather(apply);
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->torn);
  EXPECT_EQ(done->op, 7u);
}

}  // namespace
}  // namespace lockstep::worker
