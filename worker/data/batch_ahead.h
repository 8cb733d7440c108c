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

// One thread. The dataset outlives it.
class BatchAhead {
 public:
  BatchAhead(const Dataset& dataset, std::uint64_t seed);

  // Room for batches of so many samples. An error when the machine's memory is too small for one.
  Status Reserve(std::size_t samples);

  // The samples `indices`, which stand at the positions of `ranges` in the epoch's order. Valid
  // until the next call of Train or Test.
  const Batch& Train(std::uint32_t epoch, std::span<const SampleRange> ranges,
                     std::span<const std::uint32_t> indices);
  // Fills what the next Train is likely to want. Leaves alone what Train gave last.
  const Batch& Prepare(std::uint32_t epoch, std::span<const SampleRange> ranges,
                       std::span<const std::uint32_t> indices);
  // Samples of the test set. Valid as what Train gives.
  const Batch& Test(std::span<const std::uint32_t> indices);

 private:
  void Fill(std::uint32_t epoch, std::span<const SampleRange> ranges,
            std::span<const std::uint32_t> indices, Batch& batch);

  const Dataset& dataset_;
  Batch current_;
  Batch ahead_;
  bool prepared_ = false;  // ahead_ is filled and was not used
  std::vector<SampleRange> prepared_ranges_;
};

}  // namespace lockstep::worker
