#include "worker/runtime/held_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/free_memory.h"
#include "worker/compute/compute.h"

namespace lockstep::worker {

HeldState::HeldState(const Layout& layout, std::uint32_t shards, std::uint32_t tensors,
                     ExchangeMemory& device)
    : device_(device), tensors_(tensors), floats_(shards) {
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    for (const Slice& slice : layout.EqualShard(shard, shards)) {
      runs_.push_back({.range = slice.range, .shard = shard});
    }
  }
  std::ranges::sort(runs_, {}, [](const Run& run) { return run.range.first; });
  std::uint64_t end = 0;
  for (Run& run : runs_) {
    LOCKSTEP_CHECK(run.range.first == end, "parameter {} is in no shard", end);
    end = run.range.end();
    run.at = floats_[run.shard];
    floats_[run.shard] += run.range.count;
  }
}

HeldState::~HeldState() = default;

std::vector<HeldState::Part> HeldState::Cut(const FloatRange& range) const {
  std::vector<Part> parts;
  auto run = std::ranges::upper_bound(runs_, range.first, {},
                                      [](const Run& one) { return one.range.first; });
  LOCKSTEP_CHECK(run != runs_.begin(), "no parameters");
  for (--run; run != runs_.end() && run->range.first < range.end(); ++run) {
    const FloatRange both = FloatRange::Between(std::max(run->range.first, range.first),
                                                std::min(run->range.end(), range.end()));
    const std::uint64_t at = run->at + (both.first - run->range.first);
    // Slices of one shard that lie side by side do so in its block as well.
    if (!parts.empty() && parts.back().shard == run->shard) {
      parts.back().range.count += both.count;
    } else {
      parts.push_back({run->shard, both, at});
    }
  }
  return parts;
}

HeldState::BlockPtr HeldState::Make(std::uint32_t shard, bool on_device) {
  auto& memory = on_device ? device_ : static_cast<ExchangeMemory&>(host_);
  auto pages = Pages::Reserve(memory, tensors_ * floats_[shard] * sizeof(float));
  if (!pages) throw DeviceError(pages.error().message);
  return std::make_shared<Block>(Block{.pages = *std::move(pages), .on_device = on_device});
}

HeldState::BlockPtr HeldState::Of(std::uint32_t shard) {
  BlockPtr& block = blocks_[shard];
  if (block == nullptr) block = Make(shard, /*on_device=*/false);
  return block;
}

std::byte* HeldState::At(const Block& block, const Part& part, std::uint32_t tensor) const {
  LOCKSTEP_CHECK(tensor > 0 && tensor <= tensors_, "no tensor {} of state", tensor);
  return block.pages.data() + ((tensor - 1) * floats_[part.shard] + part.at) * sizeof(float);
}

float* HeldState::ToDevice(std::uint32_t shard) {
  BlockPtr before;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(shard);
    if (found != blocks_.end()) before = found->second;
  }
  if (before == nullptr || !before->on_device) {
    const BlockPtr made = Make(shard, /*on_device=*/true);
    if (before != nullptr) {
      device_.FromHost(made->pages.data(), before->pages.data(), before->pages.bytes());
    }
    const std::lock_guard lock(mutex_);
    BlockPtr& block = blocks_[shard];
    LOCKSTEP_CHECK(block == before, "the state of shard {} was moved while it changed", shard);
    block = made;
    if (before != nullptr) Retire(std::move(before));
    before = made;
  }
  return reinterpret_cast<float*>(before->pages.data());
}

