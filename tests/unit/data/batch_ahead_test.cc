#include "worker/data/batch_ahead.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::worker {
namespace {

Dataset Numbers() {
  Samples train, test;
  for (std::uint8_t i = 0; i < 40; ++i) {
    train.pixels.push_back(i);
    train.labels.push_back(i % 10);
    test.pixels.push_back(static_cast<std::uint8_t>(100 + i));
    test.labels.push_back(i % 10);
  }
  return {{1, 1, 1}, 10, std::move(train), std::move(test)};
}

std::vector<std::uint32_t> Range(std::uint32_t from, std::uint32_t to) {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = from; i < to; ++i) indices.push_back(i);
  return indices;
}

std::vector<SampleRange> At(std::uint64_t from, std::uint64_t to) { return {{from, to}}; }

std::vector<float> Inputs(const Batch& batch) {
  return {batch.inputs.begin(), batch.inputs.begin() + static_cast<std::ptrdiff_t>(batch.samples)};
}

TEST(BatchAhead, GivesWhatWasPrepared) {
  const Dataset data = Numbers();
  BatchAhead ahead(data, 3);
  const Batch& first = ahead.Train(2, At(0, 4), Range(0, 4));
  const std::vector<float> in_use = Inputs(first);
  const Batch& prepared = ahead.Prepare(2, At(4, 8), Range(4, 8));
  EXPECT_EQ(Inputs(first), in_use);  // it may be read by a device all the while
  const float* memory = prepared.inputs.data();
  const Batch& second = ahead.Train(2, At(4, 8), Range(4, 8));
  EXPECT_EQ(second.inputs.data(), memory);
  EXPECT_EQ(second.first_position, 4u);
  EXPECT_EQ(second.epoch, 2u);
  EXPECT_EQ(second.seed, 3u);

  BatchAhead plain(data, 3);
  EXPECT_EQ(Inputs(second), Inputs(plain.Train(2, At(4, 8), Range(4, 8))));
}

TEST(BatchAhead, AWrongGuessIsFilledAnew) {
  const Dataset data = Numbers();
  BatchAhead plain(data, 3);
  struct Guess {
    std::uint32_t epoch;
    std::uint32_t from;
    std::uint32_t to;
  };
  for (const Guess& guess : {Guess{2, 8, 12}, Guess{1, 4, 8}, Guess{2, 4, 9}}) {
    BatchAhead ahead(data, 3);
    ahead.Train(2, At(0, 4), Range(0, 4));
    ahead.Prepare(guess.epoch, At(guess.from, guess.to), Range(guess.from, guess.to));
    const Batch& batch = ahead.Train(2, At(4, 8), Range(4, 8));
    EXPECT_EQ(batch.samples, 4u);
    EXPECT_EQ(batch.epoch, 2u);
    EXPECT_EQ(Inputs(batch), Inputs(plain.Train(2, At(4, 8), Range(4, 8))));
  }
}

TEST(BatchAhead, KnowsThePositionsOfSeveralRanges) {
  const Dataset data = Numbers();
  BatchAhead ahead(data, 3);
  const std::vector<SampleRange> ranges = {{8, 10}, {3, 4}};
  const std::vector<std::uint32_t> samples = {8, 9, 3};
  const Batch& prepared = ahead.Prepare(2, ranges, samples);
  EXPECT_EQ(prepared.PositionOf(0), 8u);
  EXPECT_EQ(prepared.PositionOf(1), 9u);
  EXPECT_EQ(prepared.PositionOf(2), 3u);
  const float* memory = prepared.inputs.data();
  EXPECT_NE(ahead.Train(2, At(8, 11), Range(8, 11)).inputs.data(), memory);
  ahead.Prepare(2, ranges, samples);
  EXPECT_EQ(ahead.Train(2, ranges, samples).inputs.data(), memory);
  EXPECT_EQ(ahead.Train(2, At(8, 11), Range(8, 11)).PositionOf(2), 10u);
}

TEST(BatchAhead, APreparedBatchIsUsedOnceAndOutlastsAnEvaluation) {
  const Dataset data = Numbers();
  BatchAhead ahead(data, 3);
  ahead.Train(2, At(0, 4), Range(0, 4));
  const float* memory = ahead.Prepare(2, At(4, 8), Range(4, 8)).inputs.data();
  ahead.Test(Range(0, 5));
  EXPECT_EQ(ahead.Train(2, At(4, 8), Range(4, 8)).inputs.data(), memory);
  // What was current before is not taken for what was prepared.
  ahead.Train(2, At(0, 4), Range(0, 4));
  BatchAhead plain(data, 3);
  EXPECT_EQ(Inputs(ahead.Train(2, At(12, 16), Range(12, 16))),
            Inputs(plain.Train(2, At(12, 16), Range(12, 16))));
}

}  // namespace
}  // namespace lockstep::worker
