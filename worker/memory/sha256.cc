#include "worker/memory/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <bit>

#include "base/check.h"

namespace lockstep::worker {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  LOCKSTEP_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
                 "OpenSSL has no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

void Sha256::Update(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  Update(std::as_bytes(values));
}

std::string Sha256::FinishHex() {
  std::array<unsigned char, 32> digest{};
  unsigned int size = 0;
  LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 &&
                 size == digest.size());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace lockstep::worker