void HeldState::Store(std::uint32_t tensor, std::uint64_t offset_bytes,
                      std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (blocks_.empty()) {
    std::uint64_t all = 0;
    for (const std::uint64_t floats : floats_) all += tensors_ * floats * sizeof(float);
    const Status fits = CheckMemory(all, "memory for a checkpoint's optimizer state");
    if (!fits) throw DeviceError(fits.error().message);
  }
  const std::byte* from = bytes.data();
  for (const Part& part : Cut({offset_bytes / sizeof(float), bytes.size() / sizeof(float)})) {
    const BlockPtr block = Of(part.shard);
    const std::size_t size = part.range.count * sizeof(float);
    auto& memory = block->on_device ? device_ : static_cast<ExchangeMemory&>(host_);
    memory.FromHost(At(*block, part, tensor), from, size);
    from += size;
  }
}

// Without the lock, which the data thread waits for: it takes long, and nobody writes meanwhile.
void HeldState::Read(std::uint32_t tensor, float* to) {
  std::map<std::uint32_t, BlockPtr> blocks;
  {
    const std::lock_guard lock(mutex_);
    blocks = blocks_;
  }
  std::vector<ExchangeMemory::HostCopy> copies;
  for (const Run& run : runs_) {
    const auto found = blocks.find(run.shard);
    if (found == blocks.end()) {
      std::fill_n(to + run.range.first, run.range.count, 0.0f);
      continue;
    }
    const Block& block = *found->second;
    const std::byte* from = At(block, {run.shard, run.range, run.at}, tensor);
    const std::size_t size = run.range.count * sizeof(float);
    if (block.on_device) {
      copies.push_back({to + run.range.first, from, size});
    } else {
      std::memcpy(to + run.range.first, from, size);
    }
  }
  device_.ToHost(copies);
}

void HeldState::Retire(BlockPtr block) {
  retired_.push_back(std::move(block));
  any_retired_ = true;
}

void HeldState::Drop(const std::vector<FloatRange>& ranges) {
  const std::lock_guard lock(mutex_);
  for (const FloatRange& range : ranges) {
    for (const Part& part : Cut(range)) {
      const auto found = blocks_.find(part.shard);
      if (found == blocks_.end()) continue;
      Retire(std::move(found->second));
      blocks_.erase(found);
    }
  }
}

Result<HeldState::Place> HeldState::Find(transport::Transport& transport, std::uint32_t tensor,
                                         const FloatRange& range) {
  const std::vector<Part> parts = Cut(range);
  LOCKSTEP_CHECK(parts.size() == 1, "a piece of the state of {} shards", parts.size());
  const std::lock_guard lock(mutex_);
  const BlockPtr block = Of(parts.front().shard);
  if (!block->region) {
    auto region = transport.Register(
        block->on_device ? transport::MemoryKind::kCuda : transport::MemoryKind::kHost,
        block->pages.data(), block->pages.bytes());
    if (!region) return region.error();
    block->region = *region;
  }
  const auto offset =
      static_cast<std::size_t>(At(*block, parts.front(), tensor) - block->pages.data());
  return Place{{*block->region, offset, range.count * sizeof(float)}, block};
}

std::vector<std::shared_ptr<const void>> HeldState::Collect(transport::Transport& transport) {
  if (!any_retired_) return {};
  std::vector<BlockPtr> free;
  {
    const std::lock_guard lock(mutex_);
    const auto unused = std::partition(retired_.begin(), retired_.end(),
                                       [](const BlockPtr& block) { return block.use_count() > 1; });
    free.assign(std::move_iterator(unused), std::move_iterator(retired_.end()));
    retired_.erase(unused, retired_.end());
    any_retired_ = !retired_.empty();
  }
  for (const BlockPtr& block : free) {
    if (block->region) transport.Unregister(*block->region);
  }
  return {free.begin(), free.end()};
}

void HeldState::ForgetRegions() {
  const std::lock_guard lock(mutex_);
  for (const auto& [shard, block] : blocks_) block->region.reset();
  for (const BlockPtr& block : retired_) block->region.reset();
}

std::size_t HeldState::backed() {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [shard, block] : blocks_) bytes += block->pages.backed();
  for (const BlockPtr& block : retired_) bytes += block->pages.backed();
  return bytes;
}

}  // namespace lockstep::worker
