// How the gradient is cut into buckets, and how many of them are final in the run in hand. Blocks
// become final in any order, a bucket with the last of its blocks. Buckets count from the first one
// on, in the layout's order, since "the first n" is what owners are told. So an order of blocks
// that is not the one that was announced costs time where it differs by more than buckets, and is
// never wrong.
//
// Not thread-safe: who is told by several threads has a lock.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/layout/layout.h"

namespace lockstep::worker {

class FinalBuckets {
 public:
  // `blocks`: sizes of consecutive runs of parameters, in model order. `finish_order` (indices into
  // them, each once): in which the buckets are laid out.
  FinalBuckets(const std::vector<std::uint64_t>& blocks,
               const std::vector<std::uint32_t>& finish_order, std::uint64_t bucket_bytes,
               std::uint64_t number_bytes = sizeof(float),
               Layout::Copies copies = Layout::Copies::kBuckets,
               const Compression& compression = {});

  const Layout& layout() const { return layout_; }

  // Nothing is final.
  void BeginRun();
  // The block is final, which is said once in a run. How many buckets are so, from the first on.
  std::uint32_t Mark(std::uint32_t block);
  // As the last Mark of the run has returned it.
  std::uint32_t buckets() const { return buckets_; }
  std::uint32_t blocks() const { return blocks_; }  // that were marked in the run
  // In the first so many buckets.
  std::uint64_t Floats(std::uint32_t buckets) const;

 private:
  struct Share {
    std::uint32_t bucket;
    std::uint64_t floats;  // of the block
  };

  Layout layout_;
  std::vector<std::vector<Share>> shares_;  // by block: the buckets that it lies in
  std::vector<bool> marked_;                // blocks
  std::vector<std::uint64_t> lacking_;      // by bucket: floats that are not final
  std::uint32_t blocks_ = 0;
  std::uint32_t buckets_ = 0;  // before this one none lacks anything
};

}  // namespace lockstep::worker
