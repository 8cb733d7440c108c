// Samples on their way from a data set to a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace lockstep::worker {

struct ImageShape {
  std::uint32_t channels = 1;
  std::uint32_t height = 1;
  std::uint32_t width = 1;
  std::size_t size() const { return std::size_t{channels} * height * width; }
  bool operator==(const ImageShape&) const = default;
};

// It is host memory, grows to the largest batch, and is used again.
struct Batch {
  // The caller sets it before Dataset::FillBatch. Sample i is at position positions[i] of the
  // epoch's order, or, where that is empty, at first_position + i. All random draws for it
  // (augmentation, dropout) depend on (seed, epoch, position) alone, not on the worker or the
  // batch.
  std::uint64_t seed = 0;
  std::uint32_t epoch = 0;
  std::uint64_t first_position = 0;
  std::vector<std::uint64_t> positions;

  std::uint64_t PositionOf(std::size_t sample) const {
    return positions.empty() ? first_position + sample : positions[sample];
  }

  // Dataset::FillBatch fills it.
  std::size_t samples = 0;
  std::vector<float> inputs;          // [samples, channels, height, width], at least
  std::vector<std::uint16_t> labels;  // [samples], at least
};

// The purpose of a draw; draws for different purposes are independent.
enum class DrawPurpose : std::uint64_t { kDropout = 0x64726F70, kAugmentation = 0x6175676D };

inline RandomStream SampleStream(const Batch& batch, DrawPurpose purpose, std::size_t sample) {
  return RandomStream(batch.seed, static_cast<std::uint64_t>(purpose) << 32 | batch.epoch,
                      batch.PositionOf(sample));
}

}  // namespace lockstep::worker
