#include "transport/control/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace lockstep::transport::control {
namespace {

constexpr std::size_t kMaxBytes = 1u << 16;

constexpr std::string_view kSalt = "lockstep job secret v1";

}  // namespace

Secret::Secret(std::span<const std::byte> bytes) : root_(tls::DeriveKey(bytes, kSalt, "root")) {
  LOCKSTEP_CHECK(bytes.size() >= kMinBytes, "a secret of {} bytes", bytes.size());
}

Secret::~Secret() { OPENSSL_cleanse(root_.data(), root_.size()); }

Secret::Key Secret::Derive(std::string_view purpose) const {
  return tls::DeriveKey(std::as_bytes(std::span(root_)), kSalt, purpose);
}

Result<SecretFile> ReadSecretFile(const std::string& path) {
  const auto fail = [&](const std::string& what) {
    return Error{ErrorCode::kInvalid, fmt::format("secret file {}: {}", path, what)};
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail(std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } const closer{fd};
  struct ::stat status {};
  if (::fstat(fd, &status) != 0) return fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail("is not a regular file");

  std::vector<std::byte> bytes(kMaxBytes + 1);
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = ::read(fd, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size == 0) return fail("is empty");
  if (size < Secret::kMinBytes) {
    return fail(fmt::format("has {} bytes, at least {} are needed", size, Secret::kMinBytes));
  }
  if (size > kMaxBytes) return fail(fmt::format("has more than {} bytes", kMaxBytes));
  SecretFile file{Secret(std::span(bytes).first(size)), ""};
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if ((status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    file.warning = fmt::format("secret file {}: others can read it (mode {:03o}); chmod 600 helps",
                               path, status.st_mode & 0777);
  }
  return file;
}

}  // namespace lockstep::transport::control
