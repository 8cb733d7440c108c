#include "worker/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/free_memory.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 36;
constexpr std::size_t kChunk = std::size_t{1} << 20;

Error Invalid(const std::string& file, std::string what) {
  return {ErrorCode::kInvalid, fmt::format("{}: {}", file, std::move(what))};
}

Result<std::uint32_t> ReadNumber(ByteSource& source) {
  std::uint8_t bytes[4];
  const auto got = source.Read(bytes);
  if (!got) return got.error();
  if (*got != sizeof bytes) return Invalid(source.name(), "ends within the header of an IDX file");
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

Result<IdxArray> ReadValues(ByteSource& source, IdxArray array, std::uint64_t total) {
  while (array.values.size() < total) {
    const std::size_t before = array.values.size();
    // Doubling keeps the copies few; a wrong header costs no more than twice the real data.
    const std::size_t more = std::min<std::uint64_t>(std::max(kChunk, before), total - before);
    // Only data that exists takes memory, so a truncated file is reported as such.
    const Status fits = CheckMemory(before + more, source.name() + ": data");
    if (!fits) {
      const Status all = CheckMemory(total, source.name() + ": data");
      return (all.ok() ? fits : all).error();
    }
    array.values.resize(before + more);
    const auto got = source.Read(std::span(array.values).subspan(before));
    if (!got) return got.error();
    if (*got < more) {
      return Invalid(source.name(), fmt::format("ends after {} of the {} values it announces",
                                                before + *got, total));
    }
  }
  std::uint8_t beyond;
  const auto got = source.Read({&beyond, 1});
  if (!got) return got.error();
  if (*got != 0) {
    return Invalid(source.name(), fmt::format("goes on after the {} values it announces", total));
  }
  return array;
}

// Reads the file, plain or with .gz.
Result<IdxArray> ReadEither(const std::string& path, std::size_t dimensions) {
  auto source = OpenFile(path);
  if (!source && source.error().code == ErrorCode::kNotFound) {
    source = OpenFile(path + ".gz");
    if (!source && source.error().code == ErrorCode::kNotFound) {
      return Error{ErrorCode::kNotFound, fmt::format("{}: no such file, and none with .gz", path)};
    }
  }
  if (!source) return source.error();
  return ReadIdx(**source, dimensions);
}

struct IdxSplit {
  ImageShape shape;
  Samples samples;
};

Result<IdxSplit> ReadSplit(const std::string& folder, const std::string& prefix) {
  const std::string image_path = folder + "/" + prefix + "-images-idx3-ubyte";
  const std::string label_path = folder + "/" + prefix + "-labels-idx1-ubyte";
  auto images = ReadEither(image_path, 3);
  if (!images) return images.error();
  auto labels = ReadEither(label_path, 1);
  if (!labels) return labels.error();
  if (images->dimensions[0] != labels->dimensions[0]) {
    return Invalid(label_path, fmt::format("{} labels for the {} images beside it",
                                           labels->dimensions[0], images->dimensions[0]));
  }
  IdxSplit split;
  split.shape = {1, images->dimensions[1], images->dimensions[2]};
  split.samples.labels.assign(labels->values.begin(), labels->values.end());
  split.samples.pixels = std::move(images->values);
  return split;
}

}  // namespace

Result<IdxArray> ReadIdx(ByteSource& source, std::size_t dimensions) {
  const auto magic = ReadNumber(source);
  if (!magic) return magic.error();
  if (*magic != (0x0800u | dimensions)) {
    return Invalid(
        source.name(),
        fmt::format("starts with {:08x} where an IDX file of bytes in {} dimension{} "
                    "starts with {:08x}",
                    *magic, dimensions, dimensions == 1 ? "" : "s", 0x0800u | dimensions));
  }
  IdxArray array;
  std::uint64_t total = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const auto extent = ReadNumber(source);
    if (!extent) return extent.error();
    // total stays below 2^36 and an extent below 2^32: no overflow.
    if (*extent == 0 || total > kMaxBytes / *extent) {
      return Invalid(source.name(),
                     fmt::format("announces dimension {} of {}, which cannot be", i + 1, *extent));
    }
    total *= *extent;
    array.dimensions.push_back(*extent);
  }
  return ReadValues(source, std::move(array), total);
}

Result<std::unique_ptr<Dataset>> OpenIdx(const std::string& folder) {
  auto train = ReadSplit(folder, "train");
  if (!train) return train.error();
  auto test = ReadSplit(folder, "t10k");
  if (!test) return test.error();
  if (train->shape != test->shape) {
    return Invalid(
        folder, fmt::format("training images of {}x{}, test images of {}x{}", train->shape.height,
                            train->shape.width, test->shape.height, test->shape.width));
  }
  const auto& labels = train->samples.labels;
  const std::uint32_t classes = *std::max_element(labels.begin(), labels.end()) + 1u;
  const auto& test_labels = test->samples.labels;
  const std::uint32_t largest = *std::max_element(test_labels.begin(), test_labels.end());
  if (largest >= classes) {
    return Invalid(
        folder + "/t10k-labels-idx1-ubyte",
        fmt::format("label {}, but the training labels end at {}", largest, classes - 1));
  }
  return std::make_unique<Dataset>(train->shape, classes, std::move(train->samples),
                                   std::move(test->samples));
}

}  // namespace lockstep::worker
