#include "transport/control/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace lockstep::transport::control {
namespace {

constexpr std::size_t kMaxBytes = 1u << 16;

Secret::Key Hkdf(std::span<const std::byte> from, std::string_view purpose) {
  struct Free {
    void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
    void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  };
  const std::unique_ptr<EVP_KDF, Free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  LOCKSTEP_CHECK(kdf != nullptr, "OpenSSL has no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, Free> context(EVP_KDF_CTX_new(kdf.get()));
  LOCKSTEP_CHECK(context != nullptr, "no memory for HKDF");
  // OpenSSL's parameters are not const, but they are only read.
  const auto text = [](std::string_view value) {
    return const_cast<void*>(static_cast<const void*>(value.data()));
  };
  const std::string_view salt = "lockstep job secret v1";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, const_cast<char*>("SHA256"), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(from.data()),
                                        from.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, text(salt), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, text(purpose), purpose.size()),
      OSSL_PARAM_construct_end()};
  Secret::Key key{};
  const int derived = EVP_KDF_derive(context.get(), key.data(), key.size(), parameters);
  LOCKSTEP_CHECK(derived == 1, "HKDF failed");
  return key;
}

}  // namespace

Secret::Secret(std::span<const std::byte> bytes) : root_(Hkdf(bytes, "root")) {
  LOCKSTEP_CHECK(bytes.size() >= kMinBytes, "a secret of {} bytes", bytes.size());
}

Secret::~Secret() { OPENSSL_cleanse(root_.data(), root_.size()); }

Secret::Key Secret::Derive(std::string_view purpose) const {
  return Hkdf(std::as_bytes(std::span(root_)), purpose);
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
