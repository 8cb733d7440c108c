#include "tests/fuzz/parsers/targets.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/slowdown.h"
#include "base/slowdown_trace.h"
#include "coordinator/checkpoint/safetensors.h"
#include "worker/data/byte_source.h"
#include "worker/data/cifar10.h"
#include "worker/data/idx.h"

namespace lockstep::fuzz {
namespace {

using worker::ByteSource;

// The bytes as a file without a name in any folder.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes)
      : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    LOCKSTEP_CHECK(fd_ >= 0 &&
                   write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return fmt::format("/proc/self/fd/{}", fd_); }

 private:
  const int fd_;
};

bool AcceptsIdx(ByteSource& source, std::size_t dimensions) {
  const auto array = worker::ReadIdx(source, dimensions);
  if (!array) {
    LOCKSTEP_CHECK(array.error().message.starts_with(source.name()));
    return false;
  }
  std::size_t total = 1;
  for (std::uint32_t extent : array->dimensions) total *= extent;
  LOCKSTEP_CHECK(total == array->values.size() && array->dimensions.size() == dimensions);
  return true;
}

}  // namespace

bool idx(std::span<const std::uint8_t> bytes) {
  const auto images = worker::FromMemory("images", bytes);
  const auto labels = worker::FromMemory("labels", bytes);
  const bool accepted = AcceptsIdx(*images, 3);
  return AcceptsIdx(*labels, 1) || accepted;
}

bool cifar10(std::span<const std::uint8_t> bytes) {
  const auto source = worker::FromMemory("batch", bytes);
  worker::Samples samples;
  const Status status = worker::ReadCifar10(*source, samples);
  LOCKSTEP_CHECK(samples.pixels.size() == std::size_t{samples.size()} * 3072);
  for (std::uint16_t label : samples.labels) LOCKSTEP_CHECK(label < 10);
  LOCKSTEP_CHECK(!status.ok() || samples.size() * std::size_t{3073} == bytes.size());
  return status.ok();
}

bool gzip(std::span<const std::uint8_t> bytes) {
  const MemoryFile file(bytes);
  auto source = worker::OpenFile(file.path());
  LOCKSTEP_CHECK(source.ok());
  return AcceptsIdx(**source, 1);
}

bool safetensors(std::span<const std::uint8_t> bytes) {
  const MemoryFile memory(bytes);
  const auto file = coordinator::SafetensorsFile::Open(memory.path());
  if (!file) return false;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < file->header().tensors.size(); ++i) {
    const coordinator::StoredTensor& tensor = file->header().tensors[i];
    LOCKSTEP_CHECK(tensor.offset == end);
    end += tensor.bytes;
    std::vector<std::byte> values(tensor.bytes);
    LOCKSTEP_CHECK(file->Read(i, 0, values).ok());
  }
  LOCKSTEP_CHECK(end < bytes.size());
  return true;
}

bool slowdown(std::span<const std::uint8_t> bytes) {
  const std::string text(bytes.begin(), bytes.end());
  const auto trace = ParseTrace(text, "trace");
  if (trace.ok()) LOCKSTEP_CHECK(!trace->empty() && trace->size() <= kMaxTracePoints);
  const auto specs = ParseSlowdownLines(text);
  if (!specs.ok()) {
    LOCKSTEP_CHECK(specs.error().message.find('\n') == std::string::npos);
    return trace.ok();
  }
  for (const SlowdownSpec& spec : *specs) {
    const auto back = ParseSlowdownSpec(ToString(spec));
    LOCKSTEP_CHECK(back.ok() && *back == spec, "{} does not come back", ToString(spec));
  }
  // Whatever is accepted can be lived with.
  const Duration nominal = std::chrono::milliseconds(20);
  const SlowdownModel model(*specs, 4);
  for (const std::int64_t s : {0, 1, 1000, 1'000'000}) {
    const Duration took = model.Lengthen(WorkerId(1), RoundId(static_cast<std::uint64_t>(s)), 3,
                                         std::chrono::seconds(s), nominal);
    LOCKSTEP_CHECK(took >= nominal);
  }
  return true;
}

}  // namespace lockstep::fuzz
