// What is found in sums that a device makes, which is not waited for while it does, and what of an
// update it puts aside.
#include "worker/runtime/operations.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "base/job_config.h"
#include "base/random.h"
#include "tests/fake_device/fake_device.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kFloats = 10'000;

TEST(ReductionOnADevice, NamesTheInputsThatAreNotFinite) {
  const Layout layout({{0, kFloats}}, 4096 * sizeof(float));
  const std::shared_ptr<ExchangeMemory> memory = MakeFakeMemory(std::make_shared<FakeAddresses>());
  const auto optimizer = *MakeOptimizer(OptimizerSection());
  const auto buffers = *WorkerBuffers::Make(
      layout, static_cast<std::uint32_t>(optimizer->state_names().size()), /*arena=*/false, memory);
  PeerArenas arenas;
  Operations operations(layout, *buffers, arenas, *optimizer);
  action::Reduce reduce;
  for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
    reduce.slices.push_back({b, layout.bucket(b)});
  }
  std::vector<std::vector<float>> gradients(2, std::vector<float>(kFloats, 1));
  for (std::uint32_t i = 0; i < 2; ++i) {
    reduce.inputs.push_back({{{BufferKind::kContribution, i, {}}, std::nullopt, 0}, 1.0f});
  }
  reduce.out = {BufferKind::kSum, 0, {}};
  const auto not_finite = [&] {
    for (std::uint32_t i = 0; i < 2; ++i) {
      memory->FromHost(buffers->Data({BufferKind::kContribution, i, {}}), gradients[i].data(),
                       kFloats * sizeof(float));
    }
    return operations.Run(reduce).not_finite;
  };
  EXPECT_TRUE(not_finite().empty());
  gradients[1][kFloats - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(not_finite(), std::vector<std::uint32_t>{1});
  gradients[1][kFloats - 1] = 1;
  EXPECT_TRUE(not_finite().empty());
}

// What a device puts aside is less than it updates, so there is more than one turn of it.
class InTurns : public testing::Test {
 protected:
  static constexpr std::uint64_t kScratchFloats = 3000;
  static constexpr std::uint32_t kShards = 2;

  static std::vector<float> Random(std::uint64_t n, std::uint64_t key) {
    RandomStream random(3, key);
    std::vector<float> values(n);
    for (float& value : values) value = random.NextUniform() - 0.5f;
    return values;
  }
  static OptimizerSection AdamW() {
    OptimizerSection section;
    section.name = "adamw";
    return section;
  }
  std::unique_ptr<WorkerBuffers> Buffers(const Layout& layout,
                                         const std::shared_ptr<ExchangeMemory>& memory,
                                         NumberType type, std::uint32_t shards) {
    return *WorkerBuffers::Make(
        layout, static_cast<std::uint32_t>(optimizer_->state_names().size()), /*arena=*/false,
        memory, type,
        shards > 0 ? WorkerBuffers::Parts::kSumsAndState : WorkerBuffers::Parts::kNone, shards);
  }
  static std::vector<float> Read(WorkerBuffers& buffers, const float* from) {
    std::vector<float> values(kFloats);
    buffers.memory().ToHost(values.data(), from, kFloats * sizeof(float));
    return values;
  }
  void Write(WorkerBuffers& buffers, const BufferId& to, std::uint64_t key) {
    const std::vector<float> values = Random(kFloats, key);
    buffers.memory().FromHost(buffers.At(to), values.data(), kFloats * sizeof(float));
  }

  // Buckets of several grains, the last one not whole.
  const std::vector<FloatRange> blocks_ = {{0, 700}, {700, 5000}, {5700, kFloats - 5700}};
  const std::unique_ptr<const Optimizer> optimizer_ = *MakeOptimizer(AdamW());
  PeerArenas arenas_;
};

