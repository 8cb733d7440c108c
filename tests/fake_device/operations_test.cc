// What is found in sums that a device makes: it is not waited for while it does.
#include "worker/runtime/operations.h"

#include <gtest/gtest.h>

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
  const PeerArenas arenas;
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

}  // namespace
}  // namespace lockstep::worker
