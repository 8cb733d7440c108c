// Training batches of which one may be filled ahead of need, while a device works on the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"

namespace lockstep::worker {

// It belongs to one thread, and the dataset outlives it.
class BatchAhead {
 public:
  BatchAhead(const Dataset& dataset, std::uint64_t seed);

  // Makes room for batches of so many samples. It returns an error when the machine's memory is too
  // small for one.
  Status Reserve(std::size_t samples);

  // Returns the samples `indices`, which are at the positions of `ranges` in the epoch's order. The
  // batch is valid until the next call of Train or Test.
  const Batch& Train(std::uint32_t epoch, std::span<const SampleRange> ranges,
                     std::span<const std::uint32_t> indices);
  // Fills the batch that the next Train probably wants. It does not touch the last result of Train.
  const Batch& Prepare(std::uint32_t epoch, std::span<const SampleRange> ranges,
                       std::span<const std::uint32_t> indices);
  // Returns samples of the test set. The batch is valid as long as one of Train.
  const Batch& Test(std::span<const std::uint32_t> indices);

 private:
  void Fill(std::uint32_t epoch, std::span<const SampleRange> ranges,
            std::span<const std::uint32_t> indices, Batch& batch);

  const Dataset& dataset_;
  Batch current_;
  Batch ahead_;
  bool prepared_ = false;  // ahead_ is filled and has not been used
  std::vector<SampleRange> prepared_ranges_;
};

}  // namespace lockstep::worker
