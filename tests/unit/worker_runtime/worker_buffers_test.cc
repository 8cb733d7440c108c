#include "worker/runtime/worker_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace lockstep::worker {
namespace {

const BufferId kStaged{BufferKind::kStaging, 0, WorkerId(1)};

// Of 4 MiB in each buffer.
class WorkerBuffersTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kNumbers = std::uint64_t{1} << 20;

  WorkerBuffersTest()
      : layout_({{0, kNumbers}}, 4 * kNumbers),
        buffers_(*WorkerBuffers::Make(layout_, 1, /*arena=*/false)) {
    std::fill_n(buffers_->At(kStaged), kNumbers, 1.0f);
  }
  std::uint64_t Ones() { return static_cast<std::uint64_t>(std::count(At(0), At(kNumbers), 1.0f)); }
  float* At(std::uint64_t number) { return buffers_->At(kStaged) + number; }

  Layout layout_;
  std::unique_ptr<WorkerBuffers> buffers_;
};

TEST_F(WorkerBuffersTest, WhatIsGivenBackTakesNoMemory) {
  EXPECT_GE(buffers_->Backed().staging, 4 * kNumbers);
  buffers_->GiveBack(kStaged);
  EXPECT_EQ(buffers_->Backed().staging, 0u);
}

// Whole pages around what is kept, and no number of it is lost.
TEST_F(WorkerBuffersTest, WhatIsKeptStaysWithItsPages) {
  const std::vector<FloatRange> kept = {
      {3, 10}, {5000, 1}, {kNumbers / 2 - 7, 3000}, {kNumbers - 1, 1}};
  std::uint64_t numbers = 0;
  for (const FloatRange& range : kept) numbers += range.count;
  buffers_->GiveBack(kStaged, kept);
  // To read what is gone would have it back.
  EXPECT_LT(buffers_->Backed().staging, kNumbers) << "a quarter of it";
  for (const FloatRange& range : kept) {
    EXPECT_TRUE(std::all_of(At(range.first), At(range.end()), [](float f) { return f == 1.0f; }))
        << range.first;
  }
  EXPECT_GE(Ones(), numbers);
}

TEST_F(WorkerBuffersTest, NothingIsGivenBackWhereAllIsKept) {
  buffers_->GiveBack(kStaged, std::vector<FloatRange>{{0, kNumbers}});
  EXPECT_EQ(Ones(), kNumbers);
}

}  // namespace
}  // namespace lockstep::worker
