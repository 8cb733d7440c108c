#include "worker/data/dataset.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/vector_clones.h"

namespace lockstep::worker {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    LOCKSTEP_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
  }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(const void* bytes, std::size_t count) {
    LOCKSTEP_CHECK(EVP_DigestUpdate(context_, bytes, count) == 1);
  }
  void AddNumber(std::uint32_t value) {
    const std::uint8_t bytes[4] = {
        static_cast<std::uint8_t>(value), static_cast<std::uint8_t>(value >> 8),
        static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 24)};
    Add(bytes, sizeof bytes);
  }
  std::string Hex() {
    std::uint8_t digest[32];
    LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_, digest, nullptr) == 1);
    std::string hex;
    for (std::uint8_t byte : digest) {
      hex += "0123456789abcdef"[byte >> 4];
      hex += "0123456789abcdef"[byte & 15];
    }
    return hex;
  }

 private:
  EVP_MD_CTX* context_;
};

void AddSamples(Sha256& sha, const Samples& samples) {
  sha.AddNumber(samples.size());
  sha.Add(samples.pixels.data(), samples.pixels.size());
  std::vector<std::uint8_t> labels;  // little-endian, on every machine
  labels.reserve(2 * samples.labels.size());
  for (std::uint16_t label : samples.labels) {
    labels.push_back(static_cast<std::uint8_t>(label));
    labels.push_back(static_cast<std::uint8_t>(label >> 8));
  }
  sha.Add(labels.data(), labels.size());
}

// Mean and deviation come from exact integer sums: they are the same on every machine.
void Normalization(const ImageShape& shape, const Samples& samples, std::vector<float>& factor,
                   std::vector<float>& offset) {
  const std::size_t plane = std::size_t{shape.height} * shape.width;
  for (std::uint32_t c = 0; c < shape.channels; ++c) {
    std::uint64_t sum = 0;
    std::uint64_t squares = 0;
    for (std::size_t s = 0; s < samples.size(); ++s) {
      const std::uint8_t* pixels = samples.pixels.data() + s * shape.size() + c * plane;
      std::uint64_t line = 0;
      std::uint64_t line_squares = 0;
      for (std::size_t p = 0; p < plane; ++p) {
        line += pixels[p];
        line_squares += static_cast<std::uint32_t>(pixels[p]) * pixels[p];
      }
      sum += line;
      squares += line_squares;
    }
    const double count = static_cast<double>(plane) * samples.size();
    const double mean = static_cast<double>(sum) / count;
    const double variance = static_cast<double>(squares) / count - mean * mean;
    // A channel of one value is only centred.
    const double deviation = variance > 1e-6 ? std::sqrt(variance) : 255.0;
    factor.push_back(static_cast<float>(1.0 / deviation));
    offset.push_back(static_cast<float>(-mean / deviation));
  }
}

LOCKSTEP_VECTOR_CLONES
void NormalizeRun(const std::uint8_t* pixels, std::size_t count, float factor, float offset,
                  float* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<std::int32_t>(pixels[i])) * factor + offset;
  }
}

struct Move {
  std::int32_t dx = 0;
  std::int32_t dy = 0;
  bool flip = false;
};

Move DrawMove(const Augmentation& augmentation, RandomStream random) {
  Move move;
  const auto shift = static_cast<std::int32_t>(augmentation.shift);
  const std::uint64_t places = 2 * std::uint64_t{augmentation.shift} + 1;
  move.dx = static_cast<std::int32_t>(random.NextBelow(places)) - shift;
  move.dy = static_cast<std::int32_t>(random.NextBelow(places)) - shift;
  move.flip = augmentation.flip && random.NextBelow(2) == 1;
  return move;
}

// out(y, x) = plane(y - dy, x - dx), mirrored when `flip`; black beyond the edge.
void MovePlane(const ImageShape& shape, const Move& move, const std::uint8_t* plane,
               std::uint8_t* out) {
  const auto height = static_cast<std::int32_t>(shape.height);
  const auto width = static_cast<std::int32_t>(shape.width);
  for (std::int32_t y = 0; y < height; ++y) {
    const std::int32_t from_y = y - move.dy;
    for (std::int32_t x = 0; x < width; ++x) {
      const std::int32_t moved = x - move.dx;
      const bool inside = from_y >= 0 && from_y < height && moved >= 0 && moved < width;
      const std::int32_t from_x = move.flip ? width - 1 - moved : moved;
      *out++ = inside ? plane[from_y * width + from_x] : std::uint8_t{0};
    }
  }
}

}  // namespace

Dataset::Dataset(ImageShape shape, std::uint32_t classes, Samples train, Samples test)
    : shape_(shape), classes_(classes), train_(std::move(train)), test_(std::move(test)) {
  Sha256 sha;
  for (std::uint32_t number : {shape.channels, shape.height, shape.width, classes}) {
    sha.AddNumber(number);
  }
  for (const Samples* samples : {&train_, &test_}) {
    LOCKSTEP_CHECK(samples->pixels.size() == samples->size() * shape.size());
    AddSamples(sha, *samples);
  }
  digest_ = sha.Hex();
  Normalization(shape_, train_, factor_, offset_);
}

void Dataset::FillBatch(Split split, std::span<const std::uint32_t> indices, Batch& batch) const {
  const Samples& samples = split_of(split);
  const std::size_t plane = std::size_t{shape_.height} * shape_.width;
  const bool augment = split == Split::kTrain && (augmentation_.shift > 0 || augmentation_.flip);
  batch.samples = indices.size();
  const std::size_t values = indices.size() * shape_.size();
  if (batch.labels.size() < indices.size()) batch.labels.resize(indices.size());
  if (batch.inputs.size() < values) batch.inputs.resize(values);
  std::vector<std::uint8_t> moved(augment ? plane : 0);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    LOCKSTEP_CHECK(indices[i] < samples.size(), "sample {} of {}", indices[i], samples.size());
    batch.labels[i] = samples.labels[indices[i]];
    const std::uint8_t* pixels = samples.pixels.data() + indices[i] * shape_.size();
    float* out = batch.inputs.data() + i * shape_.size();
    Move move;
    if (augment) {
      move = DrawMove(augmentation_, SampleStream(batch, DrawPurpose::kAugmentation, i));
    }
    for (std::uint32_t c = 0; c < shape_.channels; ++c) {
      const std::uint8_t* source = pixels + c * plane;
      if (augment) {
        MovePlane(shape_, move, source, moved.data());
        source = moved.data();
      }
      NormalizeRun(source, plane, factor_[c], offset_[c], out + c * plane);
    }
  }
}

}  // namespace lockstep::worker
