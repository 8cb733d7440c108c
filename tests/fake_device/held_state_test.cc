// The optimizer's state of the shards that a worker holds, in a device's memory.
#include "worker/runtime/held_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/fake_device/fake_device.h"
#include "transport/transport.h"

namespace lockstep::worker {
namespace {

// Knows of regions only.
class Regions final : public transport::Transport {
 public:
  std::size_t count = 0;

  Result<transport::RegionId> Register(transport::MemoryKind, void*, std::size_t) override {
    ++count;
    return transport::RegionId(++last_);
  }
  void Unregister(transport::RegionId) override { --count; }

  Status Start(transport::Handler*) override { return {}; }
  void Stop() override {}
  void Post(std::function<void()>) override {}
  void PostAt(Time, std::function<void()>) override {}
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return {}; }
  void Connect(const MemberId&, const std::string&) override {}
  void Close(transport::PeerId, std::string) override {}
  bool Send(transport::PeerId, std::span<const std::byte>) override { return false; }
  Result<transport::FetchId> Fetch(transport::PeerId, const PieceName&,
                                   const transport::Slice&) override {
    return Error{ErrorCode::kClosed, "nobody is there"};
  }
  void GiveUp(transport::FetchId) override {}
  void Provide(transport::PeerId, std::uint64_t, const transport::Slice&) override {}

 private:
  const transport::Capabilities capabilities_{};
  std::uint32_t last_ = 0;
};

constexpr std::uint32_t kShards = 3;
constexpr std::uint32_t kTensors = 2;

class HeldStateTest : public testing::Test {
 protected:
  static std::vector<float> Counting(std::uint64_t n, float from) {
    std::vector<float> values(n);
    std::iota(values.begin(), values.end(), from);
    return values;
  }
  std::uint64_t count() const { return layout_.parameter_count(); }
  void Store(std::uint32_t tensor, const std::vector<float>& values, std::uint64_t from = 0) {
    held_.Store(tensor, from * sizeof(float), std::as_bytes(std::span(values)));
  }
  std::vector<float> Read(std::uint32_t tensor) {
    std::vector<float> found(count(), -1);
    held_.Read(tensor, found.data());
    return found;
  }
  std::vector<FloatRange> RangesOf(std::uint32_t shard) const {
    std::vector<FloatRange> ranges;
    for (const Slice& slice : layout_.EqualShard(shard, kShards)) ranges.push_back(slice.range);
    return ranges;
  }

