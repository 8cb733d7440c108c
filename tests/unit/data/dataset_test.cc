#include "worker/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"

namespace lockstep::worker {
namespace {

constexpr ImageShape kShape{2, 5, 6};
constexpr std::uint32_t kPlane = 30;

Samples RandomSamples(std::uint32_t size, std::uint64_t seed) {
  RandomStream random(seed);
  Samples samples;
  for (std::uint32_t s = 0; s < size; ++s) {
    samples.labels.push_back(static_cast<std::uint16_t>(s % 3));
    for (std::uint32_t c = 0; c < 2; ++c) {
      // The channels differ in mean and deviation.
      for (std::uint32_t p = 0; p < kPlane; ++p) {
        const auto pixel = 1 + random.NextBelow(c == 0 ? 100 : 255);
        samples.pixels.push_back(static_cast<std::uint8_t>(pixel));
      }
    }
  }
  return samples;
}

Dataset SmallSet() { return Dataset(kShape, 3, RandomSamples(40, 1), RandomSamples(10, 2)); }

std::vector<std::uint32_t> Indices(std::uint32_t from, std::uint32_t to) {
  std::vector<std::uint32_t> indices(to - from);
  std::iota(indices.begin(), indices.end(), from);
  return indices;
}

Batch At(std::uint64_t position) {
  Batch batch;
  batch.seed = 11;
  batch.epoch = 4;
  batch.first_position = position;
  return batch;
}

TEST(Dataset, EachChannelIsNormalizedOverTheTrainingSplit) {
  const Dataset dataset = SmallSet();
  Batch batch;
  dataset.FillBatch(Split::kTrain, Indices(0, 40), batch);
  for (std::uint32_t c = 0; c < 2; ++c) {
    double sum = 0, squares = 0;
    for (std::size_t s = 0; s < 40; ++s) {
      for (std::size_t p = 0; p < kPlane; ++p) {
        const auto v = static_cast<double>(batch.inputs[(s * 2 + c) * kPlane + p]);
        sum += v;
        squares += v * v;
      }
    }
    EXPECT_NEAR(sum / (40 * kPlane), 0, 1e-5);
    EXPECT_NEAR(squares / (40 * kPlane), 1, 1e-5);
  }
}

TEST(Dataset, AChannelOfOneValueIsHarmless) {
  Samples samples;
  samples.labels = {0, 1};
  samples.pixels.assign(2 * kShape.size(), 9);
  const Dataset dataset(kShape, 2, samples, samples);
  Batch batch;
  dataset.FillBatch(Split::kTrain, Indices(0, 2), batch);
  for (float v : batch.inputs) EXPECT_NEAR(v, 0, 1e-6);
}

TEST(Dataset, TheDigestSeesEveryPart) {
  const std::string digest = SmallSet().digest();
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(SmallSet().digest(), digest);
  const auto changed = [](auto change) {
    Samples train = RandomSamples(40, 1), test = RandomSamples(10, 2);
    ImageShape shape = kShape;
    change(shape, train, test);
    return Dataset(shape, 3, train, test).digest();
  };
  EXPECT_NE(changed([](auto&, auto& train, auto&) { train.pixels[700] ^= 1; }), digest);
  EXPECT_NE(changed([](auto&, auto& train, auto&) { train.labels[3] = 1; }), digest);
  EXPECT_NE(changed([](auto&, auto&, auto& test) { test.pixels[5] ^= 1; }), digest);
  EXPECT_NE(changed([](auto& shape, auto&, auto&) { shape = {2, 6, 5}; }), digest);
}

// The pixels of a moved image, by the definition of the move.
float Moved(const Batch& plain, std::size_t sample, std::uint32_t c, int y, int x, int dy, int dx,
            bool flip, float black) {
  const int from_y = y - dy, from_x = flip ? 5 - (x - dx) : x - dx;
  if (from_y < 0 || from_y >= 5 || x - dx < 0 || x - dx >= 6) return black;
  return plain.inputs[(sample * 2 + c) * kPlane + static_cast<std::size_t>(from_y * 6 + from_x)];
}

bool IsMoved(const Batch& plain, const Batch& batch, std::size_t sample, int dy, int dx, bool flip,
             const float* black) {
  for (std::uint32_t c = 0; c < 2; ++c) {
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 6; ++x) {
        const auto at = (sample * 2 + c) * kPlane + static_cast<std::size_t>(y * 6 + x);
        if (batch.inputs[at] != Moved(plain, sample, c, y, x, dy, dx, flip, black[c])) return false;
      }
    }
  }
  return true;
}

