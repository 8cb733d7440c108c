#include "transport/sealed_address.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace lockstep::transport {
namespace {

constexpr std::string_view kLabel = "lockstep sealed address 1";  // no other use of the key has it
constexpr std::size_t kSealBytes = 32;

using Seal = std::array<std::byte, kSealBytes>;

Seal SealOf(std::span<const std::byte> job_key, std::span<const std::byte> address) {
  std::vector<std::byte> text;
  text.reserve(kLabel.size() + address.size());
  std::ranges::copy(std::as_bytes(std::span(kLabel)), std::back_inserter(text));
  std::ranges::copy(address, std::back_inserter(text));
  Seal seal{};
  unsigned size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), job_key.data(), static_cast<int>(job_key.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(seal.data()), &size);
  LOCKSTEP_CHECK(done != nullptr && size == seal.size(), "HMAC-SHA256 failed");
  return seal;
}

}  // namespace

std::string SealAddress(std::span<const std::byte> job_key, std::span<const std::byte> address) {
  LOCKSTEP_CHECK(address.size() <= kMaxSealedBytes, "an address of {} bytes", address.size());
  const Seal seal = SealOf(job_key, address);
  std::vector<std::byte> bytes(seal.begin(), seal.end());
  bytes.insert(bytes.end(), address.begin(), address.end());
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and the zero that OpenSSL adds
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

Result<std::vector<std::byte>> OpenAddress(std::span<const std::byte> job_key,
                                           std::string_view sealed) {
  const Error malformed{ErrorCode::kInvalid, "the address is no sealed one"};
  if (sealed.size() % 4 != 0 || sealed.size() > (kSealBytes + kMaxSealedBytes + 2) / 3 * 4) {
    return malformed;
  }
  std::vector<std::byte> bytes(sealed.size() / 4 * 3);
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(sealed.data()),
                                     static_cast<int>(sealed.size()));
  if (length < 0) return malformed;
  // OpenSSL also counts the bytes that the padding stands for.
  std::size_t size = static_cast<std::size_t>(length);
  for (std::size_t i = sealed.size(); i > 0 && sealed[i - 1] == '=' && size > 0; --i) --size;
  if (size <= kSealBytes) return malformed;
  bytes.resize(size);
  const auto address = std::span(bytes).subspan(kSealBytes);
  const Seal seal = SealOf(job_key, address);
  if (CRYPTO_memcmp(seal.data(), bytes.data(), seal.size()) != 0) {
    return Error{ErrorCode::kRefused, "the address was not sealed with the key of this job"};
  }
  return std::vector<std::byte>(address.begin(), address.end());
}

}  // namespace lockstep::transport