  // Buckets of one grain and of many, the last one not whole.
  const Layout layout_{{{0, 700}, {700, 9000}, {9700, 5500}}, 4096 * sizeof(float)};
  const std::shared_ptr<FakeAddresses> addresses_ = std::make_shared<FakeAddresses>();
  const std::unique_ptr<ExchangeMemory> memory_ = MakeFakeMemory(addresses_);
  HeldState held_{layout_, kShards, kTensors, *memory_};
};

TEST_F(HeldStateTest, CutsWhereShardsEnd) {
  std::vector<std::vector<bool>> seen(kShards);
  std::uint64_t end = 0;
  for (const HeldState::Part& part : held_.Cut({0, count()})) {
    EXPECT_EQ(part.range.first, end);
    end = part.range.end();
    seen[part.shard].resize(held_.floats(part.shard));
    for (std::uint64_t i = 0; i < part.range.count; ++i) {
      ASSERT_FALSE(seen[part.shard][part.at + i]) << "two lie in one place";
      seen[part.shard][part.at + i] = true;
    }
    // And the middle of it where it lies in the whole.
    if (part.range.count < 3) continue;
    const auto inner = held_.Cut({part.range.first + 1, part.range.count - 2});
    ASSERT_EQ(inner.size(), 1u);
    EXPECT_EQ(inner[0].shard, part.shard);
    EXPECT_EQ(inner[0].at, part.at + 1);
  }
  EXPECT_EQ(end, count());
  for (const auto& all : seen) EXPECT_EQ(std::ranges::count(all, false), 0);
}

TEST_F(HeldStateTest, KeepsWhatIsStoredAndTakesTheDevicesMemoryForWhatIsUpdatedAlone) {
  const std::size_t before = addresses_->most_bytes();
  EXPECT_EQ(Read(1), std::vector<float>(count(), 0)) << "nothing is stored";
  const std::vector<std::vector<float>> tensors = {Counting(count(), 1), Counting(count(), 50'000)};
  for (std::uint32_t t = 1; t <= kTensors; ++t) {
    // In chunks that end anywhere.
    for (std::uint64_t at = 0; at < count(); at += 1234) {
      const auto n = std::min<std::uint64_t>(1234, count() - at);
      Store(t,
            {tensors[t - 1].begin() + static_cast<std::ptrdiff_t>(at),
             tensors[t - 1].begin() + static_cast<std::ptrdiff_t>(at + n)},
            at);
    }
  }
  EXPECT_EQ(addresses_->most_bytes(), before);
  float* state = held_.ToDevice(1);
  EXPECT_EQ(addresses_->most_bytes(), before + kTensors * held_.floats(1) * sizeof(float));
  EXPECT_EQ(held_.ToDevice(1), state);
  for (std::uint32_t t = 1; t <= kTensors; ++t) EXPECT_EQ(Read(t), tensors[t - 1]);
  // As an update finds it, and leaves it.
  for (const FloatRange& range : RangesOf(1)) {
    for (const HeldState::Part& part : held_.Cut(range)) {
      float* second = state + held_.floats(1) + part.at;
      std::vector<float> found(part.range.count);
      memory_->ToHost(found.data(), second, found.size() * sizeof(float));
      EXPECT_TRUE(std::ranges::equal(
          found, std::span(tensors[1]).subspan(part.range.first, part.range.count)));
      memory_->Zero(second, part.range.count);
    }
  }
  std::vector<float> expected = tensors[1];
  for (const FloatRange& range : RangesOf(1)) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, 0.0f);
  }
  EXPECT_EQ(Read(2), expected);
  EXPECT_EQ(Read(1), tensors[0]);
}

TEST_F(HeldStateTest, WhatIsServedStaysUntilItIsServed) {
  Regions transport;
  Store(1, Counting(count(), 1));
  Store(2, Counting(count(), 1));
  const std::size_t all = held_.backed();
  EXPECT_GE(all, kTensors * count() * sizeof(float));
  auto host = held_.Find(transport, 1, RangesOf(0).front());
  ASSERT_TRUE(host.ok());
  EXPECT_EQ(host->slice.bytes, RangesOf(0).front().count * sizeof(float));
  auto other = held_.Find(transport, 2, RangesOf(0).front());
  EXPECT_EQ(other->slice.region, host->slice.region);
  EXPECT_EQ(other->slice.offset - host->slice.offset, held_.floats(0) * sizeof(float));
  held_.ToDevice(0);
  held_.Collect(transport);
  const std::size_t twice = held_.backed();
  EXPECT_GE(twice, all + kTensors * held_.floats(0) * sizeof(float))
      << "the host's is still served";
  host->kept.reset();
  other->kept.reset();
  held_.Collect(transport);
  EXPECT_EQ(transport.count, 0u);
  EXPECT_LT(held_.backed(), twice);

  auto device = held_.Find(transport, 1, RangesOf(0).front());
  ASSERT_TRUE(device.ok());
  EXPECT_NE(device->slice.region, host->slice.region);
  held_.Drop(RangesOf(0));
  held_.Collect(transport);
  const std::size_t dropped = held_.backed();
  device->kept.reset();
  held_.Collect(transport);
  EXPECT_EQ(dropped - held_.backed(), kTensors * held_.floats(0) * sizeof(float));
  std::vector<float> expected = Counting(count(), 1);
  for (const FloatRange& range : RangesOf(0)) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, 0.0f);
  }
  EXPECT_EQ(Read(1), expected) << "the others' is there";
}

}  // namespace
}  // namespace lockstep::worker
