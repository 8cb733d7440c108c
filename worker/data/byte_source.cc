#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::worker {
namespace {

class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  ~FileSource() override { gzclose_r(file_); }

  Result<std::size_t> Read(std::span<std::uint8_t> out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const std::size_t wanted = std::min<std::size_t>(out.size() - done, 1u << 20);
      const int got = gzread(file_, out.data() + done, static_cast<unsigned>(wanted));
      int code = Z_OK;
      const char* reason = gzerror(file_, &code);
      if (got < 0 || code == Z_BUF_ERROR) return Fail(code, reason);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }
  const std::string& name() const override { return path_; }

 private:
  Error Fail(int code, const char* reason) const {
    if (code == Z_ERRNO) {
      return {ErrorCode::kIo, fmt::format("{}: {}", path_, std::strerror(errno))};
    }
    if (code == Z_BUF_ERROR) {
      return {ErrorCode::kInvalid,
              fmt::format("{}: the gzip file is cut off before its end", path_)};
    }
    return {ErrorCode::kInvalid, fmt::format("{}: broken gzip file ({})", path_, reason)};
  }

  const std::string path_;
  const gzFile file_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::uint8_t> bytes)
      : name_(std::move(name)), rest_(bytes) {}

  Result<std::size_t> Read(std::span<std::uint8_t> out) override {
    const std::size_t count = std::min(out.size(), rest_.size());
    std::copy_n(rest_.begin(), count, out.begin());
    rest_ = rest_.subspan(count);
    return count;
  }
  const std::string& name() const override { return name_; }

 private:
  const std::string name_;
  std::span<const std::uint8_t> rest_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  // Opening a FIFO would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, fmt::format("{}: {}", path, std::strerror(errno))};
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Error{ErrorCode::kInvalid, fmt::format("{}: not a regular file", path)};
  }
  gzFile file = gzdopen(fd, "rb");
  if (file == nullptr) {
    close(fd);
    return Error{ErrorCode::kIo, fmt::format("{}: no memory to read it", path)};
  }
  gzbuffer(file, 1u << 17);
  return std::unique_ptr<ByteSource>(std::make_unique<FileSource>(path, file));
}

std::unique_ptr<ByteSource> FromMemory(std::string name, std::span<const std::uint8_t> bytes) {
  return std::make_unique<MemorySource>(std::move(name), bytes);
}

}  // namespace lockstep::worker
