#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "coordinator/checkpoint/safetensors.h"

namespace lockstep::coordinator {
namespace {

// The reference reader's own limit.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

Status ReadAt(const std::string& path, int fd, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno))};
    if (got == 0) return Error{ErrorCode::kInvalid, fmt::format("{}: the file is cut off", path)};
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, OwnedFd file, SafetensorsHeader header,
                                 std::uint64_t data_start)
    : path_(std::move(path)),
      file_(std::move(file)),
      header_(std::move(header)),
      data_start_(data_start) {}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  // Opening a FIFO would wait for a writer.
  OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, fmt::format("{}: {}", path, std::strerror(errno))};
  }
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: not a regular file", path)};
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  std::uint8_t length_bytes[8];
  if (size < sizeof length_bytes) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: too short for a safetensors file", path)};
  }
  Status read = ReadAt(path, file.get(), 0, std::as_writable_bytes(std::span(length_bytes)));
  if (!read) return read.error();
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > size - sizeof length_bytes || length > kMaxHeaderBytes) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: announces a header of {} bytes; not a safetensors file, or cut "
                             "off",
                             path, length)};
  }
  std::string json(length, '\0');
  read = ReadAt(path, file.get(), sizeof length_bytes, std::as_writable_bytes(std::span(json)));
  if (!read) return read.error();
  const std::uint64_t data_start = sizeof length_bytes + length;
  auto header = ParseHeader(json, size - data_start);
  if (!header) {
    return Error{header.error().code, fmt::format("{}: {}", path, header.error().message)};
  }
  return SafetensorsFile(path, std::move(file), *std::move(header), data_start);
}

Result<std::size_t> SafetensorsFile::Find(const std::string& name) const {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    if (header_.tensors[i].info.name == name) return i;
  }
  return Error{ErrorCode::kNotFound, fmt::format("{}: no tensor '{}'", path_, name)};
}

Status SafetensorsFile::Read(std::size_t tensor, std::uint64_t offset,
                             std::span<std::byte> out) const {
  LOCKSTEP_CHECK(tensor < header_.tensors.size());
  const StoredTensor& stored = header_.tensors[tensor];
  if (offset > stored.bytes || out.size() > stored.bytes - offset) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: tensor '{}' has {} bytes; {} from {} on are not all there", path_,
                             stored.info.name, stored.bytes, out.size(), offset)};
  }
  return ReadAt(path_, file_.get(), data_start_ + stored.offset + offset, out);
}

}  // namespace lockstep::coordinator