TEST_F(InTurns, WhatIsHeldIsUpdatedAsOnTheHost) {
  const Layout layout(blocks_, 4096 * sizeof(float));
  const BufferId before{BufferKind::kSum, 0, {}};
  const BufferId sums{BufferKind::kSum, 1, {}};
  for (const std::vector<std::uint32_t>& held :
       {std::vector<std::uint32_t>{0}, std::vector<std::uint32_t>{0, 1}}) {
    std::vector<std::vector<float>> expected;
    for (const bool on_device : {false, true}) {
      const auto memory = on_device
                              ? std::shared_ptr(MakeFakeMemory(std::make_shared<FakeAddresses>()))
                              : std::shared_ptr<ExchangeMemory>();
      const auto buffers = Buffers(layout, memory, NumberType::kFp32, kShards);
      Operations operations(layout, *buffers, arenas_, *optimizer_, std::nullopt, 0,
                            kScratchFloats);
      Write(*buffers, before, 1);
      action::UpdateHeld update;
      update.from = before;
      update.sums = sums;
      update.scale = 0.5f;
      update.learning_rate = 0.1f;
      FloatSet ranges;
      for (const std::uint32_t shard : held) {
        for (const Slice& slice : layout.EqualShard(shard, kShards)) ranges.Merge(slice.range);
      }
      update.ranges = ranges.Ranges();
      std::vector<std::vector<float>> found;
      for (std::uint64_t step = 1; step <= 3; ++step) {
        Write(*buffers, sums, 10 + step);
        update.steps = step;
        operations.Run(update);
        found.push_back(Read(*buffers, buffers->At(sums)));
      }
      operations.Run(action::TakeSnapshot{1, action::SnapshotKind::kCheckpoint, before});
      for (std::uint32_t t = 1; t <= 2; ++t) {
        const float* state = buffers->snapshot(t, action::SnapshotKind::kCheckpoint);
        found.emplace_back(state, state + kFloats);
      }
      if (expected.empty()) {
        expected = std::move(found);
      } else {
        EXPECT_EQ(found, expected) << held.size() << " shards";
      }
    }
  }
}

TEST_F(InTurns, SumsOfSixteenBitsAreAppliedAsOnTheHost) {
  const Layout layout(blocks_, 4096 * sizeof(float), sizeof(std::uint16_t));
  const BufferId sums{BufferKind::kSum, 0, {}};
  std::vector<std::uint16_t> numbers(kFloats);
  Narrow(NumberType::kBf16, Random(kFloats, 5).data(), numbers.data(), kFloats);
  std::vector<std::vector<float>> expected;
  for (const bool on_device : {false, true}) {
    const auto memory = on_device
                            ? std::shared_ptr(MakeFakeMemory(std::make_shared<FakeAddresses>()))
                            : std::shared_ptr<ExchangeMemory>();
    const auto buffers = Buffers(layout, memory, NumberType::kBf16, 0);
    Operations operations(layout, *buffers, arenas_, *optimizer_, std::nullopt, 0, kScratchFloats);
    Write(*buffers, {BufferKind::kState, 0, {}}, 1);
    buffers->memory().FromHost(buffers->Data(sums), numbers.data(),
                               kFloats * sizeof(std::uint16_t));
    action::Apply apply;
    apply.scale = 0.5f;
    apply.learning_rate = 0.1f;
    for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
      apply.slices.push_back({{sums, std::nullopt, 0}, layout.bucket(b)});
    }
    std::ranges::sort(apply.slices, {},
                      [](const action::SourceRange& slice) { return slice.range.first; });
    std::vector<std::vector<float>> found;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      apply.steps = step;
      EXPECT_FALSE(operations.Run(apply).torn);
      for (std::uint32_t t = 0; t <= 2; ++t) {
        found.push_back(Read(*buffers, buffers->At({BufferKind::kState, t, {}})));
      }
    }
    if (expected.empty()) {
      expected = std::move(found);
    } else {
      EXPECT_EQ(found, expected);
    }
  }
}

