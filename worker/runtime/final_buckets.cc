#include "worker/runtime/final_buckets.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

namespace {

std::vector<FloatRange> InModelOrder(const std::vector<std::uint64_t>& blocks) {
  std::vector<FloatRange> ranges;
  std::uint64_t offset = 0;
  for (const std::uint64_t size : blocks) {
    ranges.push_back({offset, size});
    offset += size;
  }
  return ranges;
}

std::vector<FloatRange> Finished(const std::vector<std::uint64_t>& blocks,
                                 const std::vector<std::uint32_t>& finish_order) {
  const std::vector<FloatRange> ranges = InModelOrder(blocks);
  std::vector<FloatRange> finished;
  for (const std::uint32_t block : finish_order) finished.push_back(ranges.at(block));
  return finished;
}

}  // namespace

FinalBuckets::FinalBuckets(const std::vector<std::uint64_t>& blocks,
                           const std::vector<std::uint32_t>& finish_order,
                           std::uint64_t bucket_bytes, std::uint64_t number_bytes,
                           Layout::Copies copies, const Compression& compression)
    : layout_(Finished(blocks, finish_order), bucket_bytes, number_bytes, copies, compression),
      shares_(blocks.size()) {
  std::vector<std::uint32_t> by_position(layout_.bucket_count());
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) by_position[b] = b;
  std::ranges::sort(by_position, {}, [&](std::uint32_t b) { return layout_.bucket(b).first; });
  // Both lists cover the vector, in its order.
  auto at = by_position.begin();
  const std::vector<FloatRange> ranges = InModelOrder(blocks);
  for (std::size_t block = 0; block < ranges.size(); ++block) {
    std::uint64_t from = ranges[block].begin();
    while (from < ranges[block].end()) {
      const std::uint64_t bucket_end = layout_.bucket(*at).end();
      const std::uint64_t to = std::min(bucket_end, ranges[block].end());
      shares_[block].push_back({*at, to - from});
      if (to == bucket_end) ++at;
      from = to;
    }
  }
  BeginRun();
}

void FinalBuckets::BeginRun() {
  marked_.assign(shares_.size(), false);
  lacking_.clear();
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
    lacking_.push_back(layout_.bucket(b).count);
  }
  blocks_ = 0;
  buckets_ = 0;
}

// Twice is a bug: what was added after the first time may be missing at whoever has fetched it.
std::uint32_t FinalBuckets::Mark(std::uint32_t block) {
  LOCKSTEP_CHECK(block < shares_.size(), "block {} of {} is said to be final", block,
                 shares_.size());
  LOCKSTEP_CHECK(!marked_[block], "block {} is said to be final twice in a run", block);
  marked_[block] = true;
  ++blocks_;
  for (const Share& share : shares_[block]) lacking_[share.bucket] -= share.floats;
  while (buckets_ < lacking_.size() && lacking_[buckets_] == 0) ++buckets_;
  return buckets_;
}

std::uint64_t FinalBuckets::Floats(std::uint32_t buckets) const {
  std::uint64_t floats = 0;
  for (std::uint32_t b = 0; b < buckets; ++b) floats += layout_.bucket(b).count;
  return floats;
}

}  // namespace lockstep::worker
