#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "coordinator/checkpoint/safetensors.h"

namespace lockstep::coordinator {
namespace {

Error WriteError(const std::string& path, const char* action, int error) {
  return {ErrorCode::kIo, fmt::format("{}: {}: {}", path, action, std::strerror(error))};
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, SafetensorsHeader header, OwnedFd file)
    : path_(std::move(path)),
      partial_(path_ + ".partial"),
      header_(std::move(header)),
      file_(std::move(file)),
      written_(header_.tensors.size()) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (open_) unlink(partial_.c_str());
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<FileTensor>& tensors, Metadata metadata) {
  auto header = LayOut(tensors, std::move(metadata));
  if (!header) {
    return Error{header.error().code, fmt::format("{}: {}", path, header.error().message)};
  }
  const std::string partial = path + ".partial";
  OwnedFd file(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) return WriteError(partial, "cannot be created", errno);
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(path, *std::move(header), std::move(file)));

  const std::string encoded = EncodeHeader(writer->header_);
  writer->data_start_ = encoded.size();
  const auto total = static_cast<off_t>(encoded.size() + writer->header_.data_bytes);
  // Where the file system cannot reserve, a full disk shows at the write.
  if (fallocate(writer->file_.get(), 0, 0, total) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    return writer->Fail("cannot be written", errno);
  }
  const Status written = writer->WriteAt(0, std::as_bytes(std::span(encoded)));
  if (!written) return written.error();
  return writer;
}

Error SafetensorsWriter::Fail(const char* action, int error) {
  if (open_) unlink(partial_.c_str());
  open_ = false;
  return WriteError(path_, action, error);
}

Status SafetensorsWriter::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Fail("cannot be written", errno);
    offset += static_cast<std::uint64_t>(wrote);
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return {};
}

Status SafetensorsWriter::Append(std::size_t tensor, std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(open_ && tensor < written_.size());
  const StoredTensor& stored = header_.tensors[tensor];
  LOCKSTEP_CHECK(bytes.size() <= stored.bytes - written_[tensor],
                 "{}: more bytes than tensor '{}' has", path_, stored.info.name);
  const Status wrote = WriteAt(data_start_ + stored.offset + written_[tensor], bytes);
  if (wrote) written_[tensor] += bytes.size();
  return wrote;
}

Status SafetensorsWriter::Commit() {
  LOCKSTEP_CHECK(open_);
  for (std::size_t i = 0; i < written_.size(); ++i) {
    LOCKSTEP_CHECK(written_[i] == header_.tensors[i].bytes, "{}: tensor '{}' is not complete",
                   path_, header_.tensors[i].info.name);
  }
  if (fsync(file_.get()) != 0) return Fail("cannot be written", errno);
  if (rename(partial_.c_str(), path_.c_str()) != 0) return Fail("cannot be replaced", errno);
  open_ = false;
  return SyncFolderOf(path_);
}

}  // namespace lockstep::coordinator