// A peer's sums that had no memory when its arena was mapped.
class LateBlocks : public testing::Test {
 protected:
  static constexpr std::uint32_t kLate = 3;  // the sum that no job begins with

  LateBlocks() {
    theirs_->arena()->BeginWrite(theirs_->ArenaBlock(Sum()));
    theirs_->arena()->Publish(theirs_->ArenaBlock(Sum()), 5);
    arenas_.Put(kPeer, Map(), [this] {
      ++asked_;
      return answers_ ? Map() : nullptr;
    });
    for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
      copy_.from.push_back({{Sum(), kPeer, 5}, layout_.bucket(b)});
    }
    copy_.to = {BufferKind::kSum, 0, {}};
  }

  static BufferId Sum() { return {BufferKind::kSum, kLate, {}}; }
  std::unique_ptr<WorkerBuffers> Buffers() {
    return *WorkerBuffers::Make(layout_,
                                static_cast<std::uint32_t>(optimizer_->state_names().size()),
                                /*arena=*/true, memory_);
  }
  // All that there is of it now.
  PeerArenas::Arena Map() {
    const transport::Arena& arena = *theirs_->arena();
    std::vector<transport::DeviceBlock> blocks;
    arena.exported()->Look([&](const auto& exported) {
      for (std::size_t i = 0; i < exported.size(); ++i) {
        if (!exported[i].fd) continue;
        blocks.push_back({i, exported[i].bytes, transport::UniqueFd(::dup(exported[i].fd.get()))});
      }
    });
    auto mapped =
        transport::PeerArena::FromFds(transport::UniqueFd(::dup(arena.fd())), arena.nonce(), blocks,
                                      arena.device_name(), *memory_->sharing());
    LOCKSTEP_CHECK(mapped.ok(), "{}", mapped.error().message);
    return std::make_shared<const transport::PeerArena>(*std::move(mapped));
  }

  const MemberId kPeer{WorkerId(1), Incarnation(1)};
  const Layout layout_{{{0, kFloats}}, 4096 * sizeof(float)};
  const std::shared_ptr<ExchangeMemory> memory_ = MakeFakeMemory(std::make_shared<FakeAddresses>());
  const std::unique_ptr<const Optimizer> optimizer_ = *MakeOptimizer(OptimizerSection());
  const std::unique_ptr<WorkerBuffers> ours_ = Buffers();
  const std::unique_ptr<WorkerBuffers> theirs_ = Buffers();
  PeerArenas arenas_;
  Operations operations_{layout_, *ours_, arenas_, *optimizer_};
  action::CopySums copy_;
  bool answers_ = true;
  int asked_ = 0;
};

TEST_F(LateBlocks, AreAskedForOnceAndThenRead) {
  const std::vector<float> sums(kFloats, 3);
  memory_->FromHost(theirs_->Data(Sum()), sums.data(), kFloats * sizeof(float));
  EXPECT_FALSE(operations_.Run(copy_).torn);
  EXPECT_FALSE(operations_.Run(copy_).torn);
  EXPECT_EQ(asked_, 1);
  std::vector<float> found(kFloats);
  memory_->ToHost(found.data(), ours_->Data(copy_.to), kFloats * sizeof(float));
  EXPECT_EQ(found, sums);
}

TEST_F(LateBlocks, OfAPeerThatDoesNotAnswerAreAskedForOnceInAnOperation) {
  static_cast<void>(theirs_->Data(Sum()));
  answers_ = false;
  EXPECT_TRUE(operations_.Run(copy_).torn);
  EXPECT_EQ(asked_, 1);
  answers_ = true;
  EXPECT_FALSE(operations_.Run(copy_).torn);
}

TEST_F(LateBlocks, OfAnotherGenerationAreNotAskedFor) {
  for (action::SourceRange& from : copy_.from) from.source.generation = 4;
  EXPECT_TRUE(operations_.Run(copy_).torn);
  EXPECT_EQ(asked_, 0);
}

}  // namespace
}  // namespace lockstep::worker
