#include "worker/exchange/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/random.h"

namespace lockstep::worker {
namespace {

// The digest. Two floats make a word, the first in its low half; a missing last one counts as zero
// bits. Word i goes into lane i % 8:
//   lane = rotl(lane + word * kSpread, 31) * kMix    mod 2^64
// which is a bijection of the lane for each word and of the word for each lane. The first product
// makes the bits of a word that would have to change to hide a changed earlier one many and
// scattered. Lane j starts as Mix64(j). At the end, with Mix64 of base/random.h:
//   low  = Mix64(... Mix64(Mix64(n) ^ lane 0) ... ^ lane 7)
//   high = Mix64(... Mix64(Mix64(~n) ^ lane 7) ... ^ lane 0)
constexpr std::size_t kLanes = 8;
constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15ull;
constexpr std::uint64_t kMix = 0xD1B54A32D192ED03ull;

std::uint64_t WordAt(const float* values) {
  return std::bit_cast<std::uint32_t>(values[0]) |
         std::uint64_t{std::bit_cast<std::uint32_t>(values[1])} << 32;
}

std::uint64_t Step(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kSpread, 31) * kMix;
}

}  // namespace

Digest128 DigestOf(std::span<const float> values) {
  std::array<std::uint64_t, kLanes> lanes;
  for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = Mix64(j);
  const std::size_t n = values.size();
  std::size_t i = 0;
  for (; n - i >= 2 * kLanes; i += 2 * kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = Step(lanes[j], WordAt(&values[i + 2 * j]));
  }
  for (std::size_t j = 0; i < n; ++j, i += 2) {
    const std::array<float, 2> pair = {values[i], i + 1 < n ? values[i + 1] : 0.0f};
    lanes[j] = Step(lanes[j], WordAt(pair.data()));
  }
  Digest128 digest{Mix64(n), Mix64(~std::uint64_t{n})};
  for (std::size_t j = 0; j < kLanes; ++j) {
    digest.low = Mix64(digest.low ^ lanes[j]);
    digest.high = Mix64(digest.high ^ lanes[kLanes - 1 - j]);
  }
  return digest;
}

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
