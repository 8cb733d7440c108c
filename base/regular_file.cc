#include "base/regular_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/ini.h"

namespace lockstep {
namespace {

// Puts the path on one line, whatever the name is.
std::string ForMessage(const std::string& path) { return IsPrintable(path) ? path : Quoted(path); }

}  // namespace

Result<std::ifstream> OpenRegularFile(const std::string& path) {
  const auto fail = [&path](ErrorCode code, const std::string& what) {
    return Error{code, fmt::format("{}: {}", ForMessage(path), what)};
  };
  std::error_code error;
  // The type is checked first, because opening a FIFO waits.
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::not_found) {
    return fail(ErrorCode::kNotFound, std::strerror(ENOENT));
  }
  if (error) return fail(ErrorCode::kInvalid, error.message());
  if (type == std::filesystem::file_type::directory) {
    return fail(ErrorCode::kInvalid, "is a directory, not a file");
  }
  if (type != std::filesystem::file_type::regular) {
    return fail(ErrorCode::kInvalid, "is not a regular file");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kInvalid, std::strerror(errno));
  return file;
}

Result<std::string> ReadRegularFile(const std::string& path, std::size_t most) {
  auto file = OpenRegularFile(path);
  if (!file) return file.error();
  std::string text;
  constexpr std::size_t kStep = std::size_t{1} << 16;
  while (*file && text.size() <= most) {
    const std::size_t before = text.size();
    text.resize(before + std::min(kStep, most + 1 - before));
    file->read(text.data() + before, static_cast<std::streamsize>(text.size() - before));
    text.resize(before + static_cast<std::size_t>(file->gcount()));
  }
  if (file->bad()) return Error{ErrorCode::kInvalid, ForMessage(path) + ": cannot be read"};
  if (text.size() > most) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}: is longer than {} bytes", ForMessage(path), most)};
  }
  return text;
}

}  // namespace lockstep
