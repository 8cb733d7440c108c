// A data set in memory: 8-bit images with labels, a training and a test split.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/data/batch.h"

namespace lockstep::worker {

enum class Split : std::uint8_t { kTrain, kTest };

// The result of the readers of the formats.
struct Samples {
  std::vector<std::uint8_t> pixels;   // [size, channels, height, width]
  std::vector<std::uint16_t> labels;  // [size], each below the number of classes
  std::uint32_t size() const { return static_cast<std::uint32_t>(labels.size()); }
};

struct Augmentation {
  std::uint32_t shift = 0;  // at most so many pixels in each direction; the new border is black
  bool flip = false;        // left and right, for every other sample
};

// It is immutable but for the choice of augmentation; several threads may call FillBatch.
class Dataset {
 public:
  Dataset(ImageShape shape, std::uint32_t classes, Samples train, Samples test);

  ImageShape shape() const { return shape_; }
  std::uint32_t classes() const { return classes_; }
  std::uint32_t size(Split split) const { return split_of(split).size(); }
  // SHA-256, hex, over shape, classes, pixels and labels of both splits. It is the same for the
  // same contents in another file format.
  const std::string& digest() const { return digest_; }

  void set_augmentation(const Augmentation& augmentation) { augmentation_ = augmentation; }

  // Fills samples, inputs and labels. Inputs are normalized by the mean and deviation of each
  // channel over the training split. Training samples are augmented, with draws from the batch's
  // (seed, epoch, position). Indices are below size(split).
  void FillBatch(Split split, std::span<const std::uint32_t> indices, Batch& batch) const;

 private:
  const Samples& split_of(Split split) const { return split == Split::kTrain ? train_ : test_; }

  ImageShape shape_;
  std::uint32_t classes_;
  Samples train_;
  Samples test_;
  std::vector<float> factor_;  // by channel: input = pixel * factor + offset
  std::vector<float> offset_;
  Augmentation augmentation_;
  std::string digest_;
};

// Opens the data set that the config names. `seed` is the job's (for `synthetic`). Errors are one
// line that names the file and its defect, or the key.
Result<std::unique_ptr<Dataset>> OpenDataset(const DataSection& config, std::uint64_t seed);

}  // namespace lockstep::worker
