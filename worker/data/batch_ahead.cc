#include "worker/data/batch_ahead.h"

#include <fmt/format.h>

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
  std::vector<float>().swap(current_.inputs);  // replaced, not kept beside the new one
  current_.inputs.resize(values);
  return {};
}

const Batch& BatchAhead::Train(std::uint32_t epoch, std::uint64_t first_position,
                               std::span<const std::uint32_t> indices) {
  // Which samples stand at these positions follows from the epoch.
  if (std::exchange(prepared_, false) && ahead_.epoch == epoch &&
      ahead_.first_position == first_position && ahead_.samples == indices.size()) {
    std::swap(current_, ahead_);
  } else {
    Fill(epoch, first_position, indices, current_);
  }
  return current_;
}

const Batch& BatchAhead::Prepare(std::uint32_t epoch, std::uint64_t first_position,
                                 std::span<const std::uint32_t> indices) {
  Fill(epoch, first_position, indices, ahead_);
  prepared_ = true;
  return ahead_;
}

const Batch& BatchAhead::Test(std::span<const std::uint32_t> indices) {
  dataset_.FillBatch(Split::kTest, indices, current_);
  return current_;
}

void BatchAhead::Fill(std::uint32_t epoch, std::uint64_t first_position,
                      std::span<const std::uint32_t> indices, Batch& batch) {
  batch.epoch = epoch;
  batch.first_position = first_position;
  dataset_.FillBatch(Split::kTrain, indices, batch);
}

}  // namespace lockstep::worker
