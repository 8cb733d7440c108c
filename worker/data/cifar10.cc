#include "worker/data/cifar10.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/free_memory.h"

namespace lockstep::worker {
namespace {

constexpr ImageShape kShape{3, 32, 32};
constexpr std::uint32_t kClasses = 10;

Status ReadFile(const std::string& path, Samples& samples) {
  auto source = OpenFile(path);
  if (!source) return source.error();
  return ReadCifar10(**source, samples);
}

}  // namespace

Status ReadCifar10(ByteSource& source, Samples& samples) {
  std::vector<std::uint8_t> record(1 + kShape.size());
  for (std::uint64_t index = 0;; ++index) {
    const auto got = source.Read(record);
    if (!got) return got.error();
    if (*got == 0) {
      if (index > 0) return {};
      return Error{ErrorCode::kInvalid, fmt::format("{}: empty file", source.name())};
    }
    if (*got < record.size()) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: ends within record {}; a CIFAR-10 file has {} bytes for each",
                               source.name(), index, record.size())};
    }
    if (record[0] >= kClasses) {
      return Error{ErrorCode::kInvalid, fmt::format("{}: record {} has label {}, not one of 0..{}",
                                                    source.name(), index, record[0], kClasses - 1)};
    }
    // It is doubled here, where that can be refused: the unpacked size of a gzip file is not known
    // before.
    if (samples.pixels.capacity() < samples.pixels.size() + kShape.size()) {
      const std::size_t wanted =
          std::max(2 * samples.pixels.capacity(), std::size_t{1024} * kShape.size());
      if (Status fits = CheckMemory(wanted, source.name() + ": data"); !fits) return fits;
      samples.pixels.reserve(wanted);
    }
    samples.labels.push_back(record[0]);
    samples.pixels.insert(samples.pixels.end(), record.begin() + 1, record.end());
  }
}

Result<std::unique_ptr<Dataset>> OpenCifar10(const std::string& folder) {
  Samples train;
  Samples test;
  for (int i = 1; i <= 5; ++i) {
    const Status read = ReadFile(fmt::format("{}/data_batch_{}.bin", folder, i), train);
    if (!read) return read.error();
  }
  const Status read = ReadFile(folder + "/test_batch.bin", test);
  if (!read) return read.error();
  return std::make_unique<Dataset>(kShape, kClasses, std::move(train), std::move(test));
}

}  // namespace lockstep::worker
