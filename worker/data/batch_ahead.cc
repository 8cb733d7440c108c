#include "worker/data/batch_ahead.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/free_memory.h"

namespace lockstep::worker {

BatchAhead::BatchAhead(const Dataset& dataset, std::uint64_t seed) : dataset_(dataset) {
  current_.seed = seed;
  ahead_.seed = seed;
}

Status BatchAhead::Reserve(std::size_t samples) {
  const std::size_t values = samples * dataset_.shape().size();
  if (current_.inputs.size() >= values || (prepared_ && ahead_.samples == samples)) return {};
  const Status fits =
      CheckMemory(values * sizeof(float), fmt::format("a unit of {} samples", samples));
  if (!fits) return fits;
  std::vector<float>().swap(current_.inputs);  // replaced, so that both never exist at once
  current_.inputs.resize(values);
  return {};
}

const Batch& BatchAhead::Train(std::uint32_t epoch, std::span<const SampleRange> ranges,
                               std::span<const std::uint32_t> indices) {
  // The epoch determines the samples at these positions.
  if (std::exchange(prepared_, false) && ahead_.epoch == epoch &&
      std::ranges::equal(prepared_ranges_, ranges)) {
    std::swap(current_, ahead_);
  } else {
    Fill(epoch, ranges, indices, current_);
  }
  return current_;
}

const Batch& BatchAhead::Prepare(std::uint32_t epoch, std::span<const SampleRange> ranges,
                                 std::span<const std::uint32_t> indices) {
  Fill(epoch, ranges, indices, ahead_);
  prepared_ = true;
  prepared_ranges_.assign(ranges.begin(), ranges.end());
  return ahead_;
}

const Batch& BatchAhead::Test(std::span<const std::uint32_t> indices) {
  dataset_.FillBatch(Split::kTest, indices, current_);
  return current_;
}

void BatchAhead::Fill(std::uint32_t epoch, std::span<const SampleRange> ranges,
                      std::span<const std::uint32_t> indices, Batch& batch) {
  batch.epoch = epoch;
  batch.first_position = ranges.empty() ? 0 : ranges.front().from;
  batch.positions.clear();
  for (const SampleRange& range : ranges) {
    if (ranges.size() == 1) break;
    for (std::uint64_t at = range.from; at < range.to; ++at) batch.positions.push_back(at);
  }
  dataset_.FillBatch(Split::kTrain, indices, batch);
}

}  // namespace lockstep::worker
