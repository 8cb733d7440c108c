// The digest that comes with an update is that of the bucket as it is afterwards, however the
// bucket is sliced and whether any of it was updated.
#include "worker/runtime/operations.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/digest.h"
#include "base/job_config.h"

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

}  // namespace
}  // namespace lockstep::worker
