// What is found in sums that a device makes: it is not waited for while it does.
#include "worker/runtime/operations.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <memory>
#include <vector>

#include "base/job_config.h"
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