// The last training sample is black.
Dataset SetWithBlack() {
  Samples train = RandomSamples(40, 1);
  std::fill(train.pixels.end() - static_cast<std::ptrdiff_t>(kShape.size()), train.pixels.end(),
            std::uint8_t{0});
  return Dataset(kShape, 3, train, RandomSamples(10, 2));
}

TEST(Augmentation, ShiftsAndFlipsWholeImages) {
  Dataset dataset = SetWithBlack();
  Batch plain = At(100);
  dataset.FillBatch(Split::kTrain, Indices(0, 40), plain);
  const float black[] = {plain.inputs[39 * 2 * kPlane], plain.inputs[(39 * 2 + 1) * kPlane]};
  dataset.set_augmentation({1, true});
  Batch batch = At(100);
  dataset.FillBatch(Split::kTrain, Indices(0, 39), batch);
  int flipped = 0, stayed = 0;
  for (std::size_t s = 0; s < 39; ++s) {
    int matches = 0;
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx) {
        for (bool flip : {false, true}) {
          if (!IsMoved(plain, batch, s, dy, dx, flip, black)) continue;
          ++matches;
          flipped += flip ? 1 : 0;
          stayed += dy == 0 && dx == 0 ? 1 : 0;
        }
      }
    }
    ASSERT_EQ(matches, 1) << "sample " << s;
  }
  EXPECT_GT(flipped, 8);
  EXPECT_LT(flipped, 31);
  EXPECT_LT(stayed, 15);
}

TEST(Augmentation, DependsOnSeedEpochAndPositionAlone) {
  Dataset dataset = SmallSet();
  dataset.set_augmentation({2, true});
  Batch whole = At(100);
  dataset.FillBatch(Split::kTrain, Indices(0, 20), whole);
  Batch part = At(112);
  dataset.FillBatch(Split::kTrain, Indices(12, 17), part);
  const auto size = static_cast<std::ptrdiff_t>(kShape.size());
  EXPECT_TRUE(std::equal(part.inputs.begin(), part.inputs.begin() + 5 * size,
                         whole.inputs.begin() + 12 * size));
  for (int change = 0; change < 3; ++change) {
    Batch other = At(change == 0 ? 101 : 100);
    if (change == 1) other.seed = 12;
    if (change == 2) other.epoch = 5;
    dataset.FillBatch(Split::kTrain, Indices(0, 20), other);
    EXPECT_NE(other.inputs, whole.inputs) << change;
  }
}

TEST(Augmentation, LeavesTheTestSplitAlone) {
  Dataset dataset = SmallSet();
  Batch plain = At(0), augmented = At(0);
  dataset.FillBatch(Split::kTest, Indices(0, 10), plain);
  dataset.set_augmentation({2, true});
  dataset.FillBatch(Split::kTest, Indices(0, 10), augmented);
  EXPECT_EQ(plain.inputs, augmented.inputs);
}

TEST(Synthetic, IsMadeFromItsSeed) {
  DataSection section;
  section.format = "synthetic";
  section.synthetic_train = 100;
  section.synthetic_test = 30;
  section.synthetic_features = 64;
  section.synthetic_classes = 4;
  const auto dataset = OpenDataset(section, 7);
  ASSERT_TRUE(dataset.ok());
  EXPECT_EQ((*dataset)->size(Split::kTrain), 100u);
  EXPECT_EQ((*dataset)->size(Split::kTest), 30u);
  EXPECT_EQ((*dataset)->classes(), 4u);
  EXPECT_EQ((*dataset)->shape(), (ImageShape{1, 8, 8}));
  // Seen on one machine, asserted on all.
  EXPECT_EQ((*dataset)->digest(),
            "b309329c8abcea79d772b91f40c8fc211ce20f5ee5e576396dc5eaae53c503cf");
  EXPECT_NE((*OpenDataset(section, 8))->digest(), (*dataset)->digest());
  section.synthetic_features = 63;
  EXPECT_EQ((*OpenDataset(section, 7))->shape(), (ImageShape{1, 1, 63}));
}

}  // namespace
}  // namespace lockstep::worker
