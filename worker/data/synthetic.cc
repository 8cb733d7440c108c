#include "worker/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/free_memory.h"
#include "base/random.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kPatterns = 0x73796E00, kTrainSamples = 0x73796E01,
                        kTestSamples = 0x73796E02;
constexpr std::int64_t kPatternPercent = 75;  // how far a class's pattern is above the noise

// It is close to a normal distribution: mean 0, deviation about 38 (the sum of four uniform
// numbers).
std::int64_t Noise(std::uint64_t word) {
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int64_t>(word >> (16 * i) & 0xFFFF);
  return (sum - 2 * 65535) / 1000;
}

Samples Make(std::uint32_t size, std::uint32_t features, std::uint32_t classes,
             const std::vector<std::int64_t>& patterns, std::uint64_t seed, std::uint64_t key) {
  Samples samples;
  samples.labels.resize(size);
  samples.pixels.resize(std::size_t{size} * features);
  std::uint8_t* pixel = samples.pixels.data();
  for (std::uint32_t s = 0; s < size; ++s) {
    // Every class occurs equally often, except for a remainder.
    const std::uint32_t label = s % classes;
    samples.labels[s] = static_cast<std::uint16_t>(label);
    const RandomStream random(seed, key, s);
    for (std::uint32_t f = 0; f < features; ++f) {
      const std::int64_t value =
          128 + patterns[std::size_t{label} * features + f] + Noise(random.Word(f));
      *pixel++ = static_cast<std::uint8_t>(std::clamp<std::int64_t>(value, 0, 255));
    }
  }
  return samples;
}

}  // namespace

Result<std::unique_ptr<Dataset>> MakeSynthetic(const DataSection& config, std::uint64_t seed) {
  const std::uint32_t features = config.synthetic_features;
  const std::uint32_t classes = config.synthetic_classes;
  if (features == 0 || config.synthetic_train == 0 || config.synthetic_test == 0) {
    return Error{ErrorCode::kInvalid,
                 "data.synthetic: training samples, test samples and features must be above 0"};
  }
  if (classes < 2 || classes > 65536) {
    return Error{ErrorCode::kInvalid, "data.synthetic_classes: must be 2 to 65536"};
  }
  const std::uint64_t samples = std::uint64_t{config.synthetic_train} + config.synthetic_test;
  const std::uint64_t bytes = samples * (features + sizeof(std::uint16_t)) +
                              std::uint64_t{classes} * features * sizeof(std::int64_t);
  const Status fits = CheckMemory(
      bytes, fmt::format("data.synthetic: a dataset of {} samples of {} features in {} classes",
                         samples, features, classes));
  if (!fits) return fits.error();
  std::vector<std::int64_t> patterns(std::size_t{classes} * features);
  const RandomStream random(seed, kPatterns);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = Noise(random.Word(i)) * kPatternPercent / 100;
  }
  const auto side = static_cast<std::uint32_t>(std::lround(std::sqrt(features)));
  const ImageShape shape =
      side * side == features ? ImageShape{1, side, side} : ImageShape{1, 1, features};
  return std::make_unique<Dataset>(
      shape, classes,
      Make(config.synthetic_train, features, classes, patterns, seed, kTrainSamples),
      Make(config.synthetic_test, features, classes, patterns, seed, kTestSamples));
}

}  // namespace lockstep::worker
